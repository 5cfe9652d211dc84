package plan

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// TestPlanRefusals: what cannot be brought together is refused between two ranks, by whoever asks for D's producers
// and by whoever asks for P's consumers, before anything is sent, and the reason has both values.
func TestPlanRefusals(t *testing.T) {
	base := plantest.Spec{Heads: 4, Logical: 4, Blocks: 6, Planes: 2, Stages: [][]int{{0, 1}}}
	tokensFirst := base
	tokensFirst.Order = metadata.TokensFirst
	tp := func(s plantest.Spec, tp int) plantest.Spec { s.TP = tp; return s }
	layout := func(change func(l *metadata.Layout)) func(p, d []metadata.Record) {
		return func(_, d []metadata.Record) {
			for i := range d {
				d[i].Layout.Regions = slices.Clone(d[i].Layout.Regions)
				change(&d[i].Layout)
			}
		}
	}
	both := func(change func(l *metadata.Layout)) func(p, d []metadata.Record) {
		return func(p, d []metadata.Record) {
			layout(change)(nil, p)
			layout(change)(nil, d)
		}
	}
	for _, tc := range []struct {
		name   string
		p, d   plantest.Spec
		change func(p, d []metadata.Record)
		want   string // "": fits
	}{
		{"equal", base, base, nil, ""},
		{"compatibility", base, base, func(p, d []metadata.Record) { p[0].Compatibility, d[0].Compatibility = "one", "two" },
			"compatibility: one on P, two on D"},
		{"mode", base, base, func(p, d []metadata.Record) { d[0].Connector = "vllm-nixl-push" }, "connector: kvplane on P, vllm-nixl-push on D"},
		{"protocol", base, base, func(p, d []metadata.Record) { p[0].ConnectorVersion, d[0].ConnectorVersion = "2", "3" },
			"connector version: 2 on P, 3 on D"},
		{"a protocol that is not told", base, base, func(p, d []metadata.Record) { d[0].ConnectorVersion = "3" }, ""},
		{"transport", base, base, func(p, d []metadata.Record) { d[0].Transport = "nixl" }, "transport: test on P, nixl on D"},
		{"memory type", base, base, layout(func(l *metadata.Layout) { l.MemoryType = "vram" }), "memory type: dram on P, vram on D"},
		{"data parallel", base, base, func(p, d []metadata.Record) { d[0].Size.DP = 2 }, "data-parallel size: 1 on P, 2 on D"},
		{"tensor parallel", tp(plantest.Spec{Heads: 12, Logical: 4}, 2), tp(plantest.Spec{Heads: 12, Logical: 4}, 3), nil, "tensor-parallel size: 2 on P, 3 on D"},
		{"heads and ranks", tp(plantest.Spec{Heads: 6, Logical: 4}, 1), tp(plantest.Spec{Heads: 6, Logical: 4}, 4), nil, "heads 6 and tensor-parallel size 4: neither divides the other"},
		{"ranks and heads", tp(plantest.Spec{Heads: 4, Logical: 4}, 6), tp(plantest.Spec{Heads: 4, Logical: 4}, 1), nil, "heads 4 and tensor-parallel size 6: neither divides the other"},
		{"heads", base, base, layout(func(l *metadata.Layout) { l.Heads = 2 }), "heads: 4 on P, 2 on D"},
		{"head width", base, base, layout(func(l *metadata.Layout) { l.HeadBytes, l.Regions[0].Blocks, l.Regions[1].Blocks = 2, 1, 1 }), "head bytes: 1 on P, 2 on D"},
		{"dtype", base, base, layout(func(l *metadata.Layout) { l.DType = "f16" }), "dtype: u8 on P, f16 on D"},
		{"replicated", plantest.Spec{Heads: 1, Logical: 4}, plantest.Spec{Heads: 1, Logical: 4}, layout(func(l *metadata.Layout) { l.Replicated = true }), "replicated: false on P, true on D"},
		{"planes", base, base, layout(func(l *metadata.Layout) { l.Regions[1].Planes = 1 }), "planes of layer 1: 2 on P, 1 on D"},
		{"K and V apart on one side", base, base, layout(func(l *metadata.Layout) { l.Regions = append(l.Regions, l.Regions[0]) }), "regions of layer 0: 1 on P, 2 on D"},
		{"kernel blocks", plantest.Spec{Heads: 1, Logical: 3}, plantest.Spec{Heads: 1, Logical: 2}, nil, "kernel block tokens: 3 on P, 2 on D"},
		{"logical blocks need no ratio", plantest.Spec{Heads: 1, Logical: 6, Physical: 3}, plantest.Spec{Heads: 1, Logical: 4, Physical: 2}, nil, ""},
		{"a layer that P lacks", plantest.Spec{Heads: 1, Logical: 2}, plantest.Spec{Heads: 1, Logical: 2, Stages: [][]int{{0, 7}}}, nil, "layer 7: missing on P, present on D"},
		{"order", base, tokensFirst, nil, "order of group 0: hnd on P, nhd on D"},
		{"order of one head", tp(base, 4), tp(tokensFirst, 4), nil, ""},
		{"order of one token", plantest.Spec{Heads: 4, Logical: 2, Physical: 2}, plantest.Spec{Heads: 4, Logical: 2, Physical: 2, Order: metadata.TokensFirst}, nil, ""},
		{"tokens first, split", tokensFirst, tp(tokensFirst, 2), nil, "heads per rank, tokens first, of group 0: 4 on P, 2 on D"},
		{"groups", base, base, layout(func(l *metadata.Layout) { l.Groups = []metadata.Group{{Layers: []int{0}}, {Layers: []int{1}}} }), "groups: 1 on P, 2 on D"},
		{"window", base, base, layout(func(l *metadata.Layout) { l.Groups = []metadata.Group{{Layers: []int{0, 1}, Window: 8}} }), "window of group 0: 0 on P, 8 on D"},
		{"a group's heads", base, base, layout(func(l *metadata.Layout) { l.Groups = []metadata.Group{{Layers: []int{0, 1}, Heads: 2}} }), "heads of group 0: 4 on P, 2 on D"},
		{"a group's heads and ranks", tp(base, 2), tp(base, 2), both(func(l *metadata.Layout) { l.Groups = []metadata.Group{{Layers: []int{0, 1}, Heads: 3}} }),
			"group 0: heads 3 and tensor-parallel size 2: neither divides the other"},
		{"a group's width", base, base, func(p, d []metadata.Record) {
			p[0].Layout.HeadBytes, p[0].Layout.Groups = 9, []metadata.Group{{Layers: []int{0, 1}, HeadBytes: 1}}
			d[0].Layout.HeadBytes, d[0].Layout.Groups = 9, []metadata.Group{{Layers: []int{0, 1}, HeadBytes: 1, Heads: 4}}
			d[0].Layout.Regions, d[0].Layout.Groups[0].HeadBytes = shrink(d[0].Layout.Regions), 2
		}, "head bytes of group 0: 1 on P, 2 on D"},
		{"a layer's group", base, base, func(p, d []metadata.Record) {
			p[0].Layout.Groups = []metadata.Group{{Layers: []int{0}}, {Layers: []int{1}}}
			d[0].Layout.Groups = []metadata.Group{{Layers: []int{1}}, {Layers: []int{0}}}
		}, "group of layer 0: 0 on P, 1 on D"},
		{"two groups of a layer", base, base, layout(func(l *metadata.Layout) {
			l.Groups = []metadata.Group{{Layers: []int{0, 1}}, {Layers: []int{1}}}
		}), "layer 1 is in groups 0 and 1"},
		{"no group", base, base, layout(func(l *metadata.Layout) { l.Groups = []metadata.Group{{Layers: []int{0}}} }), "layer 1 is in no group"},
		{"beyond the region", base, base, layout(func(l *metadata.Layout) { l.Regions[0].Blocks++ }), "blocks reach beyond the region's 192 bytes"},
		{"overflow", base, base, layout(func(l *metadata.Layout) { l.Regions[0].BlockStride = 1 << 63 }), "blocks reach beyond the region's 192 bytes"},
		{"too many pieces", base, base, both(func(l *metadata.Layout) {
			l.BlockTokens, l.Regions = 1<<19, shrink(l.Regions)
			for i := range l.Regions {
				r := &l.Regions[i]
				r.Length, r.HeadStride, r.TokenStride, r.PlaneStride = 1<<40, 1<<20, 2, 1<<25
			}
		}), "pieces of layer 0: 1048577 on P, 1048576 on D"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, d := tc.p.WithDefaults().Records("p"), tc.d.WithDefaults().Records("d")
			if tc.change != nil {
				tc.change(p, d)
			}
			expect := func(who string, err error) {
				t.Helper()
				if tc.want == "" {
					if err != nil {
						t.Errorf("%s: %v; want it to fit", who, err)
					}
				} else if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: error is %v; want %q", who, err, tc.want)
				} else if r := (*Refusal)(nil); strings.Contains(tc.want, "neither divides") && (!errors.As(err, &r) || !r.Unplannable) {
					t.Errorf("%s: %v is no refusal", who, err)
				}
			}
			_, err := Producers(p, d[0], Allow{})
			expect("Producers", err)
			if strings.HasPrefix(tc.want, "layer 7") {
				return // P's rank does not know the layers of P's other ranks
			}
			_, err = New(p[0], d[0], Allow{})
			expect("New", err)
			_, err = Consumers(p[0], d, Allow{})
			expect("Consumers", err)
		})
	}
	if _, err := New(tokensFirst.WithDefaults().Records("p")[0], tp(tokensFirst, 2).WithDefaults().Records("d")[0], Allow{TokensFirstSplit: true}); err != nil {
		t.Errorf("tokens first, split, allowed: %v", err)
	}
	missing := tp(base, 4).WithDefaults().Records("p")
	if _, err := Producers(missing[:3], base.WithDefaults().Records("d")[0], Allow{}); err == nil || !strings.Contains(err.Error(), "3 records on P, size 1/1/4 on D") {
		t.Errorf("a rank's record missing: %v", err)
	}
}

func shrink(regions []metadata.Region) []metadata.Region {
	out := slices.Clone(regions)
	for i := range out {
		out[i].Blocks = 1
	}
	return out
}

// TestPlanShort: a transfer whose lists cannot bring D what it needs is refused whole, whatever group is the one.
func TestPlanShort(t *testing.T) {
	s := plantest.Spec{Heads: 1, Logical: 4}.WithDefaults()
	q, err := New(s.Records("p")[0], s.Records("d")[0], Allow{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		n    int
		need [2]int
		p, d []transfer.BlockList
		want string
	}{
		{"fewer tokens than needed", 7, [2]int{0, 8}, plantest.List(0, 1, 2), plantest.List(0, 1, 2), "tokens computed and needed: 7 on P, 8 on D"},
		{"P's list begins too late", 8, [2]int{0, 8}, plantest.List(4, 2), plantest.List(0, 1, 2), "tokens of group 0: [4,8) on P, [0,8) in [0,8) on D"},
		{"D's list ends too early", 8, [2]int{0, 8}, plantest.List(0, 1, 2), plantest.List(0, 1), "tokens of group 0: [0,8) on P, [0,8) in [0,4) on D"},
		{"first is no block", 8, [2]int{2, 8}, plantest.List(0, 1, 2), plantest.List(2, 1, 2), "list of group 0: - on P, first token 2; want a multiple of 4 on D"},
		{"block beyond the region", 8, [2]int{0, 8}, plantest.List(0, 1, 2), plantest.List(0, 1, 64), "list of group 0: - on P, block 64; want 0 to 63 on D"},
		{"negative block", 8, [2]int{0, 8}, plantest.List(0, -1, 2), plantest.List(0, 1, 2), "list of group 0: block -1; want 0 to 63 on P, - on D"},
		{"need reversed", 8, [2]int{8, 4}, plantest.List(0, 1, 2), plantest.List(0, 1, 2), "tokens needed: 8 on P, [8 4] on D"},
		{"groups", 8, [2]int{0, 8}, plantest.List(0, 1, 2), nil, "block lists: 1 on P, 0 on D"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rs, err := q.Plan(nil, tc.n, tc.need, tc.p, tc.d)
			var r *Refusal
			if !errors.As(err, &r) || r.Unplannable || r.Text() != tc.want || len(rs) > 0 {
				t.Errorf("got %v, %v; want %q", rs, err, tc.want)
			}
		})
	}
}

// TestPlanShortGroups: one group's lists do, the other's do not, and nothing is planned.
func TestPlanShortGroups(t *testing.T) {
	s := plantest.Spec{Heads: 1, Logical: 4, Stages: [][]int{{0, 1}}, Groups: []metadata.Group{{Layers: []int{0}}, {Layers: []int{1}, Window: 6}}}.WithDefaults()
	q, err := New(s.Records("p")[0], s.Records("d")[0], Allow{})
	if err != nil {
		t.Fatal(err)
	}
	whole := transfer.BlockList{Blocks: []int32{0, 1, 2, 3, 4}}
	tail := func(first int, n int) transfer.BlockList {
		return transfer.BlockList{First: first, Blocks: whole.Blocks[:n]}
	}
	for _, tc := range []struct {
		name string
		p, d transfer.BlockList // of the window, which is [14,20) of 20 tokens: from the block at 12 on
		want string             // "": planned
	}{
		{"the window's blocks", tail(12, 2), tail(12, 2), ""},
		{"everything", whole, whole, ""},
		{"P's window too short", tail(16, 1), tail(12, 2), "tokens of group 1: [16,20) on P, [12,20) in [12,20) on D"},
		{"D's window too short", tail(12, 2), tail(16, 1), "tokens of group 1: [12,20) on P, [12,20) in [16,20) on D"},
		{"D's window ends too early", tail(12, 2), tail(12, 1), "tokens of group 1: [12,20) on P, [12,20) in [12,16) on D"},
		{"no blocks on P", transfer.BlockList{}, tail(12, 2), "tokens of group 1: [0,0) on P, [12,20) in [12,20) on D"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lists := func(l transfer.BlockList) []transfer.BlockList { return []transfer.BlockList{whole, l} }
			rs, err := q.Plan(nil, 20, [2]int{0, 20}, lists(tc.p), lists(tc.d))
			local, remote, placesErr := q.PlanDescriptors(nil, nil, 20, [2]int{0, 20}, lists(tc.p), lists(tc.d))
			if tc.want == "" {
				if err != nil || placesErr != nil || len(local) != 7 || len(remote) != 7 {
					t.Errorf("%v, %v, %d places; want 7: all blocks of one group, the last two of the other", err, placesErr, len(local))
				}
				return
			}
			for _, err := range []error{err, placesErr} {
				var r *Refusal
				if !errors.As(err, &r) || r.Unplannable || r.Text() != tc.want {
					t.Errorf("error is %v; want %q", err, tc.want)
				}
			}
			if len(rs)+len(local)+len(remote) > 0 {
				t.Errorf("planned %v, %v, %v all the same", rs, local, remote)
			}
		})
	}
}

// TestUnevenRecords: one rank of P lacks a layer that the others hold. Whom that rank writes for is refused, since a part of
// the layer would stay old there; all others are not concerned.
func TestUnevenRecords(t *testing.T) {
	for _, size := range [][3]int{{2, 2, 4}, {2, 1, 4}, {4, 2, 4}, {1, 2, 4}, {4, 1, 2}, {8, 2, 4}, {2, 4, 2}, {4, 2, 1}} {
		s := plantest.Spec{Heads: size[2], Logical: 2, Stages: [][]int{{0, 1}, {2}}}
		ps, ds := s, s
		ps.TP, ds.TP = size[0], size[1]
		for lacks := range size[0] {
			for tp := range size[1] {
				p, d := ps.WithDefaults().Records("p"), ds.WithDefaults().Records("d")[tp]
				even, err := Producers(p, d, Allow{})
				if err != nil {
					t.Fatal(err)
				}
				writes := slices.ContainsFunc(even, func(x Producer) bool {
					return x.Writes && x.Record.Rank == metadata.Rank{TP: lacks}
				})
				i := slices.IndexFunc(p, func(r metadata.Record) bool { return r.Rank == metadata.Rank{TP: lacks} })
				p[i].Layout.Regions = slices.DeleteFunc(slices.Clone(p[i].Layout.Regions), func(r metadata.Region) bool { return r.Layer == 1 })
				_, err = Producers(p, d, Allow{})
				var refusal *Refusal
				switch {
				case !writes && err != nil:
					t.Errorf("%v: rank %d of P lacks a layer that it does not write for rank %d of D: %v", size, lacks, tp, err)
				case writes && (!errors.As(err, &refusal) || !refusal.Unplannable || !strings.Contains(err.Error(), "layer 1: missing on P")):
					t.Errorf("%v: rank %d of P lacks a layer that it writes for rank %d of D: %v", size, lacks, tp, err)
				}
			}
		}
	}
}
