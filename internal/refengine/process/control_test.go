package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/kvplane"
	"pdrouter/kvplane/control"
)

// issuer is who signs the tokens of these tests.
const issuer = "pdrouter"

// controlRoutes returns an engine's control routes as pdrouter mock-engine serves them, and what mints tokens for them.
func controlRoutes(t *testing.T, events *control.Broadcaster, cancel func(kvplane.TransferID, string), log io.Writer) (
	http.Handler, func(auth.Grant) string,
) {
	t.Helper()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	_, public, err := keys.Write(filepath.Join(t.TempDir(), "keys"), key)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{ControlKeys: []string{public}, Issuer: issuer}
	o.Engine.Name = "decode-0"
	authorize, err := o.authorizer(nil)
	if err != nil {
		t.Fatal(err)
	}
	h := control.Handler(events, cancel, authorize, slog.New(slog.NewJSONHandler(log, nil)))
	return h, func(g auth.Grant) string {
		t.Helper()
		g.Issuer = issuer
		if g.TTL == 0 {
			g.TTL = time.Hour
		}
		token, err := auth.Mint(key, g)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
}

// TestFault41ControlRefusals: whatever is wrong with a request to the control routes, those without valid credentials are
// all told the same, and those whose credentials do not permit it are; one line in the log says who and why.
func TestFault41ControlRefusals(t *testing.T) {
	var log bytes.Buffer
	cancels := 0
	h, mint := controlRoutes(t, control.NewBroadcaster(), func(kvplane.TransferID, string) { cancels++ }, &log)
	plane := []string{auth.PlaneScope}
	gateway := mint(auth.Grant{Audience: auth.MetadataAudience, Subject: "gateway", Scopes: plane})
	tampered := gateway[:len(gateway)-4] + "AAAA"
	for _, c := range []struct {
		name, token string
		status      int
		reason      string // in the log
		subject     string // in the log
	}{
		{"no token", "", 401, "no_credentials", ""},
		{"garbage", "x.y.z", 401, "invalid_token", ""},
		{"another signature", tampered, 401, "invalid_token", ""},
		{"a client's token", mint(auth.Grant{Audience: auth.ClientAudience, Subject: "alice", Scopes: plane}), 401, "invalid_token", ""},
		{"an administrator's token", mint(auth.Grant{Audience: auth.AdminAudience, Subject: "root", Scopes: plane}), 401, "invalid_token", ""},
		{"without the scope", mint(auth.Grant{Audience: auth.MetadataAudience, Subject: "reader", Scopes: []string{auth.ReadScope}}), 403, "insufficient_scope", "reader"},
		{"another engine's agent", mint(auth.Grant{Audience: auth.MetadataAudience, Subject: "agent-9", Engine: "decode-9", Role: "decode", Scopes: plane}), 403, "insufficient_scope", "agent-9"},
	} {
		id := kvplane.NewTransferID().String()
		var answers []*httptest.ResponseRecorder
		for _, at := range []struct{ method, path string }{
			{"GET", "/kvplane/v1/events"}, {"POST", "/kvplane/v1/transfers/" + id + "/cancel"}, {"POST", "/kvplane/v1/transfers/nonsense/cancel"},
		} {
			log.Reset()
			r := httptest.NewRequest(at.method, at.path, nil)
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			answers = append(answers, w)
			wantRefusal(t, c.name+": "+at.path, w, c.status)
			var line map[string]any
			if err := json.Unmarshal(log.Bytes(), &line); err != nil { // one line, then
				t.Fatalf("%s: %s: the log is %q", c.name, at.path, log.String())
			}
			for key, want := range map[string]any{
				"level": "WARN", "msg": "control: refused", "method": at.method, "path": at.path, "remote": r.RemoteAddr,
				"subject": c.subject, "status": float64(c.status), "reason": c.reason,
			} {
				if line[key] != want {
					t.Errorf("%s: %s: the log has %s %v; want %v", c.name, at.path, key, line[key], want)
				}
			}
			if c.token != "" && (strings.Contains(log.String(), c.token) || strings.Contains(w.Body.String(), c.token)) {
				t.Errorf("%s: %s: the token is shown", c.name, at.path)
			}
		}
		for _, w := range answers[1:] {
			if w.Body.String() != answers[0].Body.String() || !maps.EqualFunc(w.Header(), answers[0].Header(), slices.Equal[[]string]) {
				t.Errorf("%s: the answers differ: %v %s and %v %s", c.name, answers[0].Header(), answers[0].Body, w.Header(), w.Body)
			}
		}
	}
	twice := httptest.NewRequest("GET", "/kvplane/v1/events", nil)
	twice.Header["Authorization"] = []string{"Bearer " + gateway, "Bearer " + gateway}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, twice)
	wantRefusal(t, "two headers", w, 401)
	if cancels != 0 {
		t.Errorf("%d transfers were cancelled; want none", cancels)
	}
	for name, token := range map[string]string{
		"the gateway":      gateway,
		"the own engine's": mint(auth.Grant{Audience: auth.MetadataAudience, Subject: "agent-0", Engine: "decode-0", Role: "decode", Scopes: plane}),
	} {
		r := httptest.NewRequest("POST", "/kvplane/v1/transfers/"+kvplane.NewTransferID().String()+"/cancel", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusAccepted {
			t.Errorf("%s: got %d %s; want 202", name, w.Code, w.Body)
		}
	}
	if cancels != 2 {
		t.Errorf("%d transfers were cancelled; want 2", cancels)
	}
}

// wantRefusal checks that an answer is in OpenAI's shape and says nothing but its status.
func wantRefusal(t *testing.T, name string, w *httptest.ResponseRecorder, status int) {
	t.Helper()
	body := map[int]string{
		401: `{"error":{"message":"missing or invalid credentials","type":"AuthenticationError","param":null,"code":401}}`,
		403: `{"error":{"message":"these credentials do not permit this","type":"PermissionDeniedError","param":null,"code":403}}`,
	}[status]
	if w.Code != status || w.Body.String() != body {
		t.Errorf("%s: got %d %s; want %d %s", name, w.Code, w.Body, status, body)
	}
	h := w.Header()
	if got := h.Get("WWW-Authenticate"); !strings.HasPrefix(got, `Bearer realm="pdrouter"`) {
		t.Errorf("%s: the challenge is %q", name, got)
	}
	if reason := h.Get("X-PDRouter-Reason"); reason == "" || status == 403 && reason != "insufficient_scope" {
		t.Errorf("%s: the reason is %q", name, reason)
	}
	if got := h.Get("X-Should-Retry"); got != "false" {
		t.Errorf("%s: x-should-retry is %q; want false", name, got)
	}
}

// piped is a ResponseWriter whose body is read while it is written.
type piped struct {
	*httptest.ResponseRecorder
	body *io.PipeWriter
}

func (p piped) Write(b []byte) (int, error) { return p.body.Write(b) }

// TestFault40ControlTokenEnds: a stream of events goes on when its token ends; the next request with it is refused.
func TestFault40ControlTokenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		events := control.NewBroadcaster()
		h, mint := controlRoutes(t, events, func(kvplane.TransferID, string) {}, &log)
		token := mint(auth.Grant{Audience: auth.MetadataAudience, Subject: "gateway", Scopes: []string{auth.PlaneScope}, TTL: time.Minute})
		ctx, leave := context.WithCancel(t.Context())
		request := func() *http.Request {
			r := httptest.NewRequest("GET", "/kvplane/v1/events", nil).WithContext(ctx)
			r.Header.Set("Authorization", "Bearer "+token)
			return r
		}
		out, in := io.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.ServeHTTP(piped{httptest.NewRecorder(), in}, request())
			in.Close()
		}()
		told := make(chan string, 1)
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "data: ") {
					told <- lines.Text()
				}
			}
		}()
		time.Sleep(time.Hour)
		events.Publish(control.Event{Event: "ready"})
		if got := <-told; !strings.Contains(got, `"ready"`) {
			t.Errorf("the stream told %s", got)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request())
		wantRefusal(t, "the next request", w, 401)
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines in the log; want one:\n%s", n, log.String())
		}
		leave()
		<-ended
	})
}
