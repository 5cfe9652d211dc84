package router_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestFault20DataParallel addresses the ranks of engines by the policy's choice, whatever the client says, and knows each pair
// of ranks by itself. Both ranks of an engine use the same connections.
func TestFault20DataParallel(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	m := &s.Config.Models[0]
	m.Prefill[0].DataParallel, m.Decode[0].DataParallel = 2, 3
	g := routertest.Start(t, s.Config, router.Parts{})
	routertest.Eventually(t, "every pair of ranks is known", func() bool { return g.Router.Stats().Handshakes.Ready == 6 })
	g.WaitIdle()
	engines := g.Router.Debug().Engines()
	if len(engines) != 5 || engines[0].Upstream() != engines[1].Upstream() || engines[0].Upstream() == engines[2].Upstream() {
		t.Fatalf("%d engines", len(engines))
	}
	before := s.Cluster.Count("", "")
	for range 30 {
		if r := g.Post(routertest.PathCompletions, routertest.PlainBody, "X-Data-Parallel-Rank", "9", "x-data-parallel-rank", "8"); r.Status != 200 {
			t.Fatalf("status %d: %s", r.Status, r.Body)
		} else if name := r.Header.Get("X-Pdrouter-Decode"); !strings.HasPrefix(name, "decode-0.dp") {
			t.Errorf("decode %q", name)
		}
	}
	got := map[string]map[string]bool{"prefill": {}, "decode": {}}
	for _, q := range s.Cluster.All()[before:] {
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
	g.WaitIdle()
	s.CheckNothingHeld(t)
	cfg := s.Config // one that stays is the same engine, with the same connections
	if err := g.Router.Apply(cfg, router.Parts{}); err != nil {
		t.Fatal(err)
	}
	for i, e := range g.Router.Debug().Engines() {
		if e != engines[i] {
			t.Errorf("%s is another engine", e.Name())
		}
	}
	if rank := http.CanonicalHeaderKey(router.RankHeader); rank != router.RankHeader {
		t.Errorf("header %s", rank)
	}
}
