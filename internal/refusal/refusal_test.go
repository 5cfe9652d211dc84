package refusal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"pdrouter/internal/refusal"
)

// denial is an error as package auth has them.
type denial struct{ status int }

func (d denial) Error() string     { return "the secret cause" }
func (d denial) HTTPStatus() int   { return d.status }
func (d denial) Message() string   { return "no" }
func (d denial) Challenge() string { return "Bearer" }
func (d denial) Reason() string    { return "expired_token" }
func (d denial) Subject() string   { return "alice" }

func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		name      string
		err       error
		status    int
		kind      string
		reason    string // of the header
		challenge string
		retry     string
		log       []string
	}{
		{"an Error", &refusal.Error{Status: 404, Reason: "not_found", Msg: "no such record", Err: errors.New("the secret cause")},
			404, "NotFoundError", "not_found", "", "false", []string{"level=INFO", "reason=not_found", "the secret cause"}},
		{"an Error in another", fmt.Errorf("wrapped: %w", &refusal.Error{Status: 503, Reason: "closing", Msg: "shutting down"}),
			503, "ServiceUnavailableError", "closing", "", "true", []string{"level=WARN", "shutting down"}},
		{"an error that says how it is answered", denial{401},
			401, "AuthenticationError", "expired_token", "Bearer", "false", []string{"level=WARN", "subject=alice", "the secret cause"}},
		{"credentials that do not permit it", denial{403},
			403, "PermissionDeniedError", refusal.Insufficient, "Bearer", "false", []string{"reason=expired_token", "subject=alice"}},
		{"Forbidden", refusal.Forbidden("wrong_role", "bob", errors.New("the secret cause")),
			403, "PermissionDeniedError", refusal.Insufficient, `Bearer realm="pdrouter", error="insufficient_scope"`, "false", []string{"reason=wrong_role", "subject=bob"}},
		{"any other error", errors.New("the secret cause"),
			401, "AuthenticationError", "invalid_token", `Bearer realm="pdrouter", error="invalid_token"`, "false", []string{"reason=invalid_token", "the secret cause"}},
	} {
		var log bytes.Buffer
		r := httptest.NewRequest("PUT", "/some/path", nil)
		r.Header.Set("Authorization", "Bearer a-token")
		w := httptest.NewRecorder()
		refusal.Answer(w, r, "listener", c.err, slog.New(slog.NewTextHandler(&log, nil)))
		var body struct {
			Error struct {
				Message, Type string
				Code          int
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != c.status || body.Error.Code != c.status || body.Error.Type != c.kind || body.Error.Message == "" {
			t.Errorf("%s: got %d %s; want %d, %s", c.name, w.Code, w.Body, c.status, c.kind)
		}
		h := w.Header()
		if got, want := []string{h.Get("X-PDRouter-Reason"), h.Get("WWW-Authenticate"), h.Get("X-Should-Retry")}, []string{c.reason, c.challenge, c.retry}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: the headers have %q; want %q", c.name, got, want)
		}
		for _, want := range append(c.log, `msg="listener: refused"`, "method=PUT", "path=/some/path", fmt.Sprint("status=", c.status)) {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s: %q is not in the log: %s", c.name, want, log.String())
			}
		}
		if strings.Count(log.String(), "\n") != 1 || strings.Contains(log.String(), "a-token") || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s: the log is %s, the body %s; want one line, no token, and no cause in the body", c.name, log.String(), w.Body)
		}
	}
}
