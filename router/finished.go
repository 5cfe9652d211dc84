package router

import (
	"bytes"
	"log/slog"
)

// finished enters a request into the log, the latest requests and the metrics.
func (r *Router) finished(s *Summary) {
	if s.TransferID != "" {
		r.enterBooks(s)
	}
	r.recent.add(s)
	level := slog.LevelInfo
	if s.Outcome == FailedBefore || s.Outcome == FailedAfter {
		level = slog.LevelWarn
	}
	if r.log.Enabled(r.legs, level) {
		r.logRequest(level, s)
	}
	if r.now().parts.Observe != nil {
		r.now().parts.Observe(*s)
	}
}

// enterBooks copies what the engines have reported by now of the request's last transfer.
func (r *Router) enterBooks(s *Summary) {
	page, ready := r.books.read(s.TransferID)
	if page == nil {
		return
	}
	s.Books = page
	if !ready.IsZero() {
		s.Phases.Transfer = ready.Sub(s.Arrived)
	}
}

var usageKey = []byte(`"usage"`)

// hasUsage reports whether an event may carry usage: a cheap test before its data is parsed.
func hasUsage(event []byte) bool { return bytes.Contains(event, usageKey) }
