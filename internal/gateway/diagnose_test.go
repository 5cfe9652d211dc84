package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/gateway"
	"pdrouter/internal/telemetry"
)

// logged is what a gateway has logged. It is safe for concurrent use.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// watched is a gateway whose listeners are asked as a browser, a profiler or a person with curl do.
type watched struct {
	t      *testing.T
	g      *gateway.Gateway
	log    logged
	tokens map[string]string // by scope
}

func watch(t *testing.T, model string) *watched {
	t.Helper()
	dir := t.TempDir()
	key, _, public := gateway.MakeKey(t, filepath.Join(dir, "keys"))
	w := &watched{t: t, tokens: map[string]string{"": ""}}
	for _, scope := range []string{auth.ReadScope, auth.WriteScope, auth.EnginesScope} {
		w.tokens[scope] = gateway.Mint(t, key, auth.Grant{Audience: auth.AdminAudience, Subject: "ann", Scopes: []string{scope}})
	}
	path := filepath.Join(dir, "pdrouter.yaml")
	text := fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"}\nmodels:\n- %s\nauth: {admins: {keys: [%q], issuer: %s}}\n", model, public, gateway.Issuer)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := new(telemetry.Logs)
	var err error
	if w.g, err = gateway.New(gateway.Load(t, path), logs.Logger(&w.log), gateway.Options{Version: "v1", Logs: logs}); err != nil {
		t.Fatal(err)
	}
	gateway.Running(t, w.g)
	return w
}

// ask sends a request with the token of a scope to listen.admin, or to listen.operations.
func (w *watched) ask(admin bool, scope, method, path, body string) (*http.Response, string) {
	w.t.Helper()
	at := w.g.Operations().String()
	if admin {
		at = w.g.Admins().String()
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+at+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if token := w.tokens[scope]; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(b)
}

const lone = `{name: m, connector: none, engines: [{name: one, url: "http://127.0.0.1:1"}]}`

// Profiles and the level of the log are for administrators who may change something, on their listener alone.
func TestDiagnosisIsForAdministrators(t *testing.T) {
	w := watch(t, lone)
	for _, c := range []struct {
		admin               bool
		scope, method, path string
		want                int
	}{
		{true, "", "GET", "/debug/pprof/", 401},
		{true, auth.ReadScope, "GET", "/debug/pprof/heap", 403},
		{true, auth.EnginesScope, "GET", "/debug/pprof/profile?seconds=1", 403},
		{true, auth.WriteScope, "GET", "/debug/pprof/", 200},
		{true, auth.WriteScope, "GET", "/debug/pprof/cmdline", 200},
		{true, "", "GET", "/log-level", 401},
		{true, "", "PUT", "/log-level", 401},
		{true, auth.ReadScope, "GET", "/log-level", 200},
		{true, auth.ReadScope, "PUT", "/log-level", 403},
		{true, auth.ReadScope, "GET", "/status", 200},
		{true, "", "GET", "/status", 401},
		{true, "", "GET", "/requests/live", 401},
		{true, auth.ReadScope, "GET", "/requests/live", 200},
		{true, auth.ReadScope, "GET", "/requests?limit=0", 400},
		{true, auth.ReadScope, "GET", "/requests?limit=5", 200},
		{true, "", "GET", "/metrics", 401},
		{true, auth.ReadScope, "GET", "/metrics", 200},
		{true, "", "GET", "/ready", 401},
		{true, auth.ReadScope, "POST", "/config/reload", 403},
		{true, auth.WriteScope, "POST", "/config/reload", 200},
		{true, auth.ReadScope, "GET", "/nothing", 404},
		{false, auth.WriteScope, "GET", "/debug/pprof/heap", 404},
		{false, auth.ReadScope, "GET", "/log-level", 404},
		{false, auth.ReadScope, "GET", "/admin/v1/engines", 404},
		{false, "", "GET", "/status", 401},
		{false, auth.ReadScope, "GET", "/status", 200},
	} {
		if resp, body := w.ask(c.admin, c.scope, c.method, c.path, ""); resp.StatusCode != c.want {
			t.Errorf("%s %s with scope %q, admin %t: %d %.100s; want %d", c.method, c.path, c.scope, c.admin, resp.StatusCode, body, c.want)
		}
	}
}

func TestProfileParses(t *testing.T) {
	w := watch(t, lone)
	for _, path := range []string{"heap", "profile?seconds=1", "goroutine"} {
		resp, body := w.ask(true, auth.WriteScope, "GET", "/debug/pprof/"+path, "")
		file := filepath.Join(t.TempDir(), "profile.pb.gz")
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("go", "tool", "pprof", "-raw", file).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Samples:") {
			t.Errorf("%s is answered with %d; go tool pprof says %v: %.300s", path, resp.StatusCode, err, out)
		}
	}
}

// Each action has one line, whatever the level is. It says who, by which token, and what became of it, and has no token.
func TestAuditLines(t *testing.T) {
	w := watch(t, lone)
	w.ask(true, auth.WriteScope, "PUT", "/log-level", `{"level":"error"}`)
	if _, body := w.ask(true, auth.ReadScope, "GET", "/log-level", ""); strings.TrimSpace(body) != `{"level":"error"}` {
		t.Errorf("the level is %s; want error", body)
	}
	w.ask(true, auth.WriteScope, "PUT", "/log-level", `{"level":"loud"}`)
	w.ask(true, auth.WriteScope, "POST", "/config/reload", "") // takes the file's level into use again
	w.ask(true, auth.WriteScope, "GET", "/debug/pprof/goroutine", "")
	w.ask(false, auth.WriteScope, "POST", "/config/reload", "")
	w.ask(true, auth.EnginesScope, "POST", "/admin/v1/engines/one/drain", "")
	w.ask(true, auth.EnginesScope, "POST", "/admin/v1/engines/nobody/drain", "")
	w.ask(true, auth.ReadScope, "GET", "/admin/v1/engines", "")
	if resp, _ := w.ask(false, "", "POST", "/health", ""); resp.StatusCode != http.StatusUnauthorized { // of a stranger, so it is no action of an administrator
		t.Errorf("POST /health without a token: %d; want 401", resp.StatusCode)
	}
	type line struct {
		Msg, Action, Subject, Remote, Path string
		TokenID                            string `json:"token_id"`
		Status                             int
	}
	var got []line
	for _, text := range strings.Split(strings.TrimSpace(w.log.String()), "\n") {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if l.Msg == "admin action" {
			got = append(got, l)
		}
	}
	want := []struct {
		action string
		status int
	}{{"log_level", 200}, {"log_level", 400}, {"reload", 200}, {"profile", 200}, {"reload", 200}, {"drain", 200}, {"drain", 404}}
	if len(got) != len(want) {
		t.Fatalf("%d lines %+v; want %d", len(got), got, len(want))
	}
	for i, l := range got {
		if l.Action != want[i].action || l.Status != want[i].status || l.Subject != "ann" || l.TokenID == "" || l.Remote == "" || l.Path == "" {
			t.Errorf("line %d is %+v; want %+v by ann, with her token's id, an address and a path", i, l, want[i])
		}
	}
	for scope, token := range w.tokens {
		if signature := token[strings.LastIndex(token, ".")+1:]; scope != "" && strings.Contains(w.log.String(), signature) {
			t.Errorf("the log has the token with scope %s", scope)
		}
	}
}

// The page tells nothing, so it needs no token. It may load nothing but its own files.
func TestPageIsServed(t *testing.T) {
	w := watch(t, lone)
	for _, admin := range []bool{true, false} {
		for path, kind := range map[string]string{"/ui/": "text/html", "/ui/app.js": "text/javascript", "/ui/style.css": "text/css"} {
			resp, body := w.ask(admin, "", "GET", path, "")
			policy := resp.Header.Get("Content-Security-Policy")
			if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), kind) || !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || body == "" {
				t.Errorf("%s, admin %t: %d %s, policy %q", path, admin, resp.StatusCode, resp.Header.Get("Content-Type"), policy)
			}
			for _, outside := range []string{"http://", "https://", "<style", "onclick", "innerHTML"} {
				if strings.Contains(body, outside) {
					t.Errorf("%s has %s", path, outside)
				}
			}
		}
		if resp, _ := w.ask(admin, "", "GET", "/ui", ""); resp.StatusCode != 307 || resp.Header.Get("Location") != "ui/" {
			t.Errorf("/ui: %d to %q", resp.StatusCode, resp.Header.Get("Location"))
		}
		if resp, _ := w.ask(admin, "", "POST", "/ui/", ""); resp.StatusCode != 405 {
			t.Errorf("POST /ui/: %d; want 405", resp.StatusCode)
		}
		if resp, _ := w.ask(admin, "write", "POST", "/status", ""); resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("POST /status: %d, Allow %q; want 405", resp.StatusCode, resp.Header.Get("Allow"))
		}
		if resp, _ := w.ask(admin, "", "GET", "/uiabc", ""); resp.StatusCode != 401 {
			t.Errorf("/uiabc: %d; want 401", resp.StatusCode)
		}
	}
}

// A request under way is listed with its engine, and the status says in which list the engine is.
func TestStatusAndLive(t *testing.T) {
	e := gateway.NewFakeServing(t, "one", "127.0.0.1:0")
	w := watch(t, fmt.Sprintf(`{name: m, connector: none, engines: [{name: one, url: %q}]}`, e.URL))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		resp, err := http.Post("http://"+w.g.Clients().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hold","max_tokens":1}`))
		if err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-e.Held
	read := func(path string, to any) {
		t.Helper()
		if _, body := w.ask(true, auth.ReadScope, "GET", path, ""); json.Unmarshal([]byte(body), to) != nil {
			t.Errorf("%s is no JSON: %s", path, body)
		}
	}
	var live []struct {
		Model, Route, Decode string
		DecodeState          string `json:"decode_state"`
	}
	read("/requests/live", &live)
	if len(live) != 1 || live[0].Model != "m" || live[0].Decode != "one" || live[0].DecodeState != "asked" || live[0].Route != "/v1/completions" {
		t.Errorf("under way: %+v; want one request that engine one was asked", live)
	}
	var s gateway.Status
	read("/status", &s)
	if len(s.Engines) != 1 || len(s.Engines[0].Places) != 1 || s.Engines[0].Places[0].Role != "engines" || s.Engines[0].InFlight != 1 || s.Version != "v1" || s.Config.Digest == "" ||
		len(s.Queues) != 1 || s.Queues[0].InFlight != 1 {
		t.Errorf("the status is %+v", s)
	}
	close(e.Release)
	<-answered
	gateway.Until(t, "the request has ended", func() bool { read("/requests/live", &live); return len(live) == 0 })
	var recent []struct{ Decode string }
	read("/requests?limit=1", &recent)
	if len(recent) != 1 || recent[0].Decode != "one" {
		t.Errorf("finished: %+v; want the request", recent)
	}
}
