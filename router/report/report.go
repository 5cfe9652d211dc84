// Package report records finished requests: their log lines, the latest of them, and what the engines reported of their KV transfers.
//
// It owns the Summary of a request and what engines' event streams reported of its transfer. It does not decide how a request ends,
// and it has no routes and no metrics: package router serves the latest requests, and the command counts summaries.
//
// The driver of a request calls Finished once. The reader of the engines' event streams calls Transfers.Note.
package report

import (
	"context"
	"log/slog"
	"sync"

	"pdrouter/router/dispatch"
	"pdrouter/router/trace"
)

// Reporter logs finished requests and keeps the latest of them, with the reports of their transfers. It is safe for concurrent use.
type Reporter struct {
	log       *slog.Logger
	Transfers *Transfers
	lines     sync.Pool // of *[]byte, for the lines of requests

	mu     sync.Mutex
	recent []Summary // a ring
	next   int       // where the next one goes
	full   bool
}

// New returns a Reporter that keeps the latest n requests, and the latest 4n transfers.
func New(log *slog.Logger, n int) *Reporter {
	return &Reporter{log: log, Transfers: newTransfers(4 * n), recent: make([]Summary, n)}
}

// Finished logs a request, adds it to the latest requests, ends its trace and passes it to observe. t and observe may be nil.
func (r *Reporter) Finished(s *Summary, t *trace.Trace, observe func(Summary)) {
	r.AddTransfer(s)
	s.endTrace(t)
	r.mu.Lock()
	r.recent[r.next] = *s
	if r.next++; r.next == len(r.recent) {
		r.next, r.full = 0, true
	}
	r.mu.Unlock()
	level := slog.LevelInfo
	if s.Outcome == dispatch.FailedBefore || s.Outcome == dispatch.FailedAfter {
		level = slog.LevelWarn
	}
	if r.log.Enabled(context.Background(), level) {
		r.logRequest(level, s)
	}
	if observe != nil {
		observe(*s)
	}
}

// AddTransfer copies the engines' reports of the request's last transfer so far.
func (r *Reporter) AddTransfer(s *Summary) {
	if s.TransferID == "" {
		return
	}
	t, ready := r.Transfers.read(s.TransferID)
	if t == nil {
		return
	}
	s.Transfer = t
	if !ready.IsZero() {
		s.Phases.Transfer = ready.Sub(s.Arrived)
	}
}

// Latest returns the latest requests, newest first: those with this request id, or all if it is "".
func (r *Reporter) Latest(id string) []Summary {
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
		r.AddTransfer(&out[i])
	}
	return out
}
