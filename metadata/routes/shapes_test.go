package routes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
)

// Records of one shape are pairable with the same engines and map onto the same ranks: whatever Pairable and Maps look at is
// part of a shape. Engines that differ in one thing at a time are compared with every other.
func TestShapesDecideAboutPairs(t *testing.T) {
	changes := []func(r *metadata.Record){
		func(*metadata.Record) {}, func(r *metadata.Record) { r.Role = metadata.Both }, func(r *metadata.Record) { r.Role = metadata.Decode }, func(r *metadata.Record) { r.Connector = "vllm-nixl-push" },
		func(r *metadata.Record) { r.ConnectorVersion = "2" }, func(r *metadata.Record) { r.ConnectorVersion = "3" }, func(r *metadata.Record) { r.Compatibility = "another" },
		func(r *metadata.Record) { r.Transport = "nixl" }, func(r *metadata.Record) { r.Size.TP = 3 }, func(r *metadata.Record) { r.Size.DP = 2 }, func(r *metadata.Record) { r.Layout.Heads = 8 },
		func(r *metadata.Record) { r.Layout.HeadBytes = 4 }, func(r *metadata.Record) { r.Layout.BlockTokens = 12 }, func(r *metadata.Record) { r.Layout.Physical = 2 },
		func(r *metadata.Record) { r.Layout.Order = metadata.TokensFirst }, func(r *metadata.Record) { r.Layout.DType = "f16" }, func(r *metadata.Record) { r.Layout.Replicated = true },
		func(r *metadata.Record) { r.Layout.Regions = r.Layout.Regions[:1] }, func(r *metadata.Record) { r.Layout.Regions = nil },
		func(r *metadata.Record) {
			r.Layout.Regions = []metadata.Region{metadatatest.Region(0), metadatatest.Region(2)}
		},
		func(r *metadata.Record) { r.Layout.Regions[0].Planes = 1 }, func(r *metadata.Record) { r.Blob, r.Agent, r.HTTP = []byte("x"), "x", "x" },
		func(r *metadata.Record) { r.Layout.Regions[0].Base = 9 }, func(r *metadata.Record) { r.Rank.DP = 1 }, func(r *metadata.Record) { r.Generation += uint64(r.Rank.TP) },
	}
	var engines [][]metadata.Record
	for i, change := range changes {
		for _, name := range []string{"prefill-", "decode-"} {
			for _, tp := range []int{1, 2} {
				var recs []metadata.Record
				for rank := range tp {
					r := metadatatest.Record(fmt.Sprint(name, tp, "-", i), 7, tp, rank)
					change(&r)
					recs = append(recs, r)
				}
				engines = append(engines, recs)
			}
		}
	}
	rand.Shuffle(len(engines), func(i, j int) { engines[i], engines[j] = engines[j], engines[i] })
	s := newShapes()
	ranks := []metadata.Rank{{TP: 1}}
	for range 2 { // again from what is remembered
		for _, x := range engines {
			for _, y := range engines {
				got := s.judge(s.of(x), s.of(y), ranks, "1")
				want := verdict{}
				var why *metadata.Unpairable
				if errors.As(pairableEither(x, y), &why) {
					want.reason = why.Reason
				} else {
					want.ranks = mapped(x, ranks, y)
				}
				if got.reason != want.reason || fmt.Sprint(got.ranks) != fmt.Sprint(want.ranks) {
					t.Errorf("%s with %s: got %+v; want %+v", x[0].Engine, y[0].Engine, got, want)
				}
			}
		}
	}
	if len(s.verdicts) >= len(engines)*len(engines) {
		t.Errorf("%d judgements of %d engines: none share a shape", len(s.verdicts), len(engines))
	}
}
