package router_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/openai/answer"
	"pdrouter/router/report"
)

// TestEngineErrorsTold has an engine fail in many words: the client is told its message where it has one, bounded and without
// addresses, tokens or what is said of the hand-off; the status and the first bytes of each attempt are in the log and in
// /requests, which name no credential.
func TestEngineErrorsTold(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("s3cret-of-the-engine"), 0o600); err != nil {
		t.Fatal(err)
	}
	const generic = "The engine's answer could not be used."
	long := strings.Repeat("long ", 1000)
	for _, row := range []struct {
		name           string
		status         int
		ctype, says    string
		reason, client string
		noted          string // of the log and /requests
	}{
		{"JSON", 500, "application/json", `{"error":{"message":"CUDA out of memory: \"tried\" 2 GiB","type":"InternalServerError"}}`,
			"decode_failed", `The engine failed: CUDA out of memory: "tried" 2 GiB`, "CUDA out of memory"},
		{"plain text", 500, "text/plain; charset=utf-8", "Internal\n Server\tError", "decode_failed", "The engine failed: Internal Server Error", "Internal"},
		{"a page", 502, "text/html", "<html>bad gateway</html>", "decode_failed", generic, "bad gateway"},
		{"nothing", 500, "application/json", "", "decode_failed", generic, ""},
		{"refused", 503, "application/json", `{"error":{"message":"the queue is full"}}`, "engine_refused", "The engine refused the request: the queue is full", "queue is full"},
		{"addresses", 500, "application/json", `{"error":{"message":"no way to tcp://10.1.2.3:5600, 10.1.2.3, [2001:db8::7]:80, fe80::1, decode-0.svc.local:8000 or localhost:1 in std::vector at 12:30:45"}}`,
			"decode_failed", "The engine failed: no way to [address] [address], [address], [address], [address] or [address] in std::vector at 12:30:45", "no way to"},
		{"tokens", 500, "application/json", `{"error":{"message":"got Bearer abc.def and eyJhbGciOi.eyJzdWIi.c2ln and sk-0123456789abcdef"}}`,
			"decode_failed", "The engine failed: got [token] and [token] and [token]", "got"},
		{"its own credential", 500, "application/json", `{"error":{"message":"key s3cret-of-the-engine expired"}}`, "decode_failed", generic, "key [credential] expired"},
		{"the hand-off", 500, "application/json", `{"error":{"message":"bad kv_transfer_params"}}`, "decode_failed", generic, "bad"},
		{"long", 500, "application/json", `{"error":{"message":"` + long + `"}}`, "decode_failed", "The engine failed: long long ", "long"},
		{"long, of escapes", 500, "application/json", `{"error":{"message":"x` + strings.Repeat(`\ud83d\ude00`, 500) + `"}}`, "decode_failed", "The engine failed: x😀", "ud83d"},
		{"401", 401, "application/json", `{"error":{"message":"Unauthorized: s3cret-of-the-engine"}}`, "credentials_refused", "The engine refused the gateway's credentials.", "credentials"},
		{"403", 403, "text/plain", "no", "credentials_refused", "The engine refused the gateway's credentials.", "credentials"},
	} {
		for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
			t.Run(row.name+map[bool]string{true: ", streamed"}[body == routertest.StreamBody], func(t *testing.T) {
				e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
					w.Header().Set("Content-Type", row.ctype)
					w.WriteHeader(row.status)
					_, _ = io.WriteString(w, row.says)
				})
				var log lockedBuffer
				cfg := routertest.AnyFleet(e)
				cfg.Models[0].Engines[0].BearerTokenFile, cfg.Limits.Attempts = key, 2
				g := routertest.Start(t, cfg, router.Parts{Log: slog.New(slog.NewTextHandler(&log, nil))})
				r := g.Post(routertest.PathCompletions, body)
				got := routertest.ErrorOf(t, r.Body)
				if want := map[string]int{"engine_refused": 503}[row.reason]; r.Status != max(want, 502) || r.Header.Get("X-Pdrouter-Reason") != row.reason {
					t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
				}
				if got.Message != row.client && (!strings.HasPrefix(row.name, "long") || !strings.HasPrefix(got.Message, row.client)) || len(got.Message) > answer.MaxErrorMessage {
					t.Errorf("the client was told %q; want %q", got.Message, row.client)
				}
				sum := g.Summary(1)
				if len(sum.Failures) != int(sum.Attempts) || sum.Attempts != 2 {
					t.Fatalf("%d attempts, failures %+v", sum.Attempts, sum.Failures)
				}
				text := log.String()
				for i, f := range sum.Failures {
					if f.Attempt != i+1 || f.Engine == "" || f.Status != row.status || f.Reason != row.reason || f.Cause == "" ||
						!strings.Contains(f.Cause+f.Answer, row.noted) || len(f.Answer) > router.MaxLoggedAnswer {
						t.Errorf("failure %+v", f)
					}
				}
				if strings.Count(text, `msg="attempt failed"`) != 2 || !strings.Contains(text, fmt.Sprintf("status=%d ", row.status)) || strings.Contains(text, "s3cret") {
					t.Errorf("the log: %s", text)
				}
				rec := httptest.NewRecorder()
				g.Router.Operations().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/requests?id="+r.Header.Get("X-Request-Id"), nil))
				var shown report.Summary
				if err := json.Unmarshal(rec.Body.Bytes(), &shown); err != nil || len(shown.Failures) != 2 || strings.Contains(rec.Body.String(), "s3cret") {
					t.Errorf("/requests: %v %s", err, rec.Body)
				}
			})
		}
	}
}

// TestPrefillErrorsTold has prefill fail, before decode and beside it, and a stream of decode fail with its first event, or later.
func TestPrefillErrorsTold(t *testing.T) {
	for _, row := range []struct {
		name, connector, reason, client string
		faults                          map[string][]routertest.Fault
		cause                           string
	}{
		{"pull, prefill", connector.NamePull, "prefill_failed", "The engine failed: as told", map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoError}}}, "as told"},
		{"push, prefill", connector.NamePush, "prefill_failed", "The engine failed: as told", map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoError}}}, "as told"},
		{"pull, decode's first event", connector.NamePull, "decode_failed", "The engine failed: as told", map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoErrFrame, N: 0}}}, "as told"},
		{"none, a connection that breaks", connector.NameNone, "decode_failed", "The engine's answer could not be used.", map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoReset}}}, "upstream"},
		{"none, a stream without its end", connector.NameNone, "stream_cut", "The engine's answer could not be used.", map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoNoDone, N: 2}}}, "EOF"},
		{"none, an error event", connector.NameNone, "decode_failed", "as told", map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoErrFrame, N: 2}}}, "as told"},
	} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s := routertest.NewPool(t, row.connector, 1, 1, nil)
			s.Config.Limits.Attempts = 1
			var log lockedBuffer
			g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if row.connector != connector.NameNone {
				g.WaitWarm()
			}
			s.SetFaults(row.faults)
			r := g.Post(routertest.PathCompletions, routertest.StreamBody)
			sum := g.Summary(1)
			if sum.Reason != row.reason || !strings.Contains(r.Body, `"message":"`+row.client) {
				t.Errorf("%s, end %v: %s", sum.Reason, r.Err, r.Body)
			}
			if len(sum.Failures) != 1 || !strings.Contains(sum.Failures[0].Cause, row.cause) || sum.Failures[0].Reason != row.reason {
				t.Errorf("failures %+v", sum.Failures)
			}
			if strings.Count(log.String(), `msg="attempt failed"`) != 1 {
				t.Errorf("the log: %s", log.String())
			}
		})
	}
}
