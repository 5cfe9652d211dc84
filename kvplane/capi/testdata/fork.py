"""A child that was forked is told so, and hangs nowhere; one that loads the library itself, after the fork, works."""
import os
import signal
import sys

import pdkv

OPEN = {"kind": "scheduler", "engine": "e"}


def child(f):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # a hang is a failure
        code = 1
        try:
            f()
            code = 0
        finally:
            os._exit(code)
    _, how = os.waitpid(pid, 0)
    assert how == 0, how


def fresh():
    lib = pdkv.load(sys.argv[1])
    h = pdkv.opened(lib, OPEN)
    pdkv.check(lib, lib.pdkv_close(h))


child(fresh)
lib = pdkv.load(sys.argv[1])
h = pdkv.opened(lib, OPEN)


def told():
    for name in ("open", "close", "fd", "register", "publish", "do", "collect", "gone", "admit", "queue", "expect", "offer", "cancel",
                 "orders", "hear", "poll", "status"):
        f = getattr(lib, "pdkv_" + name)
        args = [t() if t not in (pdkv.C.c_char_p, pdkv.C.c_void_p) else None for t in f.argtypes]
        if name == "open":
            args[0] = pdkv.ABI
        code = f(*args)
        assert code == pdkv.EFORKED and "forked" in pdkv.error(lib), (name, code, pdkv.error(lib))
    assert lib.pdkv_abi() == pdkv.ABI


child(told)
child(lambda: child(told))  # and its own children
assert list(pdkv.polled(lib, h)) == []  # the parent goes on
pdkv.check(lib, lib.pdkv_close(h))
print("ok")
