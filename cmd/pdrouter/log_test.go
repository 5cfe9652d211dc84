package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/configfile"
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

func TestGatheredLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := new(writes)
		g := &gathered{to: w}
		for range 2 { // the timer is used again
			w.clear()
			g.later([]byte("a\n"))
			g.later([]byte("b\n"))
			w.want(t)
			time.Sleep(gatherFor)
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
func TestGatheredLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no time passes meanwhile
		w := new(writes)
		g := &gathered{to: w}
		half := strings.Repeat("x", gatherMost/2)
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
		w, to := new(writes), new(logs)
		to.set(configfile.Log{Level: "info"})
		log := to.logger(w)
		h := log.Handler().(eitherHandler)
		for _, c := range []struct {
			level slog.Level
			now   bool
		}{{slog.LevelInfo, false}, {slog.LevelWarn, true}, {slog.LevelError, true}} {
			w.clear()
			if !h.Line(c.level, []byte("{}\n")) || len(w.got) > 0 != c.now {
				t.Errorf("%v: written at once: %q, want %v", c.level, w.got, c.now)
			}
			to.flush()
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
		to.set(configfile.Log{Level: "info", Format: "text"})
		if h.Line(slog.LevelInfo, []byte("{}\n")) {
			t.Error("a log in text takes a line of JSON")
		}
	})
}

// TestNoRequestMissingInTheLog ends a gateway right behind its last answer.
func TestNoRequestMissingInTheLog(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"choices":[]}`))
	}))
	defer engine.Close()
	p, address := startGateway(t, "models: [{name: m, engines: [{name: e, url: \""+engine.URL+"\"}]}]\n")
	const n = 20
	for range n {
		answer, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hello"}`))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s\n%s", answer.Status, p.Tail(10))
		}
	}
	if err := p.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(p.Log)
	if err != nil {
		t.Fatal(err)
	}
	if got := bytes.Count(log, []byte(`"msg":"request"`)); got != n {
		t.Errorf("the log has %d of %d requests:\n%s", got, n, log)
	}
	if !bytes.HasSuffix(log, []byte(`"msg":"stopped"}`+"\n")) {
		t.Errorf("the log ends in %s", p.Tail(1))
	}
}
