"""A process that writes over the place where its environment lay at its start, as those do that set a title, is still understood: what it
was told of NIXL stays, and what it was not told is set."""
import ctypes
import os
import sys

import pdkv


def main():
    values = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)  # the list and its texts lie elsewhere from here on
    with open("/proc/self/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])  # proc_pid_stat(5): env_start, env_end
    ctypes.memset(begin, 0, end - begin)
    lib = pdkv.load(sys.argv[1])
    h = pdkv.opened(lib, {
        "kind": "rank", "engine": "e", "compatibility": "c", "log": {"level": "error"}, "gateway": {"url": "http://127.0.0.1:1", "token_file": __file__},
        "transport": {"name": "nixl"}, "cache": {"block_tokens": 16, "heads": 1, "head_bytes": 16, "dtype": "f32"}})
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    told, left = getenv(b"UCX_TCP_CONN_NB"), getenv(b"UCX_HANDLE_ERRORS")
    assert (told, left) == (b"told", b"none"), (told, left)
    pdkv.check(lib, lib.pdkv_close(h))
    print("ok")


main()
