"""Two engines of the connector's own code hand KV over through the real library: hand_off.py LIBRARY PLAN. PLAN is a JSON file with
the gateway, the engines' tokens and generations, the seed, whether the cache is latent (MLA: one head, of which every rank has a copy),
and a transfer id with both tickets for each request.

There is no vLLM and no model. What vLLM's scheduler does is played by fakes.FakeVllm, with the same assertions; KV is bytes that say
whose they are. Prefill has two tensor-parallel ranks, decode one. Requests leave at random moments on either side. What decode reads
must be prefill's, to the byte, unless the load has failed and it was computed here; what is free must not be written into.
"""

import ctypes
import hashlib
import json
import pathlib
import random
import select
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from pdrouter_vllm.library import DECODE, PREFILL, Library, Rank, Scheduler  # noqa: E402
from pdrouter_vllm.settings import Settings  # noqa: E402
from pdrouter_vllm.worker import Worker  # noqa: E402
from tests.fakes import BLOCK, QUIET, FakeVllm, Request, params  # noqa: E402

LAYERS, HEADS, WIDTH, BLOCKS = 2, 4, 8, 40
POISON = b"\xee" * WIDTH


def kv(name, layer, head, token):
    """The bytes of one head of one token."""
    return hashlib.blake2b(f"{name} {layer} {head} {token}".encode(), digest_size=WIDTH).digest()


class Engine(FakeVllm):
    def __init__(self, lib, role, tp, plan):
        name = {PREFILL: "prefill-0", DECODE: "decode-0"}[role]
        self.name, self.tp, self.read, self.computed = name, tp, 0, 0
        s = Settings.parse({"engine": name, "gateway": plan["gateway"], "token_file": plan["tokens"][name], "record_keys": [plan["keys"]], "transport": "tcp", "log_level": "error"})
        word, size = name.split("-")[0], {"pp": 1, "tp": tp}
        self.replicated, self.heads = plan["latent"], 1 if plan["latent"] else HEADS // tp
        heads = self.heads
        super().__init__(role, BLOCKS, tp, recompute=True, plane=Scheduler(lib, s.scheduler(word, size)))
        cache = {"block_tokens": BLOCK, "physical": 1, "heads": 1 if self.replicated else HEADS, "head_bytes": WIDTH, "order": "hnd", "dtype": "bytes", "replicated": self.replicated, "memory": "dram"}
        page = heads * BLOCK * WIDTH
        self.memory, self.workers = [], []
        for r in range(tp):
            layers = [(ctypes.c_uint8 * (page * BLOCKS))() for _ in range(LAYERS)]
            regions = [
                {"layer": i, "planes": 1, "base": ctypes.addressof(m), "length": len(m), "blocks": BLOCKS, "block_stride": page, "plane_stride": 0,
                 "head_stride": BLOCK * WIDTH, "token_stride": WIDTH, "device": 0} for i, m in enumerate(layers)
            ]  # fmt: skip
            w = Worker(Rank(lib, s.rank(word, plan["generations"][name], {"pp": 0, "tp": r}, size, "same", cache)), QUIET, None)
            assert w.open(regions, 20), "the gateway does not answer"
            self.memory.append(layers)
            self.workers.append(w)
        self.legs.heard([w.handshake().report for w in self.workers])
        for b in range(1, BLOCKS):
            for place, _, _, _ in self.places([b]):
                place(POISON)

    def places(self, table):
        """For each piece of the blocks: what reads or writes it, its layer, head and token."""
        for j, block in enumerate(table):
            for r, layers in enumerate(self.memory):
                for i, m in enumerate(layers):
                    for h in range(self.heads):
                        for o in range(BLOCK):
                            at = ((block * self.heads + h) * BLOCK + o) * WIDTH

                            def touch(value=None, m=m, at=at):
                                if value is None:
                                    return bytes(m[at : at + WIDTH])
                                m[at : at + WIDTH] = value

                            yield touch, i, h if self.replicated else r * self.heads + h, j * BLOCK + o

    def gives(self, table):
        for touch, *_ in self.places(table):
            assert touch() == POISON, f"{self.name}: something was written into a free block"

    def runs(self, r):
        for touch, layer, head, token in self.places(r.table):
            if token >= len(r.prompt):
                continue
            want = kv(r.ident.hex(), layer, head, token)
            if r.local:
                touch(want)
            else:
                assert touch() == want, f"{self.name}: {r.name}: layer {layer}, head {head}, token {token} is not prefill's"
        self.computed += r.local
        self.read += not r.local

    def frees(self, r):
        for touch, *_ in self.places(r.table):
            touch(POISON)

    def says(self, orders):
        said = None
        for w in self.workers:
            w.begin(orders)
            assert w.results() == (set(orders.closed), set(orders.failed)) and w.failed_blocks() == set(orders.failed_blocks)
            one = w.reports()
            if one is not None:
                said = said.aggregate(one) if said else one
        return said

    def handles(self):
        return [self.plane, *(w._plane for w in self.workers)]


def main():
    plan = json.loads(pathlib.Path(sys.argv[2]).read_text())
    rand = random.Random(plan["seed"])
    lib = Library.load(sys.argv[1])
    p, d = Engine(lib, PREFILL, 2, plan), Engine(lib, DECODE, 1, plan)
    todo = list(enumerate(plan["transfers"]))
    left, leaves = 0, {}
    end = time.monotonic() + 50
    while todo or p.requests or d.requests or p.legs.pending() or d.legs.pending():
        assert time.monotonic() < end, f"not over: {p.legs.open()}, {d.legs.open()}, {p.plane.status()}, {[w._plane.status() for w in d.workers]}"
        if todo and len(d.requests) < 6 and len(p.requests) < 6:
            number, t = todo.pop(0)
            ident, prompt = bytes.fromhex(t["id"]), list(range(rand.randrange(1, 5 * BLOCK)))
            legs = [(p, "prefill", "decode-0"), (d, "decode", "prefill-0")]
            rand.shuffle(legs)
            if number % 5 == 0:
                leaves[rand.choice((p, d)), f"r{number}"] = rand.choice((1, 2, 4))  # steps until its client leaves
            for e, side, peer in legs:
                who = {"engine": peer, "generation": plan["generations"][peer]}
                e.take(Request(f"r{number}", ident, e.role, prompt), params(ident, e.role, peer=who, valid_ms=20000, ticket=t[side]))
        for e in (p, d):
            e.step()
            for r in [r for r in e.requests.values() if r.state != "done"]:
                leaves[e, r.name] = leaves.get((e, r.name), 0) - 1
                if leaves[e, r.name] == 0:
                    left += 1
                    e.finish(r.name, whole=False)
                elif r.state == "running" and rand.random() < 0.3:
                    e.finish(r.name)
        select.select([*p.handles(), *d.handles()], [], [], 0.001)
    for e in (p, d):
        e.gives(e.free_blocks)  # nothing landed late
        assert len(e.free_blocks) == BLOCKS - 1, "blocks are lost"
        for handle in e.handles():
            handle.close()
    print(json.dumps({"read": d.read, "computed": d.computed, "left": left, "refused": [p.legs.refused, d.legs.refused], "ended": [p.legs.ended, d.legs.ended]}))


if __name__ == "__main__":
    main()
