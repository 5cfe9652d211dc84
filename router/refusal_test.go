package router_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/openai/answer"
	"pdrouter/router/reason"
)

// TestRefusals has engines refuse a request in words that tell of the hand-off: its members are cut out at any depth, and where
// names of it are left the words are the router's own.
func TestRefusals(t *testing.T) {
	for _, row := range []struct{ name, says, want string }{
		{"plain", `{"error":{"message":"no","code":400}}`, `{"error":{"message":"no","code":400}}`},
		{"echo", `{"error":{"message":"no","input":{"model":"tiny","kv_transfer_params":{"remote_host":"10.1.2.3"}}}}`, `{"error":{"message":"no","input":{"model":"tiny"}}}`},
		{"echo, escaped", `{"detail":[{"input":{"kv_transfer\u005fparams":{"remote_host":"10.1.2.3"}}}]}`, `{"detail":[{"input":{}}]}`},
		{"no JSON", `bad kv_transfer_params: 10.1.2.3`, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := routertest.NewAnyEngine(t, routertest.JSONAnswer(400, row.says))
			g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{})
			for path, why := range map[string]reason.Reason{routertest.PathChat: reason.DecodeRejected, "/tokenize": reason.EngineRejected} {
				r := g.Post(path, `{"model":"tiny","messages":[{"role":"user","content":"a"}]}`)
				if r.Status != 400 || strings.Contains(r.Body, "10.1.2.3") || row.want != "" && r.Body != row.want {
					t.Errorf("%s: status %d: %s", path, r.Status, r.Body)
				}
				if row.want == "" && (r.Header.Get("X-Should-Retry") != "false" || r.Header.Get("X-Pdrouter-Reason") != why.String()) {
					t.Errorf("%s: header %v", path, r.Header)
				}
			}
		})
	}
}

// TestPassedDisguise has an engine answer JSON that it calls something else: the hand-off is cut out of it all the same, and
// what only looks like JSON is left as it is.
func TestPassedDisguise(t *testing.T) {
	for says, want := range map[string]string{
		`{"a":1,"kv_transfer_params":{"remote_host":"10.1.2.3"}}`:        `{"a":1}`,
		` [{"k\u0076_transfer\u005fparams":{"remote_host":"10.1.2.3"}}]`: ` [{}]`,
		`{kv_transfer_params`:              `{kv_transfer_params`,
		`[kv_transfer_params] 00:01 hello`: `[kv_transfer_params] 00:01 hello`,
	} {
		for _, ctype := range []string{"text/plain", "application/problem+json", "APPLICATION/JSON; charset=utf-8"} {
			if ctype[0] == 'A' && says == want {
				continue
			}
			t.Run(says+" of "+ctype, func(t *testing.T) {
				e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
					w.Header().Set("Content-Type", ctype)
					_, _ = io.WriteString(w, says)
				})
				g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{})
				if r := g.Post("/tokenize", `{"model":"tiny","prompt":"a"}`); r.Status != 200 || r.Body != want {
					t.Errorf("status %d: %s", r.Status, r.Body)
				}
			})
		}
	}
}

// TestNamesTransfer finds the members' names however JSON writes them.
func TestNamesTransfer(t *testing.T) {
	for in, want := range map[string]bool{
		`{"kv_transfer_params":1}`: true, `{"kv\u005Ftransfer_params":1}`: true, `{"ec_\u0074ransfer_param\u0073":1}`: true,
		`{"a":"\u00e9\u0007\u007a"}`: false, `{"a":"\u00`: false, `\u005`: false, ``: false, `{"a":"_transfer\u0020params"}`: false,
	} {
		if got := answer.NamesTransfer([]byte(in)); got != want {
			t.Errorf("%s: %v", in, got)
		}
	}
	out, ok := answer.StripEvent(nil, []byte("data: {\"a\":\"\\u00e9\",\"kv\\u005ftransfer_params\":{}}\n\n"))
	if want := "data: {\"a\":\"\\u00e9\"}\n\n"; !ok || string(out) != want {
		t.Errorf("%v %q", ok, out)
	}
	two := []byte("data: {\"a\":\ndata: \"\\u00e9\"}\n\n")
	if out, ok := answer.StripEvent(nil, two); !ok || string(out) != string(two) {
		t.Errorf("%v %q", ok, out)
	}
}

// TestRefusalKeepsRetryAfter has the only engine ask for three seconds at each attempt: so does the answer when no attempt is left.
func TestRefusalKeepsRetryAfter(t *testing.T) {
	routertest.RunVirtual(t, "none", func(t *testing.T) {
		s := routertest.NewPool(t, connector.NameNone, 0, 1, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoBusy, N: 3}}})
		g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
		r := g.Post(routertest.PathCompletions, routertest.PlainBody)
		if r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "engine_refused" || r.Header.Get("Retry-After") != "3" {
			t.Errorf("status %d, header %v; want 503 engine_refused and Retry-After 3", r.Status, r.Header)
		}
	})
}
