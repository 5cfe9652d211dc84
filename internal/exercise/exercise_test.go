package exercise

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// shown is what the page, the metrics and the runbook are to say of a fault.
type shown struct{ alert, what, metric string }

// TestEachFaultIsShown: the page's status names each fault with its place, and nothing else; the metric that its alert asks for says the same; and
// the runbook has a section for the alert.
func TestEachFaultIsShown(t *testing.T) {
	runbook, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for fault, want := range map[string]shown{
		"redis":     {"PdrouterMetadataBehind", "Redis", "pdrouter_metadata_behind 1"},
		"recompute": {"PdrouterRecomputing", "decode-1", `pdrouter_engine_recomputing{engine="decode-1"} 1`},
		"slow-pair": {"PdrouterPairSlow", "prefill-1 → decode-0", `pdrouter_pair_slow{decode="decode-0",prefill="prefill-1"} 1`},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Fault: fault, Calm: 3 * time.Second}
			if fault == "redis" {
				if cfg.Redis = findRedis(); cfg.Redis == "" {
					t.Skip("SKIPPED, not run with a real Redis: redis-server is not installed")
				}
			} else if testing.Short() {
				t.Skip("it is judged by requests of some seconds")
			}
			if !strings.Contains(string(runbook), "\n## "+want.alert+"\n") {
				t.Errorf("the runbook has no section %s", want.alert)
			}
			// What is slow is judged by what was usual before. Where other tests come and go on the same CPUs, that may be as slow.
			for range 3 {
				if isShown(t, cfg, want) {
					return
				}
			}
			t.Error("the fault is not shown")
		})
	}
}

// isShown runs an exercise and reports whether its fault is shown within two minutes. Whatever else is shown fails the test.
func isShown(t *testing.T, cfg Config, want shown) bool {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	}()
	defer func() {
		log, err := os.ReadFile(e.log.Name())
		if text := string(log); err != nil || strings.Contains(text, "side channel") || strings.Contains(text, "cannot be freed") {
			t.Errorf("the log warns of what is no fault: %v\n%s", err, text)
		}
	}()
	var status []byte
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		type problem struct {
			Alert, What, Why, Severity, Runbook string
			Since                               time.Time
		}
		var s struct{ Problems []problem }
		status = get(t, e.Operations+"/status")
		if err := json.Unmarshal(status, &s); err != nil {
			t.Fatal(err)
		}
		s.Problems = slices.DeleteFunc(s.Problems, func(p problem) bool { return p.Alert == "PdrouterNoPair" || p.Alert == "PdrouterErrors" }) // it starts
		if len(s.Problems) == 0 {
			continue
		}
		if p := s.Problems[0]; len(s.Problems) != 1 || p.Alert != want.alert || p.What != want.what || p.Why == "" || p.Severity != "warning" || time.Since(p.Since) > 2*time.Minute ||
			p.Runbook != "docs/runbook.md#"+strings.ToLower(want.alert) || cfg.Fault == "redis" && !strings.Contains(p.Why, e.redis.address()) {
			t.Errorf("the page says %+v; want %s of %s", s.Problems, want.alert, want.what)
			return true
		}
		if strings.Contains(string(get(t, e.Operations+"/metrics")), "\n"+want.metric+"\n") { // another sign of the same may come first
			return true
		}
	}
	t.Logf("not shown:\n%s", status)
	return false
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFaultsAreChecked: a fault that does not exist, or that cannot be had, is refused before anything starts.
func TestFaultsAreChecked(t *testing.T) {
	for _, cfg := range []Config{{Fault: "fire"}, {Fault: "redis"}} {
		if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "--fault") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if _, err := Start(t.Context(), Config{Fault: "recompute", Calm: -1}); err == nil || !strings.Contains(err.Error(), "--calm") {
		t.Errorf("calm below 0: %v", err)
	}
	for range 20 {
		if anyFault(Config{}) == "redis" {
			t.Fatal("without redis-server the fault redis is drawn")
		}
	}
}

// TestEndedInTheCalm: who ends it before anything was wrong is not told that something was.
func TestEndedInTheCalm(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, out := Command(), new(bytes.Buffer)
	c.SetArgs([]string{"--fault", "recompute", "--calm", "1h", "--redis-server", ""})
	c.SetOut(writerFunc(func(p []byte) (int, error) {
		cancel() // it is told that all runs
		return out.Write(p)
	}))
	if err := c.ExecuteContext(ctx); err != nil || !strings.Contains(out.String(), "\nNothing was wrong yet. It was to be recompute: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
