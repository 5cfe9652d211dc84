package router

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
	"pdrouter/router/report"
)

// TestPlane sends requests over connector kvplane: both legs name the transfer and the peer, and the books are kept.
func TestPlane(t *testing.T) {
	for _, body := range []string{plainBody, streamBody} {
		s, _, parts := newPlane(t, 1, 1)
		t.Run(body, func(t *testing.T) {
			g := start(t, s.cfg, parts)
			g.warmed()
			g.followed()
			r := g.post(pathCompletions, body, "X-Request-Id", "one")
			if got, whole := text(t, r); got != wholeText || !whole || r.Header.Get("X-Pdrouter-Reason") != "split" {
				t.Fatalf("text %q, whole %v, header %v", got, whole, r.Header)
			}
			var page *report.Transfer
			eventually(t, "the books of a request", func() bool { // the engines report in their own time
				w := httptest.NewRecorder()
				g.r.Operations().ServeHTTP(w, httptest.NewRequest("GET", "/requests?id=one", nil))
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
			for _, q := range s.c.all() {
				peer := map[string]any{"engine": "decode-0", "generation": 200.0}
				if q.Leg == "decode" {
					peer = map[string]any{"engine": "prefill-0", "generation": 100.0}
				}
				if diff := cmp.Diff(peer, q.KV["peer"]); diff != "" || q.KV["valid_ms"] == nil {
					t.Errorf("%s was sent %v: %s", q.Leg, q.KV, diff)
				}
			}
			g.settled()
			s.noHeld(t)
		})
	}
}

// TestFault52to58Plane breaks transfers of connector kvplane: both engines are told, and another pair serves.
func TestFault52to58Plane(t *testing.T) {
	for _, row := range []struct {
		name   string
		p, d   int
		faults map[string][]fault
	}{
		{"52 the transfer fails", 1, 2, map[string][]fault{"decode-0": {{Leg: "decode", Do: doNoKV}}}},
		{"54 P dies", 2, 1, map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doReset}}}},
		{"47 P refuses", 2, 1, map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doRefuse}}}},
		{"57 P never writes", 2, 2, map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doNeverKV}}}},
	} {
		for _, body := range []string{plainBody, streamBody} {
			unhurried(t, row.name+" "+body, func(t *testing.T) {
				s, _, parts := newPlane(t, row.p, row.d)
				s.cfg.Timeouts.Transfer = 500 * time.Millisecond
				g := start(t, s.cfg, parts)
				g.warmed()
				g.followed()
				s.setFaults(row.faults)
				r := g.post(pathCompletions, body)
				got, whole := text(t, r)
				if sum := g.last(1); got != wholeText || !whole || sum.Attempts < 2 {
					t.Errorf("text %q, whole %v, %+v", got, whole, sum)
				}
				g.settled()
				s.noHeld(t)
				s.c.mu.Lock()
				defer s.c.mu.Unlock()
				if s.c.cancels < 2 {
					t.Errorf("engines were told %d times; want both", s.c.cancels)
				}
			})
		}
	}
}

// TestFault58PlaneClientLeaves has the client leave in mid-prefill.
func TestFault58PlaneClientLeaves(t *testing.T) {
	s, _, parts := newPlane(t, 1, 1)
	g := start(t, s.cfg, parts)
	g.warmed()
	s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Do: doSlow, N: 60_000}}})
	p, d := s.c.count("", "prefill"), s.c.count("", "decode")
	leave(t, g, streamBody, func() bool { return s.c.count("", "prefill") == p+1 && s.c.count("", "decode") == d+1 })
	if sum := g.last(1); sum.Outcome != report.ClientLeft {
		t.Errorf("summary %+v", sum)
	}
	g.settled()
	s.noHeld(t)
	eventually(t, "both engines were told", func() bool {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		return s.c.cancels == 2
	})
}

// TestFault45NoPair has engines that may not be paired, or have published nothing: decode serves alone.
func TestFault45NoPair(t *testing.T) {
	s, records, parts := newPlane(t, 1, 1)
	parts.Planner = nil
	records.publish("prefill-0", metadata.Prefill, 7, "other model")
	g := start(t, s.cfg, parts)
	r := g.post(pathCompletions, plainBody)
	if r.Status != 200 || r.Header.Get("X-Pdrouter-Reason") != "no_pair" {
		t.Errorf("status %d, header %v", r.Status, r.Header)
	}
	records.publish("prefill-0", metadata.Prefill, 8, "same") // it was started anew, and fits
	if r := g.post(pathCompletions, plainBody); r.Header.Get("X-Pdrouter-Reason") != "split" {
		t.Errorf("status %d, header %v", r.Status, r.Header)
	}
}

// TestPlaneEndsWithoutALeg has prefill answer while its request ends: what it holds is given back by the cancel that both
// engines are told, and decode is asked for nothing.
func TestPlaneEndsWithoutALeg(t *testing.T) {
	s, _, parts := newPlane(t, 1, 1)
	g := start(t, s.cfg, parts)
	g.warmed()
	asked := s.c.count("", "")
	g.r.Debug().EndBehindPrefill(t.Context(), plainBody)
	if got := s.c.count("", ""); got != asked {
		t.Errorf("engines were asked %d more times; want none", got-asked)
	}
}
