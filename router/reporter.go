package router

import (
	"context"
	"log/slog"
	"sync"
)

// reporter enters finished requests into the log and keeps the latest of them, with what was said of their transfers. It is safe for
// concurrent use.
type reporter struct {
	log       *slog.Logger
	transfers *transfers
	lines     sync.Pool // of *[]byte, for the lines of requests

	mu     sync.Mutex
	recent []Summary // a ring
	next   int       // where the next one goes
	full   bool
}

// newReporter returns one that keeps n requests, and the transfers of some more.
func newReporter(log *slog.Logger, n int) *reporter {
	return &reporter{log: log, transfers: newTransfers(4 * n), recent: make([]Summary, n)}
}

// finished enters a request into the log and the latest requests, and tells observe, unless it is nil.
func (r *reporter) finished(s *Summary, observe func(Summary)) {
	r.addTransfer(s)
	r.mu.Lock()
	r.recent[r.next] = *s
	if r.next++; r.next == len(r.recent) {
		r.next, r.full = 0, true
	}
	r.mu.Unlock()
	level := slog.LevelInfo
	if s.Outcome == FailedBefore || s.Outcome == FailedAfter {
		level = slog.LevelWarn
	}
	if r.log.Enabled(context.Background(), level) {
		r.logRequest(level, s)
	}
	if observe != nil {
		observe(*s)
	}
}

// addTransfer copies what the engines have reported by now of the request's last transfer.
func (r *reporter) addTransfer(s *Summary) {
	if s.TransferID == "" {
		return
	}
	t, ready := r.transfers.read(s.TransferID)
	if t == nil {
		return
	}
	s.Books = t
	if !ready.IsZero() {
		s.Phases.Transfer = ready.Sub(s.Arrived)
	}
}

// latest returns the latest requests, newest first: those with this request id, or all if it is "".
func (r *reporter) latest(id string) []Summary {
	r.mu.Lock()
	n := r.next
	if r.full {
		n = len(r.recent)
	}
	out := make([]Summary, 0, n)
	for i := 1; i <= n; i++ {
		s := &r.recent[(r.next-i+len(r.recent))%len(r.recent)]
		if id == "" || s.RequestID == id {
			out = append(out, *s)
		}
	}
	r.mu.Unlock()
	for i := range out {
		r.addTransfer(&out[i])
	}
	return out
}
