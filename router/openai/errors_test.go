package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/openai/answer"
	"pdrouter/router/reason"
)

// shown is the answer as a client decodes it.
type shown struct {
	Error struct {
		Message string
		Type    string
		Param   *string
		Code    any
	}
}

func TestErrorJSON(t *testing.T) {
	tests := []struct {
		name, want string
		err        *Error
	}{
		{"param", `{"error":{"message":"n must be at most 4.","type":"BadRequestError","param":"n","code":400}}`,
			ErrBadRequest(reason.OverCap, "n", "%s must be at most %d.", "n", 4)},
		{"no param", `{"error":{"message":"Not Found","type":"NotFoundError","param":null,"code":404}}`, NewError(reason.NoRoute, "Not Found")},
		{"escapes", `{"error":{"message":"a\"\\\u000a\u0000\u2028é","type":"t","param":null,"code":500}}`,
			&Error{Status: 500, Type: "t", Msg: "a\"\\\n\x00\u2028é"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff("x"+tt.want, string(tt.err.AppendJSON([]byte("x")))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			event := tt.err.AppendFrame(nil)
			if got := ShapeCompletions.KindOf(event); got != EventError {
				t.Errorf("the event is %v", got)
			}
			if diff := cmp.Diff("data: "+tt.want+"\n\n", string(event)); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrorMessageIsBounded(t *testing.T) {
	for _, msg := range []string{strings.Repeat("x", 1024), strings.Repeat("x", 1025), strings.Repeat("é", 100_000), strings.Repeat("\xff", 5000), "x" + strings.Repeat("😀", 400)} {
		var got shown
		if err := json.Unmarshal((&Error{Status: 400, Msg: msg}).AppendJSON(nil), &got); err != nil {
			t.Fatal(err)
		}
		m := got.Error.Message
		if !utf8.ValidString(m) || len([]rune(m)) > answer.MaxErrorMessage || utf8.ValidString(msg) && len(m) > answer.MaxErrorMessage {
			t.Errorf("%d bytes became %d", len(msg), len(m))
		}
		if whole := len(msg) <= answer.MaxErrorMessage; utf8.ValidString(msg) && whole != (m == msg) {
			t.Errorf("%d bytes became %q", len(msg), m)
		}
	}
}

// TestErrorsSayNothing: the cause goes to the log and not to the client.
func TestErrorsSayNothing(t *testing.T) {
	cause := errors.New("dial tcp 10.1.2.3:8000: Bearer secret")
	tests := []struct {
		err    *Error
		status int
		reason reason.Reason
	}{
		{ErrUnauthorized(cause), http.StatusUnauthorized, reason.Unauthorized},
		{ErrForbidden(cause), http.StatusForbidden, reason.Forbidden},
		{ErrBadUpstream().Because(cause), http.StatusBadGateway, reason.BadUpstream},
		{NewError(reason.Deadline, "x").Because(cause), http.StatusGatewayTimeout, reason.Deadline},
		{ErrInternal(cause), http.StatusInternalServerError, reason.Internal},
	}
	for _, tt := range tests {
		t.Run(tt.reason.String(), func(t *testing.T) {
			b := string(tt.err.AppendJSON(nil))
			if strings.Contains(b, "10.1.2.3") || strings.Contains(b, "secret") {
				t.Errorf("told the client %s", b)
			}
			var got shown
			if err := json.Unmarshal([]byte(b), &got); err != nil || got.Error.Code != float64(tt.status) || got.Error.Message == "" {
				t.Errorf("got %s, %v", b, err)
			}
			if !errors.Is(fmt.Errorf("x: %w", tt.err), cause) || !strings.Contains(tt.err.Error(), "10.1.2.3") {
				t.Errorf("the log has no cause: %v", tt.err)
			}
			if tt.err.Reason != tt.reason || tt.err.Status != tt.status {
				t.Errorf("got %d %s", tt.err.Status, tt.err.Reason)
			}
		})
	}
}

// TestErrorRetries: what would fail again says so, what may pass says when.
func TestErrorRetries(t *testing.T) {
	for _, e := range []*Error{ErrTooLarge(1), NewError(reason.NoRoute, "x"), NewError(reason.Method, "x"), NewError(reason.Unsupported, "x"), ErrNoModel("m"), ErrUnauthorized(nil),
		ErrForbidden(nil), ErrFraming("x"), NewError(reason.HeadTooLarge, "x"), ErrBadRequest(reason.BadField, "p", "x")} {
		if !e.NoRetry || e.RetryAfter != 0 || e.Status < 400 || e.Type == "" || e.Reason == reason.None {
			t.Errorf("%+v", e)
		}
	}
	for _, e := range []*Error{NewError(reason.NoPair, "x"), ErrDraining()} {
		if e.NoRetry || e.RetryAfter <= 0 || e.Status != 503 || e.Type == "" || e.Reason == reason.None {
			t.Errorf("%+v", e)
		}
	}
	if msg := ErrNoModel(strings.Repeat("m", 1<<20)).Msg; len(msg) > 400 {
		t.Errorf("a model name of 1 MiB makes a message of %d bytes", len(msg))
	}
}
