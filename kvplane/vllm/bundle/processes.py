"""Process groups that are started and, whatever happens, ended. Standard library only."""

import contextlib
import os
import signal
import socket
import subprocess
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failed(Exception):
    """Why the trial cannot go on."""


class Groups:
    def __init__(self, folder):
        """folder: of what the processes say, NAME.log."""
        self.folder, self.running = folder, {}

    def start(self, name, argv, **env):
        with open(self.folder / f"{name}.log", "wb") as log:
            p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **env}, start_new_session=True)
        self.running[name] = p  # p.pid is its process group, too

    def stop(self, *names):
        """Ends process groups: first as one asks, then whatever is left of them."""
        for name in names:
            group(self.running[name], signal.SIGTERM)
        for name in names:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running[name].wait(30)
            group(self.running[name], signal.SIGKILL)
            self.running.pop(name).wait()

    def end(self):
        """Ends all that run."""
        for name in list(self.running):
            self.stop(name)

    def until(self, what, true, seconds):
        """Waits, as long as all processes live."""
        end = time.monotonic() + seconds
        while not true():
            for name, p in self.running.items():
                if p.poll() is not None:
                    raise Failed(f"{name} has ended with status {p.returncode} before {what}")
            if time.monotonic() > end:
                raise Failed(f"not within {seconds:.0f} s: {what}")
            time.sleep(0.25)


def group(process, signal_):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal_)


def free(n):
    """Base URLs on n ports of loopback that nobody uses."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return ["http://127.0.0.1:{}".format(s.getsockname()[1]) for s in taken]


def stopped(number, _):
    """What to do at one of SIGNALS: the program ends in the ordinary way."""
    deaf()
    raise Failed(f"stopped by {signal.Signals(number).name}")


def deaf():
    """What ends the processes is not interrupted."""
    for s in SIGNALS:
        signal.signal(s, signal.SIG_IGN)
