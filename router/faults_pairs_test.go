package router_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/store"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// published is a record of one rank as an engine would publish it.
func published(name string, role metadata.Role, generation uint64, tp, rank int) metadata.Record {
	r := metadata.Record{
		Version: metadata.RecordVersion, Incarnation: metadata.Incarnation{Engine: name, Generation: generation}, Role: role,
		Rank: metadata.Rank{TP: rank}, Size: metadata.Rank{DP: 1, PP: 1, TP: tp}, Connector: connector.NameKVPlane,
		Compatibility: "same", Transport: "tcp", Published: time.Now(), Expires: time.Now().Add(time.Hour),
	}
	r.Agent = r.ID() + "/" + r.Rank.String()
	return r
}

// refusing is the policy that serves no request without prefill.
func refusing(t *testing.T) fleet.Planner {
	t.Helper()
	p, err := policies.Parse("test.yaml", []byte("default: {split: {on_no_prefill: reject}}"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFault45Unpairable has engines whose records do not fit each other in a store. Requests are served by decode alone,
// or by the pair that fits; only where the policy wants prefill and no pair is left the answer is 503. /ready says why,
// and as soon as the records fit, requests are split.
func TestFault45Unpairable(t *testing.T) {
	ranks := func(n int) []metadata.Record {
		var recs []metadata.Record
		for i := range n {
			recs = append(recs, published("prefill-0", metadata.Prefill, 100, 4, i))
		}
		return recs
	}
	as := func(f func(*metadata.Record)) []metadata.Record {
		r := published("prefill-0", metadata.Prefill, 100, 1, 0)
		f(&r)
		return []metadata.Record{r}
	}
	for _, row := range []struct {
		name, reason string
		prefill      []metadata.Record
		repaired     []metadata.Record
	}{
		{"3 of 4 ranks", "incomplete_ranks", ranks(3), ranks(4)[3:]},
		{"no rank", "incomplete_ranks", nil, ranks(4)},
		{"another digest", "compatibility", as(func(r *metadata.Record) { r.Compatibility = "other" }), nil},
		{"push with pull", "connector", as(func(r *metadata.Record) { r.Connector = connector.NamePull }), nil},
		{"hands nothing off", "no_connector", as(func(r *metadata.Record) { r.Connector = "" }), nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, c := range []struct {
				prefills int
				refuse   bool
				status   int
				reason   string
			}{{1, false, 200, "no_pair"}, {1, true, 503, "no_pair"}, {2, true, 200, "split"}} {
				s, _, parts := routertest.NewPlane(t, c.prefills, 1)
				if parts.Planner = nil; c.refuse {
					parts.Planner = refusing(t)
				}
				records := store.NewMemory()
				put := func(recs ...metadata.Record) {
					for _, r := range recs {
						if err := records.Put(t.Context(), r); err != nil {
							t.Fatal(err)
						}
					}
				}
				put(row.prefill...)
				put(published("decode-0", metadata.Decode, 200, 1, 0))
				if c.prefills == 2 {
					put(published("prefill-1", metadata.Prefill, 101, 1, 0))
				}
				g := startOver(t, records, s.Config, parts)
				routertest.Eventually(t, "the reason is known", func() bool {
					p := g.Router.Stats().Pairs
					return p[0].Reason == row.reason && !p[0].Pairable && !p[0].Warm && p[0].Why != "" && (c.prefills == 1 || p[1].Warm)
				})
				if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != c.status || r.Header.Get("X-Pdrouter-Reason") != c.reason {
					t.Errorf("%+v: status %d, header %v", c, r.Status, r.Header)
				}
				if n := s.Cluster.Count("prefill-0", ""); n != 0 {
					t.Errorf("%d requests went to the engine that does not fit", n)
				}
				if row.repaired == nil {
					row.repaired = []metadata.Record{published("prefill-0", metadata.Prefill, 101, 1, 0)} // started anew, and fits
				}
				put(row.repaired...)
				routertest.Eventually(t, "the pair is warm", func() bool { p := g.Router.Stats().Pairs[0]; return p.Pairable && p.Warm && p.Why == "" })
				if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 || r.Header.Get("X-Pdrouter-Reason") != "split" {
					t.Errorf("%+v: repaired: status %d, header %v", c, r.Status, r.Header)
				}
				g.WaitIdle()
				g.Stop()
			}
		})
	}
}

// startOver serves with a local copy of the store.
func startOver(t *testing.T, store metadata.Store, cfg config.Config, parts router.Parts) *routertest.Gateway {
	t.Helper()
	local, err := cache.New(store, cache.Config{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	parts.Records = local
	g := routertest.Start(t, cfg, parts)
	local.Subscribe(g.Router.Renewed)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = local.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return g
}

// TestFault44PlaneRestarted starts an engine anew in the middle of a request. The request is tried again elsewhere; however
// often the news comes there is one more handshake per pair; and no leg names the old run after it.
func TestFault44PlaneRestarted(t *testing.T) {
	s, records, parts := routertest.NewPlane(t, 2, 1)
	s.Config.Health.Overload = 1 // a refusal spares nobody here
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	before := len(s.Cluster.All())
	s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoRefuseLate, N: 300}}})
	var reply routertest.Reply
	var asking sync.WaitGroup
	asking.Go(func() { reply = g.Post(routertest.PathCompletions, routertest.PlainBody) })
	routertest.Eventually(t, "the request is with the old run", func() bool { return len(s.Cluster.All()) >= before+2 })
	records.Publish("prefill-0", metadata.Prefill, 777, "same")
	mark := len(s.Cluster.All())
	var news sync.WaitGroup
	for range 10 {
		news.Go(func() { g.Router.Renewed("prefill-0") })
	}
	news.Wait()
	asking.Wait()
	if got, whole := routertest.Text(t, reply); got != routertest.WholeText || !whole {
		t.Fatalf("status %d, text %q, whole %v", reply.Status, got, whole)
	}
	if sum := g.Summary(1); sum.Attempts != 2 || sum.Prefill != "prefill-1" {
		t.Errorf("summary %+v; want another engine at the second attempt", sum)
	}
	g.WaitWarm()
	if st := g.Router.Stats().Handshakes; st.Ready != 2 || st.Done != 3 {
		t.Errorf("handshakes %+v; want one more", st)
	}
	if got, _ := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.PlainBody)); got != routertest.WholeText {
		t.Errorf("text %q", got)
	}
	renewed := 0
	for _, q := range s.Cluster.All()[mark:] {
		peer, _ := q.KV["peer"].(map[string]any)
		if q.Leg != "decode" || peer["engine"] != "prefill-0" {
			continue
		}
		if renewed++; peer["generation"] != 777.0 {
			t.Errorf("a leg after the restart names %v", peer)
		}
	}
	if renewed != 2 {
		t.Errorf("%d legs name the new run; want those of a handshake and of a request", renewed)
	}
	g.WaitIdle()
	s.CheckNothingHeld(t)
}
