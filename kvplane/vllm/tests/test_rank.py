"""What a rank does with orders, against a fake of the library's handle of a rank."""

import pickle
import unittest

from pdrouter_vllm.library import Kind, Result
from pdrouter_vllm.passing import Handshake, Orders, Reports
from pdrouter_vllm.worker import Worker

from .fakes import QUIET


class FakeRank:
    def __init__(self):
        self.calls, self.results, self.report = [], [], b""

    def register(self, regions):
        self.calls.append(("register", regions))

    def publish(self):
        self.calls.append(("publish",))

    def do(self, orders):
        self.calls.append(("do", orders))

    def collect(self):
        self.calls.append(("collect",))
        report, self.report = self.report, b""
        return report

    def poll(self):
        out, self.results = self.results, []
        return out


class Ranks(unittest.TestCase):
    def setUp(self):
        self.plane, self.cleared = FakeRank(), []
        self.waits, self.news = [], ()
        self.w = Worker(self.plane, QUIET, self.cleared.append, self.wait)

    def wait(self, plane, seconds):
        self.waits.append(seconds)
        self.plane.results += self.news
        self.news = ()

    def open(self, *results):
        self.news = results
        return self.w.open(["region"], 1, clock=lambda: 0.5 * len(self.waits))

    def test_open(self):
        self.plane.report = b"keys"
        self.assertTrue(self.open(Result(Kind.PUBLISHED, bytes=42)))
        self.assertEqual((self.w.generation, self.w.handshake()), (42, Handshake(b"keys")))
        self.assertEqual(self.plane.calls[:2], [("register", ["region"]), ("publish",)])

    def test_gateway_that_does_not_answer(self):
        self.assertFalse(self.open())
        self.assertEqual(self.w.handshake(), Handshake(b""))

    def test_another_process_has_the_name(self):
        with self.assertRaisesRegex(RuntimeError, "a newer generation"):
            self.open(Result(Kind.BROKEN, text="a newer generation is known"))

    def test_orders_are_done_and_echoed_once(self):
        self.w.begin(Orders(seq=1, plane=b"do", failed_blocks=(1, 2), closed=("a", "b"), failed=("b",)))
        self.assertEqual(self.plane.calls, [("do", b"do")])
        self.assertEqual(self.w.results(), ({"a", "b"}, {"b"}))
        self.assertEqual(self.w.failed_blocks(), {1, 2})
        self.w.begin(Orders(seq=2))
        self.assertEqual((self.w.results(), self.w.failed_blocks()), ((set(), set()), set()))
        self.assertEqual(len(self.plane.calls), 1, "no orders, no call")

    def test_no_orders_may_be_missed_or_doubled(self):
        self.w.begin(Orders(seq=1))
        for seq in (1, 3):
            with self.assertRaises(RuntimeError):
                self.w.begin(Orders(seq=seq))

    def test_it_waits_for_news_when_it_is_told_to(self):
        self.w.begin(Orders(seq=1))
        self.assertEqual(self.waits, [])
        self.news = (Result(Kind.CLEAR, ranges=((64, 8),)),)
        self.w.begin(Orders(seq=2, plane=b"do", rest=0.004))
        self.assertEqual((self.waits, self.plane.calls), ([0.004], [("do", b"do")]), "orders are done before")
        self.w.reports()
        self.assertEqual(self.cleared, [((64, 8),)], "what came meanwhile is in the same step's reports")
        self.plane.results = [Result(Kind.BROKEN, text="superseded")]
        self.w.reports()
        self.w.begin(Orders(seq=3, rest=0.004))
        self.assertEqual(self.waits, [0.004], "a broken rank has no news")

    def test_reports(self):
        self.assertIsNone(self.w.reports())
        self.w.begin(Orders(seq=1, answer=True))
        self.assertEqual(self.w.reports(), Reports((b"",)))
        self.assertIsNone(self.w.reports())
        self.plane.report = b"x"
        self.assertEqual(self.w.reports(), Reports((b"x",)))

    def test_broken_rank(self):
        self.plane.results = [Result(Kind.BROKEN, text="superseded")]
        self.assertEqual(self.w.reports(), Reports((b"",), "superseded"))
        self.plane.calls.clear()
        self.w.begin(Orders(seq=1, plane=b"do", closed=("a",)))
        self.assertIsNone(self.w.reports(), "it is said once")
        self.assertEqual((self.plane.calls, self.w.results()), ([("do", b"do"), ("collect",)], ({"a"}, set())), "what is under way goes on")
        self.plane.report = b"safe"
        self.assertEqual(self.w.reports().of_ranks, (b"safe",))

    def test_old_bytes_are_cleared_before_the_scheduler_hears(self):
        self.plane.report = b"ready"
        self.plane.results = [Result(Kind.CLEAR, ranges=((64, 8),))]
        self.assertEqual(self.w.reports(), Reports((b"ready",)))
        self.assertEqual(self.cleared, [((64, 8),)])

    def test_device_sees_what_came_before_the_scheduler_hears(self):
        did, visible = self.plane.calls, ("visible",)
        w = Worker(self.plane, QUIET, lambda ranges: did.append(("clear", ranges)), visible=lambda: did.append(visible))
        self.assertIsNone(w.reports())
        w.begin(Orders(seq=1, answer=True))
        w.reports()
        self.assertNotIn(visible, did, "nothing has come")
        did.clear()
        self.plane.report = b"ready"
        self.plane.results = [Result(Kind.CLEAR, ranges=((64, 8),))]
        self.assertEqual(w.reports(), Reports((b"ready",)))
        self.assertEqual(did, [("collect",), ("clear", ((64, 8),)), visible], "behind what the rank knows of, and what it cleared itself")
        self.plane.report = b"ready"
        w = Worker(self.plane, QUIET, None, visible=self.fails)
        with self.assertRaisesRegex(RuntimeError, "illegal"):
            w.reports()

    def fails(self):
        raise RuntimeError("an illegal memory access")

    def test_reports_of_all_ranks(self):
        self.assertEqual(Reports((b"0",)).aggregate(Reports((b"1",))).aggregate(Reports((b"2",))), Reports((b"0", b"1", b"2")))
        self.assertEqual(Reports((b"0",)).aggregate(Reports((b"1",), "x")).broken, "x")
        self.assertTrue(Reports(()), "vLLM drops what is false")
        for value in (Orders(seq=3, closed=("a",)), Reports((b"1",)), Handshake(b"k")):
            self.assertEqual(pickle.loads(pickle.dumps(value)), value)


if __name__ == "__main__":
    unittest.main()
