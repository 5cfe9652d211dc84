package main

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
)

// logs is where everything is logged, as the configuration says it at the moment.
type logs struct {
	level slog.LevelVar
	text  atomic.Bool
}

// set takes a section that was found sound.
func (l *logs) set(cfg logConfig) {
	level, _ := cfg.level() // validated
	l.level.Set(level)
	l.text.Store(cfg.Format == "text")
}

// logger returns a logger to w that follows what is set.
func (l *logs) logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: &l.level}
	return slog.New(eitherHandler{&l.text, slog.NewTextHandler(w, options), slog.NewJSONHandler(w, options)})
}

// eitherHandler writes in one of two formats.
type eitherHandler struct {
	text      *atomic.Bool
	one, json slog.Handler
}

func (h eitherHandler) now() slog.Handler {
	if h.text.Load() {
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
	return eitherHandler{h.text, h.one.WithAttrs(attrs), h.json.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h eitherHandler) WithGroup(name string) slog.Handler {
	return eitherHandler{h.text, h.one.WithGroup(name), h.json.WithGroup(name)}
}
