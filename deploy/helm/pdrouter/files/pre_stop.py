"""Waits until the engine of this pod may end without harm to a request: asks every gateway. Usage: HOST PORT ENGINE SECONDS."""
import socket
import sys
import time
import urllib.error
import urllib.request

host, port, engine, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])


def may_stop(address):
    at = f"[{address}]" if ":" in address else address
    try:
        urllib.request.urlopen(f"http://{at}:{port}/may-stop?engine={engine}", timeout=2).close()
    except urllib.error.HTTPError as refused:
        return refused.code != 503  # another status is no answer to this question
    except OSError:
        return True  # that gateway is gone
    return True


end = time.monotonic() + seconds
while time.monotonic() < end:
    try:
        gateways = {found[4][0] for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        gateways = set()
    if all([may_stop(address) for address in gateways]):
        sys.exit(0)
    time.sleep(0.5)
print(f"{engine}: gateways still need it after {seconds:.0f} s", file=sys.stderr)
