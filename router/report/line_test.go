package report

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/trace"
)

// lineOf is the line that slog's handler makes of a request, and the one that is written by hand.
func lineOf(t *testing.T, now time.Time, level slog.Level, s *Summary) (want, got string) {
	t.Helper()
	var b bytes.Buffer
	if err := slog.NewJSONHandler(&b, nil).Handle(t.Context(), requestRecord(now, level, s)); err != nil {
		t.Fatal(err)
	}
	return b.String(), string(appendRequestLine(nil, now, level, s))
}

func TestRequestLine(t *testing.T) {
	now := time.Date(2026, 11, 22, 14, 0, 0, 120_000_000, time.FixedZone("", 3600))
	full := Summary{RequestID: "r-1", Model: "m", Route: "/v1/chat/completions", Stream: true, Status: 200, Outcome: dispatch.Completed, Reason: "split",
		Prefill: "p0", Decode: "d0", Attempts: 2, TransferID: strings.Repeat("ab", 16), PromptTokens: 100, OutputTokens: 16, Subject: "alice",
		Leaked: true, Parts: make([]Part, 2)}
	full.Phases.Prefill, full.Phases.FirstToken, full.Phases.Total = 1000000*time.Nanosecond, 1234567*time.Nanosecond, time.Minute
	full.TraceID, full.PredictedCachedTokens, full.CountedCachedTokens = &trace.ID{1}, 64, -1
	for name, s := range map[string]*Summary{"full": &full, "empty": {}, "markup": {Subject: "<a href='&amp;'> ~"}} {
		for _, at := range []time.Time{now, now.UTC(), time.Now()} {
			for _, level := range []slog.Level{slog.LevelInfo, slog.LevelWarn} {
				if want, got := lineOf(t, at, level, s); got != want {
					t.Errorf("%s: got\n%swant\n%s", name, got, want)
				}
			}
		}
	}
}

// Whatever a token's subject or a request's id is, the line is one line, and says the same as slog's.
func FuzzRequestLine(f *testing.F) {
	f.Add(`a"b\`, "größer\x00\n\u2028", "\xff")
	f.Fuzz(func(t *testing.T, id, subject, model string) {
		want, got := lineOf(t, time.Unix(1, 0), slog.LevelInfo, &Summary{RequestID: id, Subject: subject, Model: model})
		var x, y map[string]any
		if json.Unmarshal([]byte(want), &x) != nil || json.Unmarshal([]byte(got), &y) != nil || !reflect.DeepEqual(x, y) || strings.Count(got, "\n") != 1 {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}

// lines is a handler that takes lines, or does not.
type lines struct {
	slog.Handler
	takes bool
	got   []string
}

func (l *lines) Line(_ slog.Level, line []byte) bool {
	if l.takes {
		l.got = append(l.got, string(line))
	}
	return l.takes
}

func TestLogRequest(t *testing.T) {
	for _, takes := range []bool{true, false} {
		var b bytes.Buffer
		h := &lines{Handler: slog.NewTextHandler(&b, nil), takes: takes}
		r := &Reporter{log: slog.New(h)}
		for range 2 {
			r.logRequest(slog.LevelInfo, &Summary{RequestID: "r-1"})
		}
		handled := strings.Count(b.String(), "msg=request request_id=r-1 ")
		if len(h.got)+handled != 2 || takes != (len(h.got) == 2) {
			t.Errorf("a handler that takes lines (%v) has got %d lines and %d records of two requests", takes, len(h.got), handled)
		}
	}
}

func BenchmarkRequestLine(b *testing.B) {
	s := Summary{RequestID: strings.Repeat("ab", 16), Model: "m", Route: "/v1/chat/completions", Status: 200, Outcome: dispatch.Completed, Reason: "split",
		Prefill: "p0", Decode: "d0", Attempts: 1, TransferID: strings.Repeat("ab", 16), PromptTokens: 100, OutputTokens: 16}
	s.Phases.FirstToken, s.Phases.Total = 1234567, 2345678
	for name, h := range map[string]slog.Handler{"slog": slog.NewJSONHandler(io.Discard, nil), "by hand": &discards{Handler: slog.NewJSONHandler(io.Discard, nil)}} {
		b.Run(name, func(b *testing.B) {
			r := &Reporter{log: slog.New(h)}
			b.ReportAllocs()
			for b.Loop() {
				r.logRequest(slog.LevelInfo, &s)
			}
		})
	}
}

// discards takes lines and does nothing.
type discards struct{ slog.Handler }

func (discards) Line(slog.Level, []byte) bool { return true }
