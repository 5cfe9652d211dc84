package router

import (
	"bytes"
	"log/slog"
	"time"
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
		line := slog.NewRecord(time.Now(), level, "request", 0) // no caller: to find it takes as long as a system call
		line.AddAttrs(
			slog.String("request_id", s.RequestID), slog.String("model", s.Model), slog.String("route", s.Route),
			slog.Bool("stream", s.Stream), slog.Int("status", s.Status), slog.String("outcome", string(s.Outcome)),
			slog.String("reason", s.Reason), slog.String("prefill", s.Prefill), slog.String("decode", s.Decode),
			slog.Int("attempts", s.Attempts), slog.String("transfer_id", s.TransferID),
			slog.Duration("first_token", s.Phases.FirstToken), slog.Duration("total", s.Phases.Total),
			slog.Int("prompt_tokens", s.PromptTokens), slog.Int("output_tokens", s.OutputTokens),
			slog.String("subject", s.Subject), slog.Bool("stranded", s.Stranded), slog.Int("parts", len(s.Parts)))
		_ = r.log.Handler().Handle(r.legs, line) // as Logger does
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
