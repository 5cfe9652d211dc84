package router

import (
	"net/http"
	"testing"
	"time"

	"pdrouter/router/connector"
)

// TestNoQueue has a model whose place is taken, with limits.queue 0: a second request is refused at once.
func TestNoQueue(t *testing.T) {
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, connector.NameNone, 0, 1)
		s.cfg.Models[0].InFlight, s.cfg.Limits.Queue = 1, new(0)
		hold := make(chan struct{})
		s.d[0].hold(hold)
		g := startIn(t, n, s.cfg, parts)
		first := make(chan clientReply, 1)
		go func() { first <- g.post(pathCompletions, plainBody) }()
		eventually(t, "one has the place", func() bool { return g.r.Stats().Queues[0].InFlight == 1 })
		begun := time.Now()
		r := g.post(pathCompletions, plainBody)
		if r.Status != http.StatusServiceUnavailable || r.Header.Get("X-Pdrouter-Reason") != "queue_full" {
			t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
		}
		if took := time.Since(begun); took >= 5*time.Millisecond {
			t.Errorf("the refusal took %v", took)
		}
		close(hold)
		if r := <-first; r.Status != http.StatusOK {
			t.Errorf("the one with the place: status %d: %s", r.Status, r.Body)
		}
	})
}

// TestNoRetryBudget has engines fail with limits.retry_percent and limits.retry_floor 0: no request is tried again.
func TestNoRetryBudget(t *testing.T) {
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, connector.NameNone, 0, 2)
		s.cfg.Limits.RetryPercent, s.cfg.Limits.RetryFloor = new(0), new(0)
		s.setFaults(map[string][]fault{"decode-0": {{Do: doError}}})
		g := startIn(t, n, s.cfg, parts)
		r := g.post(pathCompletions, plainBody)
		if sum := g.last(1); r.Status == http.StatusOK || sum.Attempts != 1 {
			t.Errorf("status %d with %d attempts; want an error with 1: %s", r.Status, sum.Attempts, r.Body)
		}
	})
}
