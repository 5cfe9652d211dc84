package metadata

import (
	"errors"
	"strings"
	"testing"
)

func engine(name string, tp int, change ...func(*Record)) []Record {
	var recs []Record
	for i := range tp {
		r := record(name, 7, tp, i)
		for _, f := range change {
			f(&r)
		}
		recs = append(recs, r)
	}
	return recs
}

func layoutOf(f func(*Layout)) func(*Record) { return func(r *Record) { f(&r.Layout) } }

func speaks(version string) func(*Record) { return func(r *Record) { r.ConnectorVersion = version } }

func TestFault45Pairable(t *testing.T) {
	p2 := engine("prefill-0", 2)
	for _, c := range []struct {
		name   string
		p, d   []Record
		reason PairReason // 0 is pairable
		text   string     // both values
	}{
		{"2 to 2", p2, engine("decode-0", 2), 0, ""},
		{"2 to 1", p2, engine("decode-0", 1), 0, ""},
		{"2 to 4", p2, engine("decode-0", 4), 0, ""},
		{"4 to 1", engine("prefill-0", 4), engine("decode-0", 1), 0, ""},
		{"both to both", engine("prefill-0", 1, func(r *Record) { r.Role = Both }), engine("decode-0", 1, func(r *Record) { r.Role = Both }), 0, ""},
		{"tensor parallelism above the heads", engine("prefill-0", 8), engine("decode-0", 2), 0, ""},
		{"3 of 4 ranks", engine("prefill-0", 4)[:3], engine("decode-0", 1), IncompleteRanks, "3 of 4"},
		{"nothing", nil, engine("decode-0", 1), IncompleteRanks, "0 ranks"},
		{"two generations", append(engine("prefill-0", 2)[:1:1], record("prefill-0", 8, 2, 1)), engine("decode-0", 1), MixedRecords, "prefill-0@7 and of prefill-0@8"},
		{"two sizes", append(engine("prefill-0", 2)[:1:1], record("prefill-0", 7, 4, 1)), engine("decode-0", 1), MixedRecords, "1/1/2 on rank 0/0/0 and 1/1/4"},
		{"one rank twice", append(engine("prefill-0", 2)[:1:1], record("prefill-0", 7, 2, 0)), engine("decode-0", 1), MixedRecords, "0/0/0 is there twice"},
		{"decode as prefill", engine("decode-1", 1), engine("decode-0", 1), WrongRole, "decode-1 is a decode engine"},
		{"prefill as decode", p2, engine("prefill-1", 1), WrongRole, "prefill-1 is a prefill engine"},
		{"hands nothing off", engine("prefill-0", 1, func(r *Record) { r.Connector = "" }), engine("decode-0", 1), NoConnector, `none and kvplane`},
		{"push with pull", engine("prefill-0", 1, func(r *Record) { r.Connector = "vllm-nixl-push" }), engine("decode-0", 1, func(r *Record) { r.Connector = "vllm-nixl-pull" }), OtherConnector, `vllm-nixl-push and vllm-nixl-pull`},
		{"tcp with nixl", p2, engine("decode-0", 1, func(r *Record) { r.Transport = "nixl" }), OtherTransport, `tcp and nixl`},
		{"other digest", p2, engine("decode-0", 1, func(r *Record) { r.Compatibility = "other" }), Incompatible, `digest and other`},
		{"other protocol", engine("prefill-0", 2, speaks("2")), engine("decode-0", 1, speaks("3")), OtherProtocol, `2 and 3`},
		{"one protocol", engine("prefill-0", 2, speaks("2")), engine("decode-0", 1, speaks("2")), 0, ""},
		{"a protocol that is not told", p2, engine("decode-0", 1, speaks("3")), 0, ""},
		{"two protocols in one engine", append(engine("prefill-0", 2, speaks("2"))[:1:1], record("prefill-0", 7, 2, 1)), engine("decode-0", 1), MixedRecords, `2 on rank 0/0/0 and none on rank 0/0/1`},
		{"2 to 3", p2, engine("decode-0", 3), OtherTP, "2 and 3"},
		{"other heads", p2, engine("decode-0", 1, layoutOf(func(l *Layout) { l.Heads = 8 })), OtherHeads, "4 and 8"},
		{"6 heads on 4 ranks", engine("prefill-0", 4, layoutOf(func(l *Layout) { l.Heads = 6 })), engine("decode-0", 2, layoutOf(func(l *Layout) { l.Heads = 6 })), OtherHeads, "6 KV heads on 4"},
		{"other dtype", p2, engine("decode-0", 1, layoutOf(func(l *Layout) { l.DType = "fp8" })), OtherDType, `8 bytes of u64 and 8 bytes of fp8`},
		{"other width", p2, engine("decode-0", 1, layoutOf(func(l *Layout) { l.HeadBytes = 16 })), OtherDType, `8 bytes of u64 and 16 bytes`},
		{"one plane", p2, engine("decode-0", 1, layoutOf(func(l *Layout) {
			l.Regions = []Region{region(0), region(1)}
			l.Regions[0].Planes, l.Regions[1].Planes = 1, 1
		})), OtherDType, "2 and 1"},
		{"planes apart", p2, engine("decode-0", 1, layoutOf(func(l *Layout) {
			l.Regions = []Region{region(0), region(0), region(1), region(1)}
			for i := range l.Regions {
				l.Regions[i].Planes = 1
			}
		})), 0, ""},
		{"blocks 4 and 8", p2, engine("decode-0", 1, layoutOf(func(l *Layout) { l.BlockTokens = 8 })), 0, ""},
		{"blocks 4 and 6", p2, engine("decode-0", 1, layoutOf(func(l *Layout) { l.BlockTokens = 6 })), OtherBlock, "4 and 6"},
		{"logical 4 and 6, kernel 2 and 2", engine("prefill-0", 1, layoutOf(func(l *Layout) { l.Physical = 2 })), engine("decode-0", 1, layoutOf(func(l *Layout) { l.BlockTokens, l.Physical = 6, 3 })), 0, ""},
		{"other order", p2, engine("decode-0", 2, layoutOf(func(l *Layout) { l.Order = TokensFirst })), OtherOrder, `hnd and nhd`},
		{"other order, one head a rank", engine("prefill-0", 4), engine("decode-0", 4, layoutOf(func(l *Layout) { l.Order = TokensFirst })), 0, ""},
		{"tokens first, heads 2 and 4", engine("prefill-0", 2, layoutOf(func(l *Layout) { l.Order = TokensFirst })), engine("decode-0", 1, layoutOf(func(l *Layout) { l.Order = TokensFirst })), OtherOrder, "2 and 4 heads"},
		{"replicated and not", p2, engine("decode-0", 1, layoutOf(func(l *Layout) { l.Replicated = true })), OtherReplication, "false and true"},
		{"a layer less", p2, engine("decode-0", 1, layoutOf(func(l *Layout) { l.Regions = l.Regions[:1] })), OtherLayers, "prefill-0 has layers 0-1, decode-0 has 0"},
		{"a layer that one rank lacks", engine("prefill-0", 2, func(r *Record) { r.Layout.Regions = r.Layout.Regions[:2-r.Rank.TP] }), engine("decode-0", 2), MixedRecords, "prefill-0: rank 0/0/0 has layers 0-1 and rank 0/0/1 has 0"},
		{"a layer that one rank of decode lacks", p2, engine("decode-0", 2, func(r *Record) { r.Layout.Regions = r.Layout.Regions[:1+r.Rank.TP] }), MixedRecords, "decode-0: rank 0/0/0 has layers 0 and rank 0/0/1 has 0-1"},
		{"stock engines without layout", engine("prefill-0", 2, layoutOf(func(l *Layout) { *l = Layout{} })), engine("decode-0", 1, layoutOf(func(l *Layout) { *l = Layout{} })), 0, ""},
		{"stock engines with regions of their own", engine("prefill-0", 2, layoutOf(func(l *Layout) { l.Heads = 0 })), engine("decode-0", 1, layoutOf(func(l *Layout) { l.Heads, l.Regions = 0, l.Regions[:1] })), 0, ""},
		{"layout on one side", p2, engine("decode-0", 1, layoutOf(func(l *Layout) { *l = Layout{} })), OtherHeads, "4 and 0"},
	} {
		err := Pairable(c.p, c.d)
		var u *Unpairable
		switch {
		case c.reason == 0 && err != nil:
			t.Errorf("%s: %v; want pairable", c.name, err)
		case c.reason != 0 && !errors.As(err, &u):
			t.Errorf("%s: got %v; want %s", c.name, err, c.reason)
		case c.reason != 0 && (u.Reason != c.reason || !strings.Contains(u.Text, c.text)):
			t.Errorf("%s: got %s (%s); want %s naming %s", c.name, u.Reason, u.Text, c.reason, c.text)
		}
	}
}

// Stages of different depth pair as long as together they have the same layers.
func TestPairableOverStages(t *testing.T) {
	stages := func(name string, layers ...[]int) []Record {
		var recs []Record
		for i, stage := range layers {
			r := record(name, 7, 1, 0)
			r.Size, r.Rank = Rank{DP: 1, PP: len(layers), TP: 1}, Rank{PP: i}
			r.Layout.Regions = nil
			for _, l := range stage {
				r.Layout.Regions = append(r.Layout.Regions, region(l))
			}
			recs = append(recs, r)
		}
		return recs
	}
	if err := Pairable(stages("prefill-0", []int{0, 1, 2}, []int{3}), stages("decode-0", []int{0, 1, 2, 3})); err != nil {
		t.Error(err)
	}
	var u *Unpairable
	if err := Pairable(stages("prefill-0", []int{0, 1}, []int{3}), stages("decode-0", []int{0, 1, 2, 3})); !errors.As(err, &u) || u.Reason != OtherLayers || !strings.Contains(u.Text, "0-1,3") {
		t.Errorf("got %v; want a missing layer", err)
	}
}
