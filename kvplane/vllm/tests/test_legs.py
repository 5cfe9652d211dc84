"""What becomes of legs, by a fake of vLLM's scheduler that asserts what vLLM asserts."""

import random
import unittest

from pdrouter_vllm.legs import LIVELY, RENEW, REST, State, own_blocks
from pdrouter_vllm.library import DECODE, PREFILL, Code, Kind, LibraryError

from .fakes import BLOCK, FakeVllm, ident, params


class Decode(unittest.TestCase):
    def setUp(self):
        self.v = FakeVllm(DECODE)

    def expected(self, name="a", number=1, tokens=10):
        r = self.v.add(name, number, tokens)
        self.v.step()
        self.assertEqual(r.state, "remote")
        return r

    def test_released(self):
        r = self.expected()
        call = [c for c in self.v.plane.calls if c[0] == "expect"]
        self.assertEqual(call, [("expect", r.ident, (0, 10), ((0, r.table),), 5000)])
        self.v.step()
        self.assertEqual(r.state, "remote", "it waits until it is released")
        self.assertEqual(self.v.legs.matched("a", 0), 0, "it is asked for once")
        self.v.plane.release(r.ident)
        self.v.step()
        self.v.step()
        self.assertEqual(r.state, "running")
        self.v.finish("a")
        self.assertTrue(self.v.idle())
        self.assertEqual(self.v.legs.ended, {"released": 1})

    def test_failure_is_told_at_once_and_blocks_stay_until_closed(self):
        r = self.expected()
        table = list(r.table)
        self.v.plane.fail(r.ident)
        orders = self.v.step()
        self.assertEqual(sorted(orders.failed_blocks), sorted(table))
        self.assertEqual((r.state, r.computed, r.table), ("remote", 0, table))
        self.v.plane.close(r.ident)
        orders = self.v.step()
        self.assertEqual((orders.closed, orders.failed_blocks), (("a",), ()), "what has failed is told once")
        self.v.step()
        self.assertEqual(r.state, "running", "decode computes the prompt itself")
        self.assertEqual([c[0] for c in self.v.plane.calls].count("expect"), 1)

    def test_failed_and_closed_in_one_step(self):
        r = self.expected()
        self.v.plane.fail(r.ident)
        self.v.plane.close(r.ident)
        self.v.step()
        self.v.step()
        self.v.step()
        self.assertEqual(r.state, "running")

    def test_quarantine_has_a_reason(self):
        r = self.expected()
        gone = self.expected("b", 2, 5)
        self.assertEqual(self.v.legs.quarantined(), {})
        self.v.plane.fail(r.ident, "deadline")
        self.v.finish("b", whole=False)
        self.v.step()
        self.assertEqual(self.v.legs.quarantined(), {"other-0": {"deadline": 3, "stopped": 2}})
        self.v.plane.close(r.ident)
        self.v.plane.release(gone.ident)
        self.v.step()
        self.assertEqual(self.v.legs.quarantined(), {})

    def test_ranks_wait_while_nothing_happens(self):
        v, legs = self.v, self.v.legs
        r = self.expected()
        self.assertEqual({legs.step(computes=False).rest for _ in range(2 * LIVELY)}, {0.0}, "ranks in processes of their own never do")
        legs.step()
        legs._rests = True
        rests = [legs.step(computes=False).rest for _ in range(LIVELY + 2)]
        self.assertEqual((rests[0], rests[-1]), (0.0, REST))
        self.assertEqual(legs.step(computes=True).rest, 0.0, "a step that computes waits for nothing")
        for stirs in (lambda: legs.heard((b"r",)), lambda: v.finish("a", whole=False), lambda: v.plane.close(r.ident)):
            while not legs.step(computes=False).rest:
                pass
            stirs()
            self.assertEqual(legs.step(computes=False).rest, 0.0)

    def test_policy_fail(self):
        self.v.recompute = False
        r = self.expected()
        self.v.plane.fail(r.ident)
        self.v.step()
        self.v.step()
        self.assertEqual(r.state, "done")
        self.assertTrue(r.table, "its blocks stay")
        self.v.plane.close(r.ident)
        self.v.step()
        self.v.step()
        self.assertTrue(self.v.idle())

    def test_client_leaves_while_it_waits(self):
        r = self.expected()
        self.v.finish("a", whole=False)
        self.assertEqual(self.v.plane.transfers[r.ident], "failing")
        self.v.step()
        self.assertTrue(r.table, "its blocks stay")
        self.v.plane.close(r.ident)
        orders = self.v.step()
        self.assertEqual((orders.closed, orders.failed_blocks), (("a",), ()))
        self.assertTrue(self.v.idle())

    def test_client_leaves_and_it_was_complete(self):
        r = self.expected()
        self.v.finish("a", whole=False)
        self.v.plane.release(r.ident)
        self.v.step()
        self.assertTrue(self.v.idle())

    def test_client_leaves_before_there_are_blocks(self):
        self.v.free_blocks = []
        r = self.v.add("a", 1, 10)
        self.v.step()
        self.v.finish("a", whole=False)
        self.assertEqual([c[0] for c in self.v.plane.calls], ["admit", "queue", "cancel"])
        self.assertNotIn(r.ident, self.v.plane.transfers)

    def test_queued_is_said_again(self):
        self.v.free_blocks = []
        self.v.add("a", 1, 10)
        for _ in range(3):
            self.v.step()
        self.v.now += RENEW
        self.v.step()
        self.assertEqual([c[0] for c in self.v.plane.calls], ["admit", "queue", "queue"])

    def test_queue_lapses(self):
        blocks, self.v.free_blocks = self.v.free_blocks, []
        r = self.v.add("a", 1, 10)
        self.v.step()
        self.v.plane.fail(r.ident)
        self.v.step()
        self.v.free_blocks = blocks
        self.v.step()
        self.assertEqual(r.state, "running")
        self.assertEqual(self.v.legs.ended, {"lapsed": 1})

    def test_queue_lapses_as_blocks_come(self):
        blocks, self.v.free_blocks = self.v.free_blocks, []
        r = self.v.add("a", 1, 10)
        self.v.step()
        self.v.plane.fail(r.ident)
        self.v.free_blocks = blocks  # vLLM gives blocks before the failure is polled
        orders = self.v.step()
        self.assertEqual((orders.closed, self.v.legs.blocks(State.EXPECTED)), (("a",), 0))
        self.v.step()
        self.v.step()
        self.assertEqual(r.state, "running")
        self.assertEqual(self.v.legs.ended, {"failed_refused": 1})

    def test_expectation_that_is_refused(self):
        for known in (True, False):
            v = FakeVllm(DECODE)
            v.plane.refuse["expect"] = LibraryError("expect", Code.FULL, "full")
            r = v.add("a", 1, 10)
            if not known:  # the blocks make no sense: the request is told by name
                v.legs._block = 3
            orders = v.step()
            self.assertEqual(orders.closed, ("a",))
            self.assertEqual(bool(orders.failed_blocks), known)
            self.assertEqual(orders.failed, () if known else ("a",))
            v.step()
            v.step()
            self.assertEqual(r.state, "running")

    def test_gateway_cancels(self):
        r = self.expected()
        self.v.plane.cancelled(r.ident)
        self.v.plane.fail(r.ident, "cancelled")
        self.v.plane.close(r.ident)
        for _ in range(3):
            self.v.step()
        self.assertEqual(r.state, "running", "until its client is gone")

    def test_prefix_is_left_out(self):
        v = self.v
        v.legs.arrived("a", params(ident(1), DECODE), list(range(10)))
        self.assertEqual(v.legs.matched("a", 8), 2)
        v.legs.allocated("a", ([11, 12, 13],), 2)
        self.assertEqual(v.plane.calls[-1], ("expect", ident(1), (8, 10), ((8, [13]),), 5000))

    def test_last_token_is_computed_here(self):
        v = self.v
        v.legs._keep = 1
        for tokens, local, want in ((10, 0, 9), (10, 8, 1), (9, 8, 0), (1, 0, 0)):
            v.legs.arrived(str(tokens), params(ident(tokens), DECODE), list(range(tokens)))
            self.assertEqual(v.legs.matched(str(tokens), local), want)

    def test_preempted_beside_one_that_waits(self):
        waits, runs = self.expected("a", 1), self.expected("b", 2)
        pinned, had = list(waits.table), list(runs.table)
        self.v.plane.release(runs.ident)
        self.v.step()
        self.v.step()
        self.v.preempt("b")
        self.assertEqual((self.v.plane.transfers, self.v.legs.blocks(State.EXPECTED)), ({waits.ident: "expected"}, len(pinned)))
        self.v.free_blocks = had  # the same again: the plane has nothing to do with them any more
        self.v.step()
        self.assertEqual((runs.state, waits.table), ("running", pinned), "it is computed here: a transfer serves once")
        self.assertEqual([c[0] for c in self.v.plane.calls].count("expect"), 2)

    def test_nothing_needed(self):
        v = self.v
        v.legs.arrived("a", params(ident(1), DECODE), list(range(8)))
        self.assertEqual(v.legs.matched("a", 8), 0)
        v.legs.allocated("a", ([11, 12],), 0)
        self.assertEqual([c[0] for c in v.plane.calls], ["admit", "cancel"])
        self.assertEqual(v.legs.matched("a", 0), 0, "it is not asked for again")

    def test_refused_legs_are_served_alone(self):
        v = self.v
        for number, (why, more, error, leg, unfit) in enumerate((
            ("params", {"transfer_id": "x"}, None, DECODE, ""),
            ("role", {}, None, PREFILL, ""),
            ("unfit", {}, None, DECODE, "pooled"),
            ("ticket", {}, Code.TICKET, DECODE, ""),
            ("early", {}, Code.EARLY, DECODE, ""),
            ("known", {}, Code.KNOWN, DECODE, ""),
            ("error", {}, Code.ARGUMENT, DECODE, ""),
        )):  # fmt: skip
            if error:
                v.plane.refuse["admit"] = LibraryError("admit", error, "no")
            v.legs.arrived(why, params(ident(number + 1), leg, **more), [1, 2, 3], unfit)
            self.assertEqual((v.legs.refused.get(why), v.legs.matched(why, 0)), (1, 0))
            self.assertEqual(v.legs.finished(why, True, 3, ([1],)), (False, None))
        v.legs.arrived("plain", None, [1])
        self.assertEqual(sum(v.legs.refused.values()), 7)

    def test_a_transfer_serves_one_request(self):
        self.expected("a", 1)
        self.v.add("b", 1, 10)
        self.assertEqual(self.v.legs.refused, {"known": 1})

    def test_a_leg_that_vllm_turns_away(self):
        v = self.v
        v.legs.arrived("notice", params(ident(1), DECODE), [0], over=True)
        self.assertEqual(v.legs.finished("notice", False, 0, ([],)), (False, None))
        self.assertEqual([c[0] for c in v.plane.calls], ["admit", "cancel"], "prefill is told")
        r = self.expected("a", 2)
        v.legs.arrived("notice", params(r.ident, DECODE), [0], over=True)
        v.legs.finished("notice", False, 0, ([],))
        self.assertEqual((v.legs.refused, v.plane.transfers[r.ident]), ({}, "expected"))

    def test_broken(self):
        r = self.expected()
        self.v.legs.heard((), "superseded")
        self.assertEqual(self.v.legs.broken, "superseded")
        self.v.add("b", 2, 10)
        self.v.step()
        self.assertEqual((self.v.requests["b"].state, self.v.legs.refused), ("running", {"broken": 1}))
        self.assertEqual(r.state, "remote", "what is under way goes on until the ranks have ended it")
        self.v.plane.told += b"x"
        self.assertEqual(self.v.step().plane, b"x", "the ranks hear of it")
        self.v.plane.fail(r.ident)
        self.v.plane.close(r.ident)
        self.v.step()
        self.v.step()
        self.v.step()
        self.assertEqual(r.state, "running", "decode computes the prompt itself")

    def test_broken_before_it_has_blocks(self):
        v = self.v
        v.legs.arrived("a", params(ident(1), DECODE), list(range(10)))
        v.legs.heard((), "superseded")
        self.assertEqual(v.plane.transfers, {}, "prefill is told")
        self.assertEqual(v.legs.matched("a", 0), 0, "decode computes the prompt itself")


class Prefill(unittest.TestCase):
    def setUp(self):
        self.v = FakeVllm(PREFILL)

    def test_offered_and_freed(self):
        r = self.v.add("a", 1, 10)
        self.v.step()
        self.assertEqual(r.state, "running")
        self.v.finish("a")
        self.assertEqual(self.v.answers["a"], {"transfer_id": r.ident.hex(), "num_tokens": 10})
        self.assertEqual(self.v.plane.calls[-1], ("offer", r.ident, 10, ((0, r.table),)))
        self.v.step()
        self.assertTrue(r.table)
        self.v.plane.free(r.ident)
        self.v.step()
        self.assertTrue(self.v.idle())

    def test_preempted_while_it_computes(self):
        r = self.v.add("a", 1, 10)
        self.v.step()
        first = list(r.table)
        self.v.preempt("a")
        self.v.free_blocks = [b for b in self.v.free_blocks if b not in first]
        self.v.step()
        self.v.finish("a")
        self.assertEqual(self.v.plane.calls[-1], ("offer", r.ident, 10, ((0, r.table),)), "the blocks that it ended with")
        self.assertFalse(set(first) & set(r.table))

    def test_chunks_are_offered_once_and_whole(self):
        v = self.v
        v.legs.arrived("a", params(ident(1), PREFILL), list(range(10)))
        for computed in (4, 8):
            self.assertEqual(v.legs.matched("a", computed), 0)
            v.legs.allocated("a", ([1, 2, 3][: computed // BLOCK],), 0)
            v.legs.step()
            self.assertEqual([c[0] for c in v.plane.calls], ["admit"])
        self.assertEqual(v.legs.finished("a", True, 10, ([1, 2, 3],))[0], True)
        self.assertEqual(v.plane.calls[1:], [("offer", ident(1), 10, ((0, [1, 2, 3]),))])

    def test_failed_offers_stay_until_freed(self):
        r = self.v.add("a", 1, 10)
        self.v.step()
        self.v.finish("a")
        self.v.plane.say(Kind.FAILED, r.ident, "deadline")
        self.v.step()
        self.assertTrue(r.table)
        self.v.plane.free(r.ident, "lease_over")
        self.v.step()
        self.assertTrue(self.v.idle())
        self.assertEqual(self.v.legs.ended, {"freed_lease_over": 1})

    def test_ends_early(self):
        r = self.v.add("a", 1, 10)
        self.v.step()
        self.v.finish("a", whole=False)
        self.assertEqual((self.v.answers["a"], r.table), (None, []))
        self.assertEqual(self.v.plane.calls[-1][0], "cancel")

    def test_offer_that_is_refused(self):
        r = self.v.add("a", 1, 10)
        self.v.step()
        self.v.plane.refuse["offer"] = LibraryError("offer", Code.FULL, "full")
        self.v.finish("a")
        self.assertEqual((self.v.answers["a"], r.table), (None, []))

    def test_gateway_cancels_while_it_computes(self):
        r = self.v.add("a", 1, 10)
        self.v.step()
        self.v.plane.cancelled(r.ident)
        self.v.step()
        self.v.finish("a")
        self.assertEqual((self.v.answers["a"], r.table), (None, []))

    def test_fewer_tokens_than_the_prompt(self):
        self.v.add("a", 1, 10)
        self.assertEqual(self.v.legs.finished("a", True, 9, ([1, 2, 3],)), (False, None))


class Blocks(unittest.TestCase):
    def test_own(self):
        for want, tables, begin, end in (
            (((0, [5, 6, 7]),), [[5, 6, 7]], 0, 10),
            (((4, [6, 7]),), [[5, 6, 7, 8]], 4, 12),
            (((0, [5, 6, 7]), (8, [9])), [[5, 6, 7], [0, 0, 9]], 0, 12),  # a window has passed two blocks of the second group
        ):
            self.assertEqual(own_blocks(tables, BLOCK, begin, end), want)
        for tables, begin, end in (([[5, 6]], 0, 9), ([[5, 6]], 2, 8), ([[0, 0]], 0, 8), ([[5, 0, 6]], 0, 12)):
            with self.assertRaises(ValueError):
                own_blocks(tables, BLOCK, begin, end)


class Walk(unittest.TestCase):
    """Random orders of everything that can happen. The fakes assert; at the end nothing is held."""

    def walk(self, seed):
        rand = random.Random(seed)
        role = rand.choice((DECODE, PREFILL))
        v = FakeVllm(role, blocks=rand.choice((6, 20)), ranks=rand.choice((1, 2)), recompute=rand.random() < 0.5)
        made, late = 0, []
        for at in range(120):
            v.now += rand.choice((0, 1, RENEW))
            do = rand.randrange(8) if at < 80 else 1
            live = [r for r in v.requests.values() if r.state != "done"]
            plane = v.plane
            if do == 0 and made < 8:
                made += 1
                if rand.random() < 0.1:
                    plane.refuse[rand.choice(("admit", "expect", "offer"))] = LibraryError("x", rand.choice((Code.FULL, Code.TICKET)), "no")
                v.add(f"r{made}", made, rand.randrange(1, 14))
            elif do == 2 and live:
                v.finish(rand.choice(live).name, whole=rand.random() < 0.5)
            elif do == 7 and (running := [r for r in live if r.state == "running"]):
                v.preempt(rand.choice(running).name)
            elif do == 3 and plane.transfers:
                plane.cancelled(rand.choice(list(plane.transfers)))
            elif plane.transfers and (do >= 4 or at >= 80):
                one = rand.choice(list(plane.transfers))
                state = plane.transfers[one]
                if state == "expected":
                    rand.choice((plane.release, plane.fail))(one)
                elif state == "failing":
                    plane.close(one)
                elif state == "offered":
                    plane.free(one, rand.choice(("", "lease_over")))
                elif state == "queued" and rand.random() < 0.2:
                    plane.fail(one)
            if at >= 80:
                for r in live:
                    if r.state == "running":
                        v.finish(r.name)
            # Answers may come a step late, in their order, as where batches overlap.
            if do != 2 or rand.random() < 0.5:
                late.append(v.schedule())
            while late and (at >= 80 or len(late) > 2 or rand.random() < 0.6):
                v.output(late.pop(0))
        self.assertEqual({r.name: r.state for r in v.requests.values()}, {})
        self.assertFalse(v.legs.pending())
        self.assertEqual(set(v.legs.open().values()), {0})
        return made

    def test_walks(self):
        made = sum(self.walk(seed) for seed in range(400))
        self.assertGreater(made, 2000)


if __name__ == "__main__":
    unittest.main()
