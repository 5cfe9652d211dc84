"""libpdkv over ctypes: its functions as methods, its results as values. The header pdkv.h is the contract; nothing here decides
anything. The library is loaded when it is first used, never at import: it does not survive a fork.
"""

import array
import ctypes
import dataclasses
import enum
import json
import os
import pathlib
import struct
import threading

ABI = 2

PREFILL, DECODE = 1, 2


class Code(enum.IntEnum):
    """Errors of the library."""

    ARGUMENT = -1
    HANDLE = -2
    STATE = -3
    ROOM = -4
    FORKED = -5
    CONFIG = -6
    ABI = -7
    FULL = -8
    TICKET = -9
    EARLY = -10
    KNOWN = -11
    INTERNAL = -12
    SYSTEM = -13


class Kind(enum.IntEnum):
    """Kinds of results."""

    PUBLISHED = 1
    BROKEN = 2
    CLEAR = 3
    RELEASED = 6
    FAILED = 7
    CLOSED = 8
    FREED = 9
    CANCELLED = 10


class LibraryError(Exception):
    """A call that the library refused; nothing was done."""

    def __init__(self, call, code, text):
        super().__init__(f"pdkv: {call}: {text or code}")
        self.code = code
        self.text = text


@dataclasses.dataclass(frozen=True)
class Result:
    """What pdkv_poll gives."""

    kind: int
    id: bytes = bytes(16)
    reason: str = ""  # its name; "" is none
    text: str = ""
    pp: int = 0
    tp: int = 0
    k: int = 0
    n: int = 0
    tokens: int = 0
    bytes: int = 0
    ranges: tuple = ()  # (address, length)
    blocks: tuple = ()  # of each group


_HEAD = struct.Struct("<II16sIiiiiiIIQII")


def parse_results(raw, count):
    """Reads count results of pdkv_poll."""
    out, at = [], 0
    for _ in range(count):
        size, kind, ident, reason, pp, tp, k, n, tokens, ranges, groups, moved, text, _ = _HEAD.unpack_from(raw, at)
        place = at + _HEAD.size
        pairs = struct.unpack_from(f"<{2 * ranges}Q", raw, place)
        place += 16 * ranges
        counts = struct.unpack_from(f"<{groups}I", raw, place)
        place += 4 * groups
        blocks = []
        for many in counts:
            blocks.append(struct.unpack_from(f"<{many}i", raw, place))
            place += 4 * many
        said = bytes(raw[place : place + text]).decode("utf-8", "replace")
        out.append(
            Result(
                kind=kind, id=ident, reason=said.split(":", 1)[0] if reason else "", text=said, pp=pp, tp=tp, k=k, n=n, tokens=tokens,
                bytes=moved, ranges=tuple(zip(pairs[::2], pairs[1::2])), blocks=tuple(blocks),
            )
        )  # fmt: skip
        if size < _HEAD.size or place + text > at + size:
            raise ValueError(f"pdkv: a result of {size} bytes")
        at += size
    return out


class _Region(ctypes.Structure):
    _fields_ = [
        ("layer", ctypes.c_int32), ("planes", ctypes.c_int32), ("base", ctypes.c_uint64), ("length", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64), ("block_stride", ctypes.c_uint64), ("plane_stride", ctypes.c_uint64),
        ("head_stride", ctypes.c_uint64), ("token_stride", ctypes.c_uint64), ("device", ctypes.c_int32), ("reserved", ctypes.c_int32),
    ]  # fmt: skip


class _Blocks(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int64), ("ids", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_uint64)]


class _Transfer(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint8 * 16), ("peer", ctypes.c_char_p), ("generation", ctypes.c_uint64), ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64), ("groups", ctypes.POINTER(_Blocks)), ("n_groups", ctypes.c_uint64),
        ("prompt", ctypes.POINTER(ctypes.c_int32)), ("n_prompt", ctypes.c_uint64), ("wait_ms", ctypes.c_int64),
    ]  # fmt: skip


SIZES = {"region": ctypes.sizeof(_Region), "blocks": ctypes.sizeof(_Blocks), "transfer": ctypes.sizeof(_Transfer), "result": _HEAD.size}

_H, _N, _B, _S = ctypes.c_int64, ctypes.c_size_t, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t)
_SIGNATURES = {
    "pdkv_open": [ctypes.c_uint32, _B, _N, ctypes.POINTER(_H)],
    "pdkv_close": [_H],
    "pdkv_fd": [_H],
    "pdkv_register": [_H, ctypes.POINTER(_Region), _N],
    "pdkv_publish": [_H],
    "pdkv_do": [_H, _B, _N],
    "pdkv_collect": [_H, ctypes.c_void_p, _N, _S],
    "pdkv_admit": [_H, ctypes.c_int32, _B, _B, ctypes.c_uint64, _B],
    "pdkv_queue": [_H, ctypes.POINTER(_Transfer)],
    "pdkv_expect": [_H, ctypes.POINTER(_Transfer)],
    "pdkv_offer": [_H, ctypes.POINTER(_Transfer)],
    "pdkv_cancel": [_H, _B, _B],
    "pdkv_orders": [_H, ctypes.c_void_p, _N, _S],
    "pdkv_hear": [_H, _B, _N],
    "pdkv_poll": [_H, ctypes.c_void_p, _N, _S],
    "pdkv_status": [_H, ctypes.c_void_p, _N, _S],
}


class Library:
    """The loaded library. One for a process."""

    _lock = threading.Lock()
    _loaded: dict = {}

    @classmethod
    def load(cls, path=None):
        """Loads the library at path, or the one in this package, and checks its ABI."""
        path = os.fspath(path or pathlib.Path(__file__).with_name("libpdkv.so"))
        with cls._lock:
            if path not in cls._loaded:
                cls._loaded[path] = cls(path)
            return cls._loaded[path]

    def __init__(self, path):
        try:
            self._dll = ctypes.CDLL(path)
        except OSError as err:
            raise LibraryError("load", 0, f"{err}; is the wheel built for this machine?") from err
        self._dll.pdkv_abi.restype = ctypes.c_uint32
        self._dll.pdkv_version.restype = ctypes.c_char_p
        self._dll.pdkv_error.argtypes, self._dll.pdkv_error.restype = [ctypes.c_char_p, _N], _N
        if self._dll.pdkv_abi() != ABI:
            raise LibraryError("load", Code.ABI, f"{path} has ABI {self._dll.pdkv_abi()}; this package was written for {ABI}")
        for name, types in _SIGNATURES.items():
            function = getattr(self._dll, name)
            function.argtypes, function.restype = types, ctypes.c_int32

    @property
    def version(self):
        return self._dll.pdkv_version().decode()

    def call(self, name, *args):
        """Calls a function and raises what it refuses."""
        code = getattr(self._dll, "pdkv_" + name)(*args)
        if code < 0:
            raise LibraryError(name, code, self._text())
        return code

    def _text(self):
        buf = ctypes.create_string_buffer(self._dll.pdkv_error(None, 0) + 1)
        self._dll.pdkv_error(buf, len(buf))
        return buf.value.decode("utf-8", "replace")


class _Handle:
    def __init__(self, library, kind, config):
        self._lib = library
        text = json.dumps({"kind": kind, **config}).encode()
        handle = ctypes.c_int64()
        library.call("open", ABI, text, len(text), ctypes.byref(handle))
        self._h = handle.value
        self._room = 1 << 16
        self._buf = self._new()

    def _new(self):
        return (ctypes.c_uint64 * (self._room // 8))()  # results are aligned to 8

    def _fill(self, name):
        """Calls a function that writes into a buffer, with as much room as it needs."""
        length = ctypes.c_size_t()
        while True:
            try:
                code = self._lib.call(name, self._h, self._buf, self._room, ctypes.byref(length))
                return code, memoryview(self._buf).cast("B")[: length.value]
            except LibraryError as err:
                if err.code != Code.ROOM or length.value <= self._room:
                    raise
                self._room = (length.value + (1 << 16)) & ~7
                self._buf = self._new()

    def poll(self):
        """Takes the results that are there."""
        out = []
        while True:
            count, raw = self._fill("poll")
            if count == 0:
                return out
            out += parse_results(raw, count)

    def status(self):
        return json.loads(bytes(self._fill("status")[1]))

    def fileno(self):
        return self._lib.call("fd", self._h)

    def close(self):
        """Ends the handle. Safe to call twice."""
        h, self._h = self._h, 0
        if h:
            self._lib.call("close", h)


class Rank(_Handle):
    """A rank's handle."""

    def __init__(self, library, config):
        super().__init__(library, "rank", config)

    def register(self, regions):
        """Adds KV memory: one dict of _Region's fields for each layer."""
        self._lib.call("register", self._h, (_Region * len(regions))(*[_Region(**r) for r in regions]), len(regions))

    def publish(self):
        self._lib.call("publish", self._h)

    def do(self, orders):
        self._lib.call("do", self._h, orders, len(orders))

    def collect(self):
        return bytes(self._fill("collect")[1])


class Scheduler(_Handle):
    """A scheduler's handle."""

    def __init__(self, library, config):
        super().__init__(library, "scheduler", config)

    def admit(self, leg, ident, peer, generation, ticket):
        self._lib.call("admit", self._h, leg, ident, peer.encode(), generation, None if ticket is None else ticket.encode())

    def queue(self, ident, peer, generation):
        self._transfer("queue", ident, peer, generation, 0, 0, (), (), 0)

    def expect(self, ident, peer, generation, need, groups, prompt, wait_ms):
        self._transfer("expect", ident, peer, generation, *need, groups, prompt, wait_ms)

    def offer(self, ident, peer, generation, tokens, groups, prompt):
        self._transfer("offer", ident, peer, generation, 0, tokens, groups, prompt, 0)

    def _transfer(self, name, ident, peer, generation, begin, end, groups, prompt, wait_ms):
        lists = [_ints(ids) for _, ids in groups]
        tokens = _ints(prompt)
        table = (_Blocks * len(lists))(*[_Blocks(first, ids, len(ids)) for (first, _), ids in zip(groups, lists)])
        t = _Transfer(
            (ctypes.c_uint8 * 16).from_buffer_copy(ident), peer.encode(), generation, begin, end, table, len(lists), tokens or None, len(tokens), wait_ms
        )
        self._lib.call(name, self._h, ctypes.byref(t))

    def cancel(self, ident, why):
        self._lib.call("cancel", self._h, ident, why.encode())

    def orders(self):
        return bytes(self._fill("orders")[1])

    def hear(self, report):
        self._lib.call("hear", self._h, report, len(report))


def _ints(values):
    """C's int32_t[] of whole numbers."""
    flat = array.array("i", values)
    return (ctypes.c_int32 * len(flat)).from_buffer(flat)
