"""A process keeps its signals with the library loaded and a handle open: handlers run, sleeps are interrupted, and
faulthandler reports a fault wherever it is, enabled before the library was loaded or after."""
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time

import pdkv


def agent(lib):
    """An agent over the transport that there is: with NIXL, whose UCX would take signals."""
    h = pdkv.opened(lib, {
        "kind": "rank", "engine": "e", "compatibility": "c", "log": {"level": "error"}, "gateway": {"url": "http://127.0.0.1:1", "token_file": __file__},
        "transport": {"name": sys.argv[2]}, "cache": {"block_tokens": 16, "heads": 1, "head_bytes": 16, "dtype": "f32"}})
    memory = pdkv.mmap.mmap(-1, 1 << 16)
    region = pdkv.Region(0, 1, pdkv.C.addressof(pdkv.C.c_char.from_buffer(memory)), len(memory), 256, 256, 256, 256, 16, 0, 0)
    pdkv.check(lib, lib.pdkv_register(h, pdkv.C.byref(region), 1))
    pdkv.check(lib, lib.pdkv_publish(h))
    while not pdkv.json.loads(pdkv.taken(lib, lib.pdkv_status, h))["open"]:
        for x in pdkv.polled(lib, h):
            raise AssertionError(x)
        time.sleep(0.01)
    return h, memory


def fault(before):
    """Dies of a null pointer outside of the library, or just ends."""
    if before:
        faulthandler.enable()
    lib = pdkv.load(sys.argv[1])
    keep = agent(lib)
    if not before:
        faulthandler.enable()
    if sys.argv[3] == "exit":
        return
    pdkv.C.string_at(0)
    raise AssertionError(keep)


def main():
    if len(sys.argv) > 3:
        return fault(sys.argv[3] == "before")
    seen = []
    signal.signal(signal.SIGTERM, lambda n, _: seen.append(n))
    lib = pdkv.load(sys.argv[1])
    h = pdkv.opened(lib, {"kind": "scheduler", "engine": "e", "control": {"listen": "127.0.0.1:0"}})
    rank, _ = agent(lib)
    for n in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(n, lambda n, _: seen.append(n))
    for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(os.getpid(), n)
    assert seen == [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1], seen

    # Ctrl-C comes out of a wait for the library's descriptor, and out of calls into it.
    for wait in (lambda: pdkv.select.select([lib.pdkv_fd(h)], [], [], 60), lambda: time.sleep(60), lambda: spin(lib, h)):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            wait()
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            pass
    pdkv.check(lib, lib.pdkv_close(h))
    pdkv.check(lib, lib.pdkv_close(rank))

    # A child process can be run and its end is seen.
    assert subprocess.run([sys.executable, "-c", "raise SystemExit(7)"]).returncode == 7

    # One that ends without closing anything ends.
    assert subprocess.run([sys.executable, __file__, sys.argv[1], sys.argv[2], "exit"]).returncode == 0

    for order in ("before", "after"):
        died = subprocess.run([sys.executable, __file__, sys.argv[1], sys.argv[2], order], stderr=subprocess.PIPE)
        assert died.returncode == -signal.SIGSEGV, (order, died)
        assert b"Fatal Python error: Segmentation fault" in died.stderr and b"string_at" in died.stderr, (order, died.stderr)
    print("ok")


def spin(lib, h):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        list(pdkv.polled(lib, h))


main()
