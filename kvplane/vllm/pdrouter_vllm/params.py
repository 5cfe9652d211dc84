"""kv_transfer_params as the gateway sends them with a leg."""

import dataclasses
import re

from .library import DECODE, PREFILL

MAX_VALID_MS = 3_600_000
_HEX = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class Handoff:
    """A leg of a transfer."""

    leg: int  # PREFILL or DECODE
    id: bytes  # 16
    peer: str  # the other engine
    generation: int  # of its run
    valid_ms: int  # how long the other leg may take
    ticket: str | None


class BadParams(ValueError):
    """The params make no leg."""


def parse_params(params):
    """Returns the Handoff that params name, None if they name none. BadParams says what is wrong with them."""
    if not params:
        return None
    if not isinstance(params, dict):
        raise BadParams("want an object")
    produce, consume = params.get("do_remote_decode"), params.get("do_remote_prefill")
    if not produce and not consume:
        return None
    if produce not in (True, False, None) or consume not in (True, False, None) or produce == consume:
        raise BadParams("want one of do_remote_decode and do_remote_prefill true")
    ident, peer, valid = params.get("transfer_id"), params.get("peer"), params.get("valid_ms")
    if not isinstance(ident, str) or not _HEX.fullmatch(ident) or not int(ident, 16):
        raise BadParams("transfer_id: want 32 lower-case hexadecimal digits")
    if not isinstance(peer, dict):
        raise BadParams("peer: want an object")
    name, generation = peer.get("engine"), peer.get("generation")
    if not isinstance(name, str) or not 1 <= len(name) <= 128 or "\0" in name:
        raise BadParams("peer.engine: want a name")
    if not _whole(generation, 1, 2**64 - 1):
        raise BadParams("peer.generation: want a number above 0")
    if not _whole(valid, 1, MAX_VALID_MS):
        raise BadParams(f"valid_ms: want 1 to {MAX_VALID_MS}")
    ticket = params.get("ticket")
    if ticket is not None and (not isinstance(ticket, str) or "\0" in ticket):
        raise BadParams("ticket: want a text")
    return Handoff(PREFILL if produce else DECODE, bytes.fromhex(ident), name, generation, valid, ticket)


def _whole(n, least, most):
    return isinstance(n, int) and not isinstance(n, bool) and least <= n <= most
