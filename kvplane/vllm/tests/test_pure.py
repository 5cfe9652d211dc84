"""Params, settings, layouts and the library's structs."""

import pathlib
import re
import struct
import tempfile
import unittest

from pdrouter_vllm import find, layout, library, settings
from pdrouter_vllm.layout import Group, Layer, Unsupported, describe
from pdrouter_vllm.library import DECODE, PREFILL
from pdrouter_vllm.params import BadParams, Handoff, parse_params

from .fakes import ident, params

HEADER = pathlib.Path(__file__).parents[2] / "capi" / "pdkv.h"
LEAST = {"engine": "prefill-0", "gateway": "http://127.0.0.1:1", "token_file": "token"}


class Params(unittest.TestCase):
    def test_legs(self):
        for leg in (PREFILL, DECODE):
            want = Handoff(leg, ident(9), "other-0", 7, 5000, None)
            self.assertEqual(parse_params(params(ident(9), leg)), want)
        self.assertEqual(parse_params(params(ident(9), DECODE, ticket="abc")).ticket, "abc")
        for none in (None, {}, {"do_remote_decode": False}, {"transfer_id": "x"}):
            self.assertIsNone(parse_params(none))

    def test_mistakes(self):
        for more in (
            {"do_remote_decode": True}, {"do_remote_prefill": 1.5}, {"transfer_id": None}, {"transfer_id": "0" * 32}, {"transfer_id": "A" * 32},
            {"transfer_id": "a" * 31}, {"peer": None}, {"peer": {"engine": "", "generation": 1}}, {"peer": {"engine": "a\0", "generation": 1}},
            {"peer": {"engine": "a", "generation": 0}}, {"peer": {"engine": "a", "generation": True}}, {"peer": {"engine": "a", "generation": 2**64}},
            {"valid_ms": 0}, {"valid_ms": 3_600_001}, {"valid_ms": "5"}, {"ticket": 5}, {"ticket": "a\0"},
        ):  # fmt: skip
            with self.assertRaises(BadParams, msg=str(more)):
                parse_params(params(ident(9), DECODE, **more))
        with self.assertRaises(BadParams):
            parse_params("do_remote_prefill")


class SettingsTest(unittest.TestCase):
    def test_least(self):
        s = settings.Settings.parse(LEAST)
        self.assertEqual((s.on_kv_failure, s.transport, s.control), ("recompute", "auto", ""))

    def test_every_mistake_is_named(self):
        bad = {"engine": "a", "gatewy": "x", "token_file": 5, "on_kv_failure": "hope", "control": "127.0.0.1:0", "record_keys": "k"}
        with self.assertRaises(settings.BadSettings) as caught:
            settings.Settings.parse(bad)
        for key in ("gatewy", "gateway", "token_file", "on_kv_failure", "control", "record_keys"):
            self.assertIn(f"\n  {key}: ", str(caught.exception))

    def test_handles(self):
        s = settings.Settings.parse({**LEAST, "control": "0.0.0.0:9105", "advertise": "10.0.0.7", "control_keys": ["k"]})
        rank = s.rank("prefill", 5, {"pp": 0, "tp": 0}, {"pp": 1, "tp": 2}, "digest", {"heads": 4, "replicated": False})
        self.assertEqual(rank["control"], {"url": "http://10.0.0.7:9105"})
        self.assertEqual(rank["transport"], {"name": "auto", "listen": "127.0.0.1:0", "advertise": "10.0.0.7"})
        self.assertEqual(rank["gateway"], {"url": "http://127.0.0.1:1", "token_file": "token"})
        self.assertEqual((rank["rank"], rank["generation"]), ({"pp": 0, "tp": 0}, 5))
        scheduler = s.scheduler("prefill", {"pp": 1, "tp": 2})
        self.assertEqual(scheduler["control"], {"listen": "0.0.0.0:9105", "keys": ["k"], "issuer": "pdrouter"})
        self.assertNotIn("control", settings.Settings.parse(LEAST).scheduler("prefill", {"pp": 1, "tp": 1}))
        self.assertNotIn("gateway", scheduler)

    def test_record_keys(self):
        """Ranks check records with them, and the scheduler tickets."""
        s = settings.Settings.parse({**LEAST, "record_keys": ["a", "b"]})
        rank = s.rank("prefill", 5, {"pp": 0, "tp": 0}, {"pp": 1, "tp": 1}, "digest", {})
        self.assertEqual(rank["gateway"]["record_keys"], ["a", "b"])
        self.assertEqual(s.scheduler("prefill", {"pp": 1, "tp": 1})["gateway"], {"record_keys": ["a", "b"]})

    def test_versions(self):
        for version, allow, fine in (("0.32.0", False, True), ("0.32.0+cpu", False, True), ("0.33.0", False, False), ("0.33.0", True, True)):
            self.assertEqual(settings.version_problem(version, allow) == "", fine)
        self.assertIn("0.32.0", settings.version_problem("0.33.0", False))

    def test_unsupported(self):
        self.assertEqual(settings.unsupported(settings.Facts(kv_role="kv_both")), [])
        everything = settings.Facts(None, 2, 2, 2, 2, True, True, True, True, True)
        self.assertEqual(len(settings.unsupported(everything)), 10)

    def test_compatibility(self):
        a = settings.compatibility({"model": "a", "n": 1})
        self.assertEqual(a, settings.compatibility({"n": 1, "model": "a"}))
        self.assertNotEqual(a, settings.compatibility({"model": "a", "n": 2}))


def cpu(name, blocks=10, heads=2, tokens=32, width=64, address=4096, **more):
    """A layer as vLLM's CPU backend lays it out, of float32."""
    return Layer(name, (blocks, heads, tokens, width), (heads * tokens * width, tokens * width, width, 1), 4, address, **more)


def full(names, heads=2, block=32, kind="FullAttentionSpec", page=2 * 32 * 64 * 4, **more):
    return Group(kind, tuple(names), block, page, heads, **more)


class Layouts(unittest.TestCase):
    def test_cpu(self):
        names = ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"]
        layers = {n: cpu(n, address=4096 * (i + 1)) for i, n in enumerate(names)}
        cache, regions = describe(layers, [full(names)], 4, 2, "float32", "dram")
        self.assertEqual(cache, {
            "block_tokens": 32, "physical": 1, "heads": 4, "head_bytes": 256, "order": "hnd", "dtype": "float32", "replicated": False, "memory": "dram",
        })  # fmt: skip
        page = 2 * 32 * 64 * 4
        self.assertEqual(regions[1], {
            "layer": 1, "planes": 1, "base": 8192, "length": 10 * page, "blocks": 10, "block_stride": page, "plane_stride": 0,
            "head_stride": 32 * 256, "token_stride": 256, "device": 0,
        })  # fmt: skip

    def test_tokens_first_and_kernel_blocks(self):
        name = "layers.3.attn"
        one = Layer(name, (20, 2, 16, 64), (2 * 16 * 64, 64, 2 * 64, 1), 4, 4096)
        cache, regions = describe({name: one}, [full([name])], 2, 1, "float32", "vram")
        self.assertEqual((cache["order"], cache["physical"], regions[0]["blocks"]), ("nhd", 2, 20))

    def test_groups(self):
        names = ["layers.0.attn", "layers.1.attn"]
        groups = [full(names[:1]), full(names[1:], kind="SlidingWindowSpec", window=128)]
        cache, _ = describe({n: cpu(n) for n in names}, groups, 2, 1, "float32", "dram")
        self.assertEqual(cache["groups"], [{"layers": [0], "window": 0}, {"layers": [1], "window": 127}])
        self.assertEqual((layout.tokens_kept(groups), layout.tokens_kept(groups[:1])), (1, 0))

    def test_mla(self):
        name = "layers.0.attn"
        cache, _ = describe({name: cpu(name, heads=1)}, [full([name], 1, kind="MLAAttentionSpec", page=32 * 64 * 4)], 8, 4, "bfloat16", "vram")
        self.assertEqual((cache["heads"], cache["replicated"]), (1, True))

    def test_unsupported(self):
        a, b = "layers.0.attn", "layers.1.attn"
        both = {a: cpu(a), b: cpu(b)}
        for why, layers, groups in (
            ("no cache", {}, []),
            ("kind MambaSpec", both, [full([a, b], kind="MambaSpec")]),
            ("draft", both, [full([a, b], draft=True)]),
            ("window of one", both, [full([a, b], kind="SlidingWindowSpec", window=1)]),
            ("scales", both, [full([a, b], quantized=True)]),
            ("3 KV heads", both, [full([a, b], heads=3)]),
            ("MLA beside", both, [full([a]), full([b], kind="MLAAttentionSpec")]),
            ("blocks of", both, [full([a]), full([b], block=64)]),
            ("page of", both, [full([a, b], page=1)]),
            ("shape", {a: Layer(a, (2, 10, 32, 2, 64), (1, 1, 1, 1, 1), 4, 0)}, [full([a])]),
            ("numbers in its name", {"attn": cpu("attn")}, [full(["attn"])]),
            ("two caches", {a: cpu(a), "x.0.y": cpu("x.0.y")}, [full([a, "x.0.y"])]),
        ):
            with self.assertRaisesRegex(Unsupported, why):
                describe(layers, groups, 2, 1, "float32", "dram")


class Nixl(unittest.TestCase):
    def test_where_it_is_looked_for(self):
        with tempfile.TemporaryDirectory() as top:
            first, second, bare = (pathlib.Path(top) / name for name in ("a", "b", "c"))
            for folder in (second / ".nixl_cu13.mesonpy.libs", second / ".nixl_cu12.mesonpy.libs", bare):
                folder.mkdir(parents=True)
                (folder / "libnixl_capi.so").touch()
            wheel = str(second / ".nixl_cu12.mesonpy.libs" / "libnixl_capi.so")
            file = str(bare / "libnixl_capi.so")
            self.assertEqual(find.nixl({}, ["", str(first), str(second), str(bare)]), wheel)
            self.assertEqual(find.nixl({}, [str(first)]), "")
            for named in (file, str(bare)):
                self.assertEqual(find.nixl({find.VARIABLE: named}, [str(second)]), file)
            self.assertEqual(find.nixl({find.VARIABLE: str(first)}, [str(second)]), "", "what is named and wrong is not passed over")


class Structs(unittest.TestCase):
    def test_the_header_says_the_same(self):
        text = HEADER.read_text()
        self.assertEqual(int(re.search(r"#define PDKV_ABI (\d+)", text)[1]), library.ABI)
        for name, size in re.findall(r"} pdkv_(\w+); /\* (\d+) bytes", text):
            self.assertEqual(library.SIZES[name], int(size), name)
        for enum, prefix in ((library.Code, "PDKV_E"), (library.Kind, "PDKV_")):
            for member in enum:
                name = "PDKV_EARLY" if member is library.Code.EARLY else prefix + member.name
                self.assertTrue(re.search(rf"#define {name} +\(?{member.value}\)?\s", text), name)
        declared = set(re.findall(r"^(?:int32_t|uint32_t|size_t|const char \*) ?\*?(pdkv_\w+)\(", text, re.M))
        self.assertLessEqual(set(library._SIGNATURES), declared)

    def test_results(self):
        body = struct.pack("<2Q", 4096, 64) + struct.pack("<2I", 2, 1) + struct.pack("<3i", 5, 6, 9) + b"peer_gone: lost"
        size = (72 + len(body) + 7) & ~7
        one = struct.pack("<II16sIiiiiiIIQII", size, 7, ident(3), 16, 0, 1, 1, 2, 40, 1, 2, 99, 15, 0) + body
        raw = one.ljust(size, b"\0") + struct.pack("<II16sIiiiiiIIQII", 72, 6, ident(4), 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0)
        got = library.parse_results(memoryview(raw), 2)
        self.assertEqual(got[0], library.Result(7, ident(3), "peer_gone", "peer_gone: lost", 0, 1, 1, 2, 40, 99, ((4096, 64),), ((5, 6), (9,))))
        self.assertEqual((got[1].kind, got[1].id), (6, ident(4)))


if __name__ == "__main__":
    unittest.main()
