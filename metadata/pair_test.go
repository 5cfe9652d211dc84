package metadata_test

import (
	"errors"
	"strings"
	"testing"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
)

func layoutOf(f func(*metadata.Layout)) func(*metadata.Record) {
	return func(r *metadata.Record) { f(&r.Layout) }
}

func speaks(version string) func(*metadata.Record) {
	return func(r *metadata.Record) { r.ConnectorVersion = version }
}

func TestFault45Pairable(t *testing.T) {
	p2 := metadatatest.Engine("prefill-0", 2)
	for _, c := range []struct {
		name   string
		p, d   []metadata.Record
		reason metadata.PairReason // 0 is pairable
		text   string              // both values
	}{
		{"2 to 2", p2, metadatatest.Engine("decode-0", 2), 0, ""},
		{"2 to 1", p2, metadatatest.Engine("decode-0", 1), 0, ""},
		{"2 to 4", p2, metadatatest.Engine("decode-0", 4), 0, ""},
		{"4 to 1", metadatatest.Engine("prefill-0", 4), metadatatest.Engine("decode-0", 1), 0, ""},
		{"both to both", metadatatest.Engine("prefill-0", 1, func(r *metadata.Record) { r.Role = metadata.Both }), metadatatest.Engine("decode-0", 1, func(r *metadata.Record) { r.Role = metadata.Both }), 0, ""},
		{"tensor parallelism above the heads", metadatatest.Engine("prefill-0", 8), metadatatest.Engine("decode-0", 2), 0, ""},
		{"3 of 4 ranks", metadatatest.Engine("prefill-0", 4)[:3], metadatatest.Engine("decode-0", 1), metadata.IncompleteRanks, "3 of 4"},
		{"nothing", nil, metadatatest.Engine("decode-0", 1), metadata.IncompleteRanks, "0 ranks"},
		{"two generations", append(metadatatest.Engine("prefill-0", 2)[:1:1], metadatatest.Record("prefill-0", 8, 2, 1)), metadatatest.Engine("decode-0", 1), metadata.MixedRecords, "prefill-0@7 and of prefill-0@8"},
		{"two sizes", append(metadatatest.Engine("prefill-0", 2)[:1:1], metadatatest.Record("prefill-0", 7, 4, 1)), metadatatest.Engine("decode-0", 1), metadata.MixedRecords, "1/1/2 on rank 0/0/0 and 1/1/4"},
		{"one rank twice", append(metadatatest.Engine("prefill-0", 2)[:1:1], metadatatest.Record("prefill-0", 7, 2, 0)), metadatatest.Engine("decode-0", 1), metadata.MixedRecords, "0/0/0 is there twice"},
		{"decode as prefill", metadatatest.Engine("decode-1", 1), metadatatest.Engine("decode-0", 1), metadata.WrongRole, "decode-1 is a decode engine"},
		{"prefill as decode", p2, metadatatest.Engine("prefill-1", 1), metadata.WrongRole, "prefill-1 is a prefill engine"},
		{"hands nothing off", metadatatest.Engine("prefill-0", 1, func(r *metadata.Record) { r.Connector = "" }), metadatatest.Engine("decode-0", 1), metadata.NoConnector, `none and kvplane`},
		{"push with pull", metadatatest.Engine("prefill-0", 1, func(r *metadata.Record) { r.Connector = "vllm-nixl-push" }), metadatatest.Engine("decode-0", 1, func(r *metadata.Record) { r.Connector = "vllm-nixl-pull" }), metadata.OtherConnector, `vllm-nixl-push on prefill, vllm-nixl-pull on decode`},
		{"tcp with nixl", p2, metadatatest.Engine("decode-0", 1, func(r *metadata.Record) { r.Transport = "nixl" }), metadata.OtherTransport, `tcp on prefill, nixl on decode`},
		{"other digest", p2, metadatatest.Engine("decode-0", 1, func(r *metadata.Record) { r.Compatibility = "other" }), metadata.Incompatible, `digest on prefill, other on decode`},
		{"other protocol", metadatatest.Engine("prefill-0", 2, speaks("2")), metadatatest.Engine("decode-0", 1, speaks("3")), metadata.OtherProtocol, `2 on prefill, 3 on decode`},
		{"one protocol", metadatatest.Engine("prefill-0", 2, speaks("2")), metadatatest.Engine("decode-0", 1, speaks("2")), 0, ""},
		{"a protocol that is not told", p2, metadatatest.Engine("decode-0", 1, speaks("3")), 0, ""},
		{"two protocols in one engine", append(metadatatest.Engine("prefill-0", 2, speaks("2"))[:1:1], metadatatest.Record("prefill-0", 7, 2, 1)), metadatatest.Engine("decode-0", 1), metadata.MixedRecords, `2 on rank 0/0/0 and none on rank 0/0/1`},
		{"2 to 3", p2, metadatatest.Engine("decode-0", 3), metadata.OtherTP, "2 on prefill, 3 on decode"},
		{"other heads", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.Heads = 8 })), metadata.OtherHeads, "4 on prefill, 8 on decode"},
		{"6 heads on 4 ranks", metadatatest.Engine("prefill-0", 4, layoutOf(func(l *metadata.Layout) { l.Heads = 6 })), metadatatest.Engine("decode-0", 2, layoutOf(func(l *metadata.Layout) { l.Heads = 6 })), metadata.OtherHeads, "6 KV heads on 4"},
		{"other dtype", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.DType = "fp8" })), metadata.OtherDType, `u64 on prefill, fp8 on decode`},
		{"other width", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.HeadBytes = 16 })), metadata.OtherDType, `head bytes: 8 on prefill, 16 on decode`},
		{"one plane", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) {
			l.Regions = []metadata.Region{metadatatest.Region(0), metadatatest.Region(1)}
			l.Regions[0].Planes, l.Regions[1].Planes = 1, 1
		})), metadata.OtherDType, "2 and 1"},
		{"planes apart", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) {
			l.Regions = []metadata.Region{metadatatest.Region(0), metadatatest.Region(0), metadatatest.Region(1), metadatatest.Region(1)}
			for i := range l.Regions {
				l.Regions[i].Planes = 1
			}
		})), 0, ""},
		{"blocks 4 and 8", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.BlockTokens = 8 })), 0, ""},
		{"blocks 4 and 6", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.BlockTokens = 6 })), metadata.OtherBlock, "4 and 6"},
		{"logical 4 and 6, kernel 2 and 2", metadatatest.Engine("prefill-0", 1, layoutOf(func(l *metadata.Layout) { l.Physical = 2 })), metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.BlockTokens, l.Physical = 6, 3 })), 0, ""},
		{"other order", p2, metadatatest.Engine("decode-0", 2, layoutOf(func(l *metadata.Layout) { l.Order = metadata.TokensFirst })), metadata.OtherOrder, `hnd and nhd`},
		{"other order, one head a rank", metadatatest.Engine("prefill-0", 4), metadatatest.Engine("decode-0", 4, layoutOf(func(l *metadata.Layout) { l.Order = metadata.TokensFirst })), 0, ""},
		{"tokens first, heads 2 and 4", metadatatest.Engine("prefill-0", 2, layoutOf(func(l *metadata.Layout) { l.Order = metadata.TokensFirst })), metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.Order = metadata.TokensFirst })), metadata.OtherOrder, "2 and 4 heads"},
		{"replicated and not", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.Replicated = true })), metadata.OtherReplication, "false on prefill, true on decode"},
		{"one on a GPU, over tcp", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.MemoryType = "vram" })), metadata.OtherMemory, "dram on prefill, vram on decode"},
		{"one on a GPU, over NIXL", metadatatest.Engine("prefill-0", 1, func(r *metadata.Record) { r.Transport = "nixl" }), metadatatest.Engine("decode-0", 1, func(r *metadata.Record) { r.Transport, r.Layout.MemoryType = "nixl", "vram" }), 0, ""},
		{"a layer less", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.Regions = l.Regions[:1] })), metadata.OtherLayers, "prefill-0 has layers 0-1, decode-0 has 0"},
		{"a layer that one rank lacks", metadatatest.Engine("prefill-0", 2, func(r *metadata.Record) { r.Layout.Regions = r.Layout.Regions[:2-r.Rank.TP] }), metadatatest.Engine("decode-0", 2), metadata.MixedRecords, "prefill-0: rank 0/0/0 has layers 0-1 and rank 0/0/1 has 0"},
		{"a layer that one rank of decode lacks", p2, metadatatest.Engine("decode-0", 2, func(r *metadata.Record) { r.Layout.Regions = r.Layout.Regions[:1+r.Rank.TP] }), metadata.MixedRecords, "decode-0: rank 0/0/0 has layers 0 and rank 0/0/1 has 0-1"},
		{"stock engines without layout", metadatatest.Engine("prefill-0", 2, layoutOf(func(l *metadata.Layout) { *l = metadata.Layout{} })), metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { *l = metadata.Layout{} })), 0, ""},
		{"stock engines with regions of their own", metadatatest.Engine("prefill-0", 2, layoutOf(func(l *metadata.Layout) { l.Heads = 0 })), metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { l.Heads, l.Regions = 0, l.Regions[:1] })), 0, ""},
		{"layout on one side", p2, metadatatest.Engine("decode-0", 1, layoutOf(func(l *metadata.Layout) { *l = metadata.Layout{} })), metadata.OtherHeads, "4 on prefill, 0 on decode"},
	} {
		err := metadata.Pairable(c.p, c.d)
		var u *metadata.Unpairable
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
	stages := func(name string, layers ...[]int) []metadata.Record {
		var recs []metadata.Record
		for i, stage := range layers {
			r := metadatatest.Record(name, 7, 1, 0)
			r.Size, r.Rank = metadata.Rank{DP: 1, PP: len(layers), TP: 1}, metadata.Rank{PP: i}
			r.Layout.Regions = nil
			for _, l := range stage {
				r.Layout.Regions = append(r.Layout.Regions, metadatatest.Region(l))
			}
			recs = append(recs, r)
		}
		return recs
	}
	if err := metadata.Pairable(stages("prefill-0", []int{0, 1, 2}, []int{3}), stages("decode-0", []int{0, 1, 2, 3})); err != nil {
		t.Error(err)
	}
	var u *metadata.Unpairable
	if err := metadata.Pairable(stages("prefill-0", []int{0, 1}, []int{3}), stages("decode-0", []int{0, 1, 2, 3})); !errors.As(err, &u) || u.Reason != metadata.OtherLayers || !strings.Contains(u.Text, "0-1,3") {
		t.Errorf("got %v; want a missing layer", err)
	}
}
