package router_test

import (
	"io"
	"net/http"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/dispatch"
)

// TestPassedAnswers has an engine answer in ways that no generation has: they are the client's as they are.
func TestPassedAnswers(t *testing.T) {
	for _, row := range []struct {
		name, ctype, body string
		status            int
	}{
		{"list", "application/json", `[{"a":1},{"kv":2}]`, 200},
		{"error within", "application/json", `{"status":"failed","error":{"code":"server_error","message":"x"}}`, 200},
		{"bytes", "application/octet-stream", "\x00\xff_transfer_params", 200},
		{"subtitles", "text/plain; charset=utf-8", "1\n00:00\nhello", 200},
		{"no such route", "application/json", `{"detail":"Not Found"}`, 404},
		{"not supported", "application/json", `{"error":{"message":"no","type":"NotImplementedError","param":null,"code":501}}`, 501},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.Header().Set("Content-Type", row.ctype)
				w.WriteHeader(row.status)
				_, _ = io.WriteString(w, row.body)
			})
			g := routertest.Start(t, routertest.AnyFleet(e, e), router.Parts{})
			r := g.Post("/pooling", `{"model":"tiny"}`)
			if r.Status != row.status || r.Body != row.body || r.Header.Get("Content-Type") != row.ctype {
				t.Errorf("status %d, %s, %q", r.Status, r.Header.Get("Content-Type"), r.Body)
			}
			if got := r.Header.Get("X-Should-Retry"); (got == "false") != (row.status >= 400) {
				t.Errorf("X-Should-Retry %q", got)
			}
			if n := len(e.All()); n != 1 {
				t.Errorf("asked %d times; want 1", n)
			}
			why := map[bool]string{true: "aggregated", false: "engine_rejected"}[row.status == 200]
			if s := g.Summary(1); s.Outcome != dispatch.Completed || int(s.Status) != row.status || s.Reason != why || r.Header.Get("X-Pdrouter-Reason") != why {
				t.Errorf("%s, status %d, reason %s, to the client %s; want completed and %s", s.Outcome, s.Status, s.Reason, r.Header.Get("X-Pdrouter-Reason"), why)
			}
		})
	}
}

// TestPassedMetadata has an engine say beside an answer of bytes what they are: that field alone is the client's too.
func TestPassedMetadata(t *testing.T) {
	say := `{"data":[{"index":0,"shape":[2]}]}`
	e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("metadata", say)
		w.Header().Set("X-Inside", "10.0.0.7")
		_, _ = io.WriteString(w, "\x00\x01")
	})
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{})
	if r := g.Post("/pooling", `{"model":"tiny","encoding_format":"bytes"}`); r.Body != "\x00\x01" || r.Header.Get("Metadata") != say || r.Header.Get("X-Inside") != "" {
		t.Errorf("status %d, %q, %v", r.Status, r.Body, r.Header)
	}
	say = `{"kv_transfer_params":{}}`
	if r := g.Post("/pooling", `{"model":"tiny"}`); r.Header.Get("Metadata") != "" {
		t.Errorf("header %v", r.Header)
	}
}

// TestPassedRetries has the first engine fail before it has answered: another one is asked.
func TestPassedRetries(t *testing.T) {
	bad := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) { routertest.ResetConn(w) })
	good := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"tokens":[1]}`))
	g := routertest.Start(t, routertest.AnyFleet(bad, good), router.Parts{Planner: routertest.FirstUsable{}})
	if r := g.Post("/tokenize", `{"model":"tiny","prompt":"a"}`); r.Status != 200 || r.Body != `{"tokens":[1]}` {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
	if s := g.Summary(1); s.Attempts != 2 || s.Decode != "decode-1" {
		t.Errorf("summary %+v", s)
	}
	if len(bad.All()) == 0 {
		t.Error("the first engine was not asked")
	}
}
