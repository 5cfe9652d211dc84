package router_test

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/routertest"
	"pdrouter/metadata"
	"pdrouter/router/dispatch"
	"pdrouter/router/report"
)

// TestPlane sends requests over connector kvplane: both legs name the transfer and the peer, and the books are kept.
func TestPlane(t *testing.T) {
	for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
		s, _, parts := routertest.NewPlane(t, 1, 1)
		t.Run(body, func(t *testing.T) {
			g := routertest.Start(t, s.Config, parts)
			g.WaitWarm()
			g.WaitFollowed()
			r := g.Post(routertest.PathCompletions, body, "X-Request-Id", "one")
			if got, whole := routertest.Text(t, r); got != routertest.WholeText || !whole || r.Header.Get("X-Pdrouter-Reason") != "split" {
				t.Fatalf("text %q, whole %v, header %v", got, whole, r.Header)
			}
			var page *report.Transfer
			routertest.Eventually(t, "the books of a request", func() bool { // the engines report in their own time
				w := httptest.NewRecorder()
				g.Router.Operations().ServeHTTP(w, httptest.NewRequest("GET", "/requests?id=one", nil))
				var sum report.Summary
				if err := json.Unmarshal(w.Body.Bytes(), &sum); err != nil {
					t.Fatalf("%d %s: %v", w.Code, w.Body, err)
				}
				page = sum.Transfer
				return page != nil && page.Ready && page.Bytes == 192
			})
			want := &report.Transfer{Blocks: 3, Bytes: 192, Counted: map[string]string{"0/0/0": "2/2"}, Ready: true}
			if diff := cmp.Diff(want, page); diff != "" {
				t.Errorf("books: -want +got\n%s", diff)
			}
			for _, q := range s.Cluster.All() {
				peer := map[string]any{"engine": "decode-0", "generation": 200.0}
				if q.Leg == "decode" {
					peer = map[string]any{"engine": "prefill-0", "generation": 100.0}
				}
				if diff := cmp.Diff(peer, q.KV["peer"]); diff != "" || q.KV["valid_ms"] == nil {
					t.Errorf("%s was sent %v: %s", q.Leg, q.KV, diff)
				}
			}
			g.WaitIdle()
			s.CheckNothingHeld(t)
		})
	}
}

// TestFault52to58Plane breaks transfers of connector kvplane: both engines are told, and another pair serves.
func TestFault52to58Plane(t *testing.T) {
	for _, row := range []struct {
		name   string
		p, d   int
		faults map[string][]routertest.Fault
	}{
		{"52 the transfer fails", 1, 2, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoNoKV}}}},
		{"54 P dies", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoReset}}}},
		{"47 P refuses", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoRefuse}}}},
		{"57 P never writes", 2, 2, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoNeverKV}}}},
	} {
		for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
			routertest.RunVirtual(t, row.name+" "+body, func(t *testing.T) {
				s, _, parts := routertest.NewPlane(t, row.p, row.d)
				s.Config.Timeouts.Transfer = 500 * time.Millisecond
				g := routertest.Start(t, s.Config, parts)
				g.WaitWarm()
				g.WaitFollowed()
				s.SetFaults(row.faults)
				r := g.Post(routertest.PathCompletions, body)
				got, whole := routertest.Text(t, r)
				if sum := g.Summary(1); got != routertest.WholeText || !whole || sum.Attempts < 2 {
					t.Errorf("text %q, whole %v, %+v", got, whole, sum)
				}
				g.WaitIdle()
				s.CheckNothingHeld(t)
				s.Cluster.Mu.Lock()
				defer s.Cluster.Mu.Unlock()
				if s.Cluster.Cancels < 2 {
					t.Errorf("engines were told %d times; want both", s.Cluster.Cancels)
				}
			})
		}
	}
}

// TestFault58PlaneClientLeaves has the client leave in mid-prefill.
func TestFault58PlaneClientLeaves(t *testing.T) {
	s, _, parts := routertest.NewPlane(t, 1, 1)
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoSlow, N: 60_000}}})
	p, d := s.Cluster.Count("", "prefill"), s.Cluster.Count("", "decode")
	leave(t, g, routertest.StreamBody, func() bool { return s.Cluster.Count("", "prefill") == p+1 && s.Cluster.Count("", "decode") == d+1 })
	if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft {
		t.Errorf("summary %+v", sum)
	}
	g.WaitIdle()
	s.CheckNothingHeld(t)
	routertest.Eventually(t, "both engines were told", func() bool {
		s.Cluster.Mu.Lock()
		defer s.Cluster.Mu.Unlock()
		return s.Cluster.Cancels == 2
	})
}

// TestFault45NoPair has engines that may not be paired, or have published nothing: decode serves alone.
func TestFault45NoPair(t *testing.T) {
	s, records, parts := routertest.NewPlane(t, 1, 1)
	parts.Planner = nil
	records.Publish("prefill-0", metadata.Prefill, 7, "other model")
	g := routertest.Start(t, s.Config, parts)
	r := g.Post(routertest.PathCompletions, routertest.PlainBody)
	if r.Status != 200 || r.Header.Get("X-Pdrouter-Reason") != "no_pair" {
		t.Errorf("status %d, header %v", r.Status, r.Header)
	}
	records.Publish("prefill-0", metadata.Prefill, 8, "same") // it was started anew, and fits
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Header.Get("X-Pdrouter-Reason") != "split" {
		t.Errorf("status %d, header %v", r.Status, r.Header)
	}
}
