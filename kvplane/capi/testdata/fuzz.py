"""Calls with arguments that make no sense, in a random order that its seed decides: each gives an error with a text, or does
what it says, and the process lives."""
import ctypes as C
import random
import sys

import pdkv

lib = pdkv.load(sys.argv[1])
seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
r = random.Random(seed)
memory = C.create_string_buffer(1 << 16)
buf = (C.c_uint64 * 512)()


def config():
    good = [{"kind": "scheduler", "engine": "e", "size": {"tp": r.choice([1, 2])}, "generation": r.choice([0, 7])}] * 3
    rank = {"kind": "rank", "engine": "e", "compatibility": "c", "log": {"level": "error"}, "gateway": {"url": "http://127.0.0.1:1", "token_file": __file__},
            "transport": {"name": "tcp"}, "cache": {"block_tokens": 16, "heads": 1, "head_bytes": 16, "dtype": "f32"}}
    good += [rank] * 3
    bad = [{**rank, "gateway": {"url": "ftp://x", "token_file": "/no/such/file"}}, {**rank, "cache": {"heads": -1}}, {}, {"kind": "rank"}, {"kind": "rank", "engine": "e"}, {"kind": "scheduler", "engine": "../e"}, {"kind": "scheduler", "engine": "e", "x": 1},
           {"kind": "scheduler", "engine": "e", "control": {"listen": "0.0.0.0:0"}}, {"kind": "scheduler", "engine": "e", "size": {"tp": -1}},
           {"kind": "scheduler", "engine": "e", "times": {"lease": "soon"}}, {"kind": "scheduler", "engine": "e", "log": {"file": "/no/such/folder/x"}},
           {"kind": "scheduler", "engine": "e", "control": {"listen": "127.0.0.1:0", "keys": ["/no/such/key"]}}]
    text = pdkv.json.dumps(r.choice(good + bad)).encode()
    if r.random() < 0.3:
        at = r.randrange(len(text))
        text = r.choice([text[:at], text[:at] + bytes([r.randrange(256)]) + text[at + 1:], b"/no/such/file", b"{" * 1000, b"\0", b"{\xff}"])
    return text


def number(bits=64):
    return r.choice([0, 1, 2, 7, -1, 1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << bits) - 1, r.randrange(1 << bits), r.randrange(1000)])


def signed():
    return C.c_int64(number()).value


def blob():
    b = r.choice([b"", orders, report, bytes(r.randrange(256) for _ in range(r.randrange(60)))])
    if b and r.random() < 0.5:
        at = r.randrange(len(b))
        b = r.choice([b[:at], b[:at] + bytes([r.randrange(256)]) + b[at + 1:], b + b])
    return b


def name():
    return r.choice([None, b"", b"p", b"prefill-0", b"p" * 128, b"p" * 129, b"p" * 5000, b"\xff\xfe", b"../x", b"a b"])


def tid():
    return bytes([r.choice([0, 1, 2, 3])]) * 16


def transfer():
    keep = []
    groups = None
    n = r.choice([0, 1, 1, 1, 2, 64, 65, (1 << 64) - 1])
    if r.random() < 0.9:
        groups = (pdkv.Blocks * 65)()
        for g in groups:
            count = r.choice([0, 1, 3, 10])
            ids = (C.c_int32 * 10)(*[r.choice([0, 1, 5, -1, 2**31 - 1]) for _ in range(10)])
            keep.append(ids)
            g.first, g.ids, g.count = r.choice([0, 16, -1, signed()]), ids, r.choice([count, count, (1 << 20) + 1, (1 << 64) - 1])
            if r.random() < 0.1:
                g.ids = None
    prompt = (C.c_int32 * 4)(1, 2, 3, 4)
    t = pdkv.Transfer((C.c_uint8 * 16)(*tid()), name(), r.choice([0, 7, (1 << 64) - 1]), r.choice([0, 0, signed()]), r.choice([10, 16, signed()]),
                      groups, n if groups else r.choice([0, 1]), r.choice([prompt, prompt, None]), r.choice([0, 4, (1 << 64) - 1]),
                      r.choice([0, 1000, signed()]))
    if r.random() < 0.05:
        return None
    t.keep = keep
    return C.byref(t)


def region():
    base = C.addressof(memory)
    x = (pdkv.Region * 3)()
    for i, one in enumerate(x):
        for field, kind in one._fields_:
            setattr(one, field, kind(number(8 * C.sizeof(kind))).value)
        if r.random() < 0.7:
            one.base, one.length, one.blocks, one.layer, one.planes, one.device = base, len(memory), 4, i, 1, 0
            one.block_stride = one.plane_stride = 256
            one.head_stride, one.token_stride = 256, 16
    return x


handles, orders, report, published = [], b"", b"", 0
names = ["open", "close", "fd", "register", "publish", "do", "collect", "gone", "admit", "queue", "expect", "offer", "cancel", "orders",
         "hear", "poll", "status"]
calls = {n: 0 for n in names}
good = 0
for _ in range(4000):
    n = r.choice(names)
    h = r.choice(handles) if handles and r.random() < 0.9 else C.c_int64(signed())
    size = C.c_size_t()
    room = (C.cast(buf, C.c_void_p), r.choice([0, 8, 71, 72, 4096])) if r.random() < 0.95 else (None, r.choice([0, 1]))
    out = C.byref(size) if r.random() < 0.95 else None
    if n == "open":
        if len(handles) > 20:
            continue
        h, text = C.c_int64(), config()
        code = lib.pdkv_open(r.choice([pdkv.ABI] * 9 + [0, pdkv.ABI + 1]), r.choice([text] * 9 + [None]), len(text), C.byref(h))
        if code == 0:
            handles.append(h)
    elif n == "close":
        if r.random() < 0.7:
            continue
        code = lib.pdkv_close(h)
        handles = [x for x in handles if x.value != h.value] if code == 0 else handles
    elif n in ("fd", "publish"):
        code = getattr(lib, "pdkv_" + n)(h)
        published += n == "publish" and code == 0
    elif n == "register":
        code = lib.pdkv_register(h, region(), r.choice([0, 1, 3, 4097, 1 << 40]) if r.random() < 0.3 else 2)
    elif n in ("do", "hear"):
        b = blob()
        code = getattr(lib, "pdkv_" + n)(h, b, len(b)) if r.random() < 0.95 else getattr(lib, "pdkv_" + n)(h, None, 5)
    elif n in ("collect", "orders", "poll", "status"):
        code = getattr(lib, "pdkv_" + n)(h, *room, out)
        if n == "orders" and code == 0 and out is not None and size.value:
            orders = bytes(buf)[:size.value]
    elif n == "gone":
        code = lib.pdkv_gone(h, name(), number())
    elif n == "admit":
        code = lib.pdkv_admit(h, r.choice([0, 1, 2, 3, -1]), r.choice([tid(), tid(), None]), name(), r.choice([0, 7]), r.choice([None, b"", b"x" * 30, b"x" * 5000]))
    elif n == "cancel":
        code = lib.pdkv_cancel(h, r.choice([tid(), tid(), None]), r.choice([None, b"why", b"w" * 5000]))
    else:
        code = getattr(lib, "pdkv_" + n)(h, transfer())
    calls[n] += 1
    if code < 0:
        assert -13 <= code and code != pdkv.EINTERNAL and code != pdkv.EFORKED, (seed, n, code, pdkv.error(lib))
        assert pdkv.error(lib), (seed, n, code)
    else:
        good += 1
for h in handles:
    assert lib.pdkv_close(h) == 0, (seed, pdkv.error(lib))
    assert lib.pdkv_close(h) == pdkv.EHANDLE
assert published > 0 and good > 200 and min(calls.values()) > 20, (seed, good, calls)
print("ok")
