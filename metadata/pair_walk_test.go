package metadata_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
)

// TestPairableProperty compares Pairable with the rules as sentences over what was drawn, not over the records: each of
// them alone forbids a pair, and nothing else does.
func TestPairableProperty(t *testing.T) {
	type shape struct {
		tp, dp, heads, tokens int
		connector, digest     string
		protocol              string
		lost                  bool // a rank has not published
	}
	draw := func(rng *rand.Rand) shape {
		s := shape{tp: 1 + rng.IntN(4), dp: 1 + rng.IntN(4)/3, heads: 4, tokens: 4, connector: "kvplane", digest: "same", protocol: "2", lost: rng.IntN(6) == 0}
		switch rng.IntN(10) {
		case 0:
			s.heads = 6
		case 1:
			s.tokens = []int{1, 6, 8, 12}[rng.IntN(4)]
		case 2:
			s.connector = []string{"", "vllm-nixl-push", "vllm-nixl-pull"}[rng.IntN(3)]
		case 3:
			s.digest = "other"
		case 4:
			s.protocol = "3"
		case 5:
			s.protocol = ""
		}
		return s
	}
	publish := func(rng *rand.Rand, name string, role metadata.Role, s shape) []metadata.Record {
		var recs []metadata.Record
		for dp := range s.dp {
			for tp := range s.tp {
				r := metadatatest.Record(name, 7, s.tp, tp)
				r.Role, r.Rank, r.Size = role, metadata.Rank{DP: dp, TP: tp}, metadata.Rank{DP: s.dp, PP: 1, TP: s.tp}
				r.Connector, r.Compatibility, r.ConnectorVersion = s.connector, s.digest, s.protocol
				r.Layout.Heads, r.Layout.BlockTokens, r.Layout.Physical = s.heads, s.tokens, 1
				recs = append(recs, r)
			}
		}
		rng.Shuffle(len(recs), func(i, k int) { recs[i], recs[k] = recs[k], recs[i] })
		if s.lost {
			recs = recs[1:]
		}
		return recs
	}
	whole := func(a, b int) bool { return max(a, b)%min(a, b) == 0 }
	seen := map[bool]int{}
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 45))
		p, d := draw(rng), draw(rng)
		want := !p.lost && !d.lost && p.connector != "" && p.connector == d.connector && p.digest == d.digest &&
			(p.protocol == d.protocol || p.protocol == "" || d.protocol == "") && whole(p.tp, d.tp) && p.dp*d.dp == 1 && p.heads == d.heads && whole(p.heads, p.tp) && whole(d.heads, d.tp) && whole(p.tokens, d.tokens)
		err := metadata.Pairable(publish(rng, "prefill-0", metadata.Prefill, p), publish(rng, "decode-0", metadata.Decode, d))
		var why *metadata.Unpairable
		if (err == nil) != want || err != nil && (!errors.As(err, &why) || why.Reason == 0 || why.Reason >= metadata.PairReasons || why.Text == "") {
			t.Fatalf("seed %d: %+v with %+v: %v; want pairable: %t", seed, p, d, err, want)
		}
		seen[want]++
	}
	if seen[true] < 100 || seen[false] < 100 {
		t.Errorf("%v: one answer is hardly ever drawn", seen)
	}
	for r := range metadata.PairReasons {
		if (r.String() == "") != (r == 0) || r.String() == "unknown" {
			t.Errorf("reason %d has no word", r)
		}
	}
}
