"""libpdkv through ctypes, for the tests: as thin as it can be, and an engine that a test steers by lines of JSON."""
import ctypes as C
import json
import mmap
import os
import select
import struct
import sys

ABI = 2
EARGUMENT, EHANDLE, ESTATE, EROOM, EFORKED, ECONFIG, EABI, EFULL, ETICKET, EARLY, EKNOWN, EINTERNAL, ESYSTEM = range(-1, -14, -1)
KINDS = ["", "published", "broken", "clear", "", "", "released", "failed", "closed", "freed", "cancelled"]


class Region(C.Structure):
    _fields_ = [("layer", C.c_int32), ("planes", C.c_int32), ("base", C.c_uint64), ("length", C.c_uint64), ("blocks", C.c_uint64),
                ("block_stride", C.c_uint64), ("plane_stride", C.c_uint64), ("head_stride", C.c_uint64), ("token_stride", C.c_uint64),
                ("device", C.c_int32), ("reserved", C.c_int32)]


class Blocks(C.Structure):
    _fields_ = [("first", C.c_int64), ("ids", C.POINTER(C.c_int32)), ("count", C.c_uint64)]


class Transfer(C.Structure):
    _fields_ = [("id", C.c_uint8 * 16), ("peer", C.c_char_p), ("generation", C.c_uint64), ("start", C.c_int64), ("end", C.c_int64),
                ("groups", C.POINTER(Blocks)), ("n_groups", C.c_uint64), ("prompt", C.POINTER(C.c_int32)), ("n_prompt", C.c_uint64),
                ("wait_ms", C.c_int64)]


def load(path):
    lib = C.CDLL(path)
    size, handle = C.POINTER(C.c_size_t), C.c_int64
    for name, args in {
        "open": [C.c_uint32, C.c_char_p, C.c_size_t, C.POINTER(handle)], "close": [handle], "fd": [handle],
        "register": [handle, C.POINTER(Region), C.c_size_t], "publish": [handle], "do": [handle, C.c_char_p, C.c_size_t],
        "collect": [handle, C.c_void_p, C.c_size_t, size], "gone": [handle, C.c_char_p, C.c_uint64],
        "admit": [handle, C.c_int32, C.c_char_p, C.c_char_p, C.c_uint64, C.c_char_p], "queue": [handle, C.POINTER(Transfer)],
        "expect": [handle, C.POINTER(Transfer)], "offer": [handle, C.POINTER(Transfer)], "cancel": [handle, C.c_char_p, C.c_char_p],
        "orders": [handle, C.c_void_p, C.c_size_t, size], "hear": [handle, C.c_char_p, C.c_size_t],
        "poll": [handle, C.c_void_p, C.c_size_t, size], "status": [handle, C.c_void_p, C.c_size_t, size],
    }.items():
        f = getattr(lib, "pdkv_" + name)
        f.argtypes, f.restype = args, C.c_int32
    lib.pdkv_abi.restype = C.c_uint32
    lib.pdkv_version.restype = C.c_char_p
    lib.pdkv_error.argtypes, lib.pdkv_error.restype = [C.c_char_p, C.c_size_t], C.c_size_t
    assert lib.pdkv_abi() == ABI, lib.pdkv_abi()
    return lib


def error(lib):
    text = C.create_string_buffer(4096)
    lib.pdkv_error(text, len(text))
    return text.value.decode()


def check(lib, code):
    if code < 0:
        raise RuntimeError(f"{code}: {error(lib)}")
    return code


def opened(lib, config):
    h, text = C.c_int64(), json.dumps(config).encode()
    check(lib, lib.pdkv_open(ABI, text, len(text), C.byref(h)))
    return h


def taken(lib, call, h):
    """The bytes that collect, orders or status gives, into a buffer that first is too small. A status may grow meanwhile."""
    n, buf = C.c_size_t(), C.create_string_buffer(16)
    while (code := call(h, buf, len(buf), C.byref(n))) == EROOM:
        buf = C.create_string_buffer(n.value)
    check(lib, code)
    return buf.raw[:n.value]


def polled(lib, h):
    buf, n = (C.c_uint64 * 8192)(), C.c_size_t()
    count, at, raw = check(lib, lib.pdkv_poll(h, buf, C.sizeof(buf), C.byref(n))), 0, None
    raw = bytes(buf)[:n.value]
    for _ in range(count):
        size, kind, tid, reason, pp, tp, k, all_, tokens, ranges, groups, bytes_, text = struct.unpack_from("=II16sIiiiiiIIQI", raw, at)
        x = at + 72 + 16 * ranges
        counts = struct.unpack_from(f"={groups}I", raw, x)
        x += 4 * groups
        blocks = []
        for c in counts:
            blocks.append(list(struct.unpack_from(f"={c}i", raw, x)))
            x += 4 * c
        yield {"kind": KINDS[kind], "id": tid.hex(), "bytes": bytes_, "blocks": blocks, "k": k, "n": all_, "text": raw[x:x + text].decode()}
        at += size


LAYERS, HEADS, HEAD_BYTES, TOKENS, BLOCKS = 2, 2, 64, 16, 256
BLOCK = HEADS * HEAD_BYTES * TOKENS


def engine(path):
    """Obeys one JSON object a line, and prints one for each answer and each result."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # UCX prints its messages on stdout, where one could come in the middle of a line
    lib, say = load(path), lambda x: print(json.dumps(x), file=told, flush=True)
    c = json.loads(sys.stdin.readline())
    head = {"engine": c["engine"], "role": c["role"], "times": {"net_delay": "50ms"}}
    scheduler = opened(lib, {"kind": "scheduler", **head, "gateway": {"record_keys": [c["keys"]]}})
    rank = opened(lib, {
        "kind": "rank", **head, "generation": c["generation"], "compatibility": "same", "transport": {"name": c["transport"]},
        "gateway": {"url": c["url"], "token_file": c["token"], "record_keys": [c["keys"]]},
        "cache": {"block_tokens": TOKENS, "heads": HEADS, "head_bytes": HEAD_BYTES, "dtype": "f32"}})
    memory = mmap.mmap(-1, LAYERS * BLOCKS * BLOCK)
    memory[:] = os.urandom(len(memory))
    base, regions = C.addressof(C.c_char.from_buffer(memory)), (Region * LAYERS)()
    for i in range(LAYERS):
        regions[i] = Region(i, 1, base + i * BLOCKS * BLOCK, BLOCKS * BLOCK, BLOCKS, BLOCK, BLOCK, HEAD_BYTES * TOKENS, HEAD_BYTES, 0, 0)
    check(lib, lib.pdkv_register(rank, regions, LAYERS))
    check(lib, lib.pdkv_publish(rank))

    def transfer(m):
        ids = (C.c_int32 * len(m["blocks"]))(*m["blocks"])
        groups = (Blocks * 1)(Blocks(0, ids, len(ids)))
        prompt = (C.c_int32 * 3)(1, 2, 3)
        return Transfer((C.c_uint8 * 16)(*bytes.fromhex(m["id"])), m["peer"].encode(), m["generation"], 0, len(ids) * TOKENS, groups, 1,
                        prompt, 3, 20000)

    def obey(m):
        tid = bytes.fromhex(m.get("id", ""))
        if m["do"] == "admit":
            check(lib, lib.pdkv_admit(scheduler, m["leg"], tid, m["peer"].encode(), m["generation"], m["ticket"].encode()))
        elif m["do"] in ("expect", "offer"):
            check(lib, getattr(lib, "pdkv_" + m["do"])(scheduler, C.byref(transfer(m))))
        elif m["do"] == "cancel":
            check(lib, lib.pdkv_cancel(scheduler, tid, b"test"))
        elif m["do"] == "read":
            return {"bytes": [bytes(memory[(i * BLOCKS + b) * BLOCK:(i * BLOCKS + b + 1) * BLOCK]).hex() for i in range(LAYERS) for b in m["blocks"]]}
        elif m["do"] == "status":
            return json.loads(taken(lib, lib.pdkv_status, rank))
        return {}

    rest, fds = b"", [0, lib.pdkv_fd(scheduler), lib.pdkv_fd(rank)]
    while True:
        orders = taken(lib, lib.pdkv_orders, scheduler)
        check(lib, lib.pdkv_do(rank, orders, len(orders)))
        news = list(polled(lib, rank))  # first: the scheduler hears the generation before "published" is said
        report = taken(lib, lib.pdkv_collect, rank)
        check(lib, lib.pdkv_hear(scheduler, report, len(report)))
        for x in [*news, *polled(lib, scheduler)]:
            say(x)
        ready, _, _ = select.select(fds, [], [])
        if 0 in ready:
            more = os.read(0, 1 << 16)
            if not more:
                break
            rest += more
            *lines, rest = rest.split(b"\n")
            for line in lines:
                m = json.loads(line)
                try:
                    say({"kind": "did", "text": m["do"], "answer": obey(m)})
                except RuntimeError as e:
                    say({"kind": "did", "text": m["do"], "error": str(e)})
    check(lib, lib.pdkv_close(scheduler))
    check(lib, lib.pdkv_close(rank))


if __name__ == "__main__":
    engine(sys.argv[1])
