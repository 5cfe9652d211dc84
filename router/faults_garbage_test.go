package router_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// lockedBuffer is a log's destination.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestUnusableAnswer has an engine answer 200 with what is no answer: none of it gets into the log.
func TestUnusableAnswer(t *testing.T) {
	for _, row := range []struct{ do, secret string }{{routertest.DoGarbage, "hello"}, {routertest.DoTrail, "secret"}} {
		t.Run(row.do, func(t *testing.T) {
			var log lockedBuffer
			s := routertest.NewPool(t, connector.NameNone, 0, 1, map[string][]routertest.Fault{"decode-0": {{Do: row.do}}})
			g := routertest.Start(t, s.Config, router.Parts{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if sum := g.Summary(1); r.Status != 502 || sum.Outcome != dispatch.FailedBefore || sum.Reason != "bad_upstream" {
				t.Errorf("status %d, summary %+v; want 502, failed_before, bad_upstream", r.Status, sum)
			}
			g.Stop()
			if got := log.String(); strings.Contains(got, row.secret) || !strings.Contains(got, "bytes of") {
				t.Errorf("log: %s", got)
			}
		})
	}
}
