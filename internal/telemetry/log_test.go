package telemetry

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// writes notes each write.
type writes struct {
	mu  sync.Mutex
	got []string
}

func (w *writes) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, string(p))
	return len(p), nil
}

func (w *writes) want(t *testing.T, want ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.Join(w.got, "|") != strings.Join(want, "|") {
		t.Errorf("written: %q, want %q", w.got, want)
	}
}

func (w *writes) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = nil
}

func TestBufferedLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := new(writes)
		g := &bufferedWriter{to: w}
		for range 2 { // the timer is used again
			w.clear()
			g.later([]byte("a\n"))
			g.later([]byte("b\n"))
			w.want(t)
			time.Sleep(waitFor)
			synctest.Wait()
			w.want(t, "a\nb\n")
		}
		w.clear()
		g.later([]byte("c\n"))
		if n, err := g.Write([]byte("d\n")); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		w.want(t, "c\nd\n")
		g.later([]byte("e\n"))
		_ = g.flush()
		time.Sleep(time.Second)
		synctest.Wait()
		w.want(t, "c\nd\n", "e\n")
	})
}

// More lines than there is room for wait for nobody but who writes them.
func TestBufferedLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no time passes meanwhile
		w := new(writes)
		g := &bufferedWriter{to: w}
		half := strings.Repeat("x", maxBuffered/2)
		g.later([]byte(half))
		w.want(t)
		g.later([]byte(half))
		w.want(t, half+half)
		if len(g.lines) > 0 {
			t.Errorf("%d bytes still wait", len(g.lines))
		}
	})
}

func TestLinesOfLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, to := new(writes), new(Logs)
		to.Set(slog.LevelInfo, false)
		log := to.Logger(w)
		h := log.Handler().(eitherHandler)
		for _, c := range []struct {
			level slog.Level
			now   bool
		}{{slog.LevelInfo, false}, {slog.LevelWarn, true}, {slog.LevelError, true}} {
			w.clear()
			if !h.Line(c.level, []byte("{}\n")) || len(w.got) > 0 != c.now {
				t.Errorf("%v: written at once: %q, want %v", c.level, w.got, c.now)
			}
			to.Flush()
			w.want(t, "{}\n")
		}
		w.clear()
		h.Line(slog.LevelInfo, []byte("{}\n"))
		log.Info("told")
		if len(w.got) != 1 || !strings.HasPrefix(w.got[0], "{}\n{") || !strings.HasSuffix(w.got[0], `,"msg":"told"}`+"\n") {
			t.Errorf("written: %q, want both lines in their order", w.got)
		}
		if with := log.With("a", 1).Handler().(eitherHandler); with.Line(slog.LevelInfo, []byte("{}\n")) {
			t.Error("a logger with an attribute takes a line that has none")
		}
		if with := log.WithGroup("g").Handler().(eitherHandler); with.Line(slog.LevelInfo, []byte("{}\n")) {
			t.Error("a logger with a group takes a line that has none")
		}
		to.Set(slog.LevelInfo, true)
		if h.Line(slog.LevelInfo, []byte("{}\n")) {
			t.Error("a log in text takes a line of JSON")
		}
	})
}
