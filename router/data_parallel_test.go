package router

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/connector"
)

// TestFault20DataParallel addresses the ranks of engines by the policy's choice, whatever the client says, and knows each pair
// of ranks by itself. Both ranks of an engine use the same connections.
func TestFault20DataParallel(t *testing.T) {
	s := newPool(t, connector.NamePush, 1, 1, nil)
	m := &s.cfg.Models[0]
	m.Prefill[0].DataParallel, m.Decode[0].DataParallel = 2, 3
	g := start(t, s.cfg, Parts{})
	eventually(t, "every pair of ranks is known", func() bool { return g.r.Stats().Handshakes.Ready == 6 })
	g.settled()
	engines := g.r.Debug().Engines()
	if len(engines) != 5 || engines[0].Upstream() != engines[1].Upstream() || engines[0].Upstream() == engines[2].Upstream() {
		t.Fatalf("%d engines", len(engines))
	}
	before := s.c.count("", "")
	for range 30 {
		if r := g.post(pathCompletions, plainBody, "X-Data-Parallel-Rank", "9", "x-data-parallel-rank", "8"); r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		} else if name := r.Header.Get("X-Pdrouter-Decode"); !strings.HasPrefix(name, "decode-0.dp") {
			t.Errorf("decode %q", name)
		}
	}
	got := map[string]map[string]bool{"prefill": {}, "decode": {}}
	for _, q := range s.c.all()[before:] {
		ranks := q.Header.Values("X-Data-Parallel-Rank")
		if len(ranks) != 1 {
			t.Fatalf("ranks %q", ranks)
		}
		got[q.Leg][ranks[0]] = true
	}
	want := map[string]map[string]bool{"prefill": {"0": true, "1": true}, "decode": {"0": true, "1": true, "2": true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	g.settled()
	s.noHeld(t)
	cfg := s.cfg // one that stays is the same engine, with the same connections
	if err := g.r.Apply(cfg, Parts{}); err != nil {
		t.Fatal(err)
	}
	for i, e := range g.r.Debug().Engines() {
		if e != engines[i] {
			t.Errorf("%s is another engine", e.Name())
		}
	}
	if rank := http.CanonicalHeaderKey(RankHeader); rank != RankHeader {
		t.Errorf("header %s", rank)
	}
}
