package telemetry

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
)

// Logs is where everything is logged: JSON or text, from a level on, which both may change while it is used. The zero value writes JSON from
// level info on. Flush is to be called at the end.
type Logs struct {
	level slog.LevelVar
	text  atomic.Bool
	lines bufferedWriter
}

// Set changes level and format.
func (l *Logs) Set(level slog.Level, text bool) {
	l.level.Set(level)
	l.text.Store(text)
}

// SetLevel changes the level and leaves the format.
func (l *Logs) SetLevel(level slog.Level) { l.level.Set(level) }

// Level is the name of the level, as the configuration writes it: debug, info, warn or error.
func (l *Logs) Level() string { return strings.ToLower(l.level.Level().String()) }

// Logger returns a logger to w that follows what is set. It is called once.
func (l *Logs) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: &l.level}
	l.lines.to = w
	return slog.New(eitherHandler{l, slog.NewTextHandler(&l.lines, options), slog.NewJSONHandler(&l.lines, options), false})
}

// Flush writes what is still to be written.
func (l *Logs) Flush() { _ = l.lines.flush() }

// eitherHandler writes in one of two formats.
type eitherHandler struct {
	to        *Logs
	one, json slog.Handler
	with      bool // attributes or groups of a logger's own, which no line has that others wrote
}

// Line implements report.LineHandler: the lines of requests that ended well may wait a moment for others.
func (h eitherHandler) Line(l slog.Level, line []byte) bool {
	switch {
	case h.with || h.to.text.Load():
		return false
	case l > slog.LevelInfo:
		_, _ = h.to.lines.Write(line) // as slog does, there is nobody to tell
	default:
		h.to.lines.later(line)
	}
	return true
}

func (h eitherHandler) now() slog.Handler {
	if h.to.text.Load() {
		return h.one
	}
	return h.json
}

// Enabled implements slog.Handler.
func (h eitherHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.now().Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (h eitherHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.now().Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h eitherHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return eitherHandler{h.to, h.one.WithAttrs(attrs), h.json.WithAttrs(attrs), true}
}

// WithGroup implements slog.Handler.
func (h eitherHandler) WithGroup(name string) slog.Handler {
	return eitherHandler{h.to, h.one.WithGroup(name), h.json.WithGroup(name), true}
}
