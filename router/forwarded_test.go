package router_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestForwardAuthorization: with forward_authorization each leg of a request has the client's Authorization as it came, what the
// gateway asks for itself has none, and no log has it; without it engines never see it.
func TestForwardAuthorization(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		for _, forwards := range []bool{true, false} {
			name := connectorName
			if forwards {
				name += ", forwarded"
			}
			routertest.RunVirtual(t, name, func(t *testing.T) {
				s := routertest.NewPool(t, connectorName, 1, 1, nil)
				s.Config.Models[0].ForwardAuthorization = forwards
				var log strings.Builder
				g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
				if connector.Named(connectorName).Traits().Handshakes {
					routertest.Eventually(t, "the pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 1 })
				}
				own := len(s.Cluster.All())
				for _, stream := range []string{"", `,"stream":true`} {
					body := routertest.PlainBody[:len(routertest.PlainBody)-1] + stream + "}"
					if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, body, "Authorization", "Basic c2VjcmV0")); got != routertest.WholeText || !whole {
						t.Fatalf("got %q", got)
					}
				}
				g.WaitIdle()
				for i, r := range s.Cluster.All() {
					want := ""
					if i >= own && forwards {
						want = "Basic c2VjcmV0"
					}
					if got := r.Header.Get("Authorization"); got != want {
						t.Errorf("%s leg: Authorization is %q; want %q", r.Leg, got, want)
					}
				}
				g.Stop()
				if strings.Contains(log.String(), "c2VjcmV0") {
					t.Error("the log has the client's credentials")
				}
			})
		}
	}
}

// TestForwardedCredentials: the engine decides on them, and its 401 is the client's; several are none; an API key of /v1/messages
// is a bearer token.
func TestForwardedCredentials(t *testing.T) {
	e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		status := http.StatusOK
		if r.Header.Get("Authorization") != "Bearer good" {
			status = http.StatusUnauthorized
		}
		routertest.JSONAnswer(status, `{"error":{"message":"who?","type":"auth"}}`)(w, r, "")
	})
	cfg := routertest.AnyFleet(e)
	cfg.Models[0].ForwardAuthorization = true
	g := routertest.Start(t, cfg, router.Parts{})
	for _, row := range []struct {
		name, path string
		header     []string
		want       int
	}{
		{"good", "/tokenize", []string{"Authorization", "Bearer good"}, 200},
		{"none", "/tokenize", nil, 401},
		{"bad", "/tokenize", []string{"Authorization", "Bearer bad"}, 401},
		{"key where there are none", "/tokenize", []string{"X-Api-Key", "good"}, 401},
		{"key", routertest.PathMessages + "/count_tokens", []string{"X-Api-Key", "good"}, 200},
		{"key beside another", routertest.PathMessages + "/count_tokens", []string{"X-Api-Key", "good", "Authorization", "Bearer bad"}, 401},
	} {
		before := len(e.All())
		if r := g.Post(row.path, `{"model":"tiny","messages":[]}`, row.header...); r.Status != row.want {
			t.Errorf("%s: status %d: %s", row.name, r.Status, r.Body)
		}
		if n := len(e.All()) - before; n != 1 {
			t.Errorf("%s: the engine was asked %d times", row.name, n)
		}
	}
	status, rest, _ := routertest.RawRequest(t, g.Addr, "POST /tokenize HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nAuthorization: Bearer good\r\nAuthorization: Bearer good\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{\"model\":\"tiny\"}")
	if !strings.Contains(status, "401") {
		t.Errorf("twice: %s\n%s", status, rest)
	}
}

// TestForwardAuthorizationMistakes: an engine cannot be sent two credentials.
func TestForwardAuthorizationMistakes(t *testing.T) {
	cfg := config.Config{Models: []config.Model{{Name: "m", ForwardAuthorization: true,
		Engines: []config.Engine{{Name: "a", URL: "http://a", BearerTokenFile: "k"}}, EnginesFrom: config.Source{DNS: "http://c", BearerTokenFile: "k"}}}}
	const why = "bearer_token_file is set; want it or forward_authorization of the model: an engine is sent one Authorization"
	want := "models[0].engines_from." + why + "\nmodels[0].engines[0]." + why
	if err := cfg.Validate(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// TestForwardedCredentialsAreMasked has engines repeat the client's credential in what they say: neither the log, nor /requests, nor the message for
// the client has it, with its scheme or without, nor a part of it where the text is cut.
func TestForwardedCredentialsAreMasked(t *testing.T) {
	const secret = "c2VjcmV0LW9mLXRoZS1jbGllbnQ"
	long := strings.Repeat(secret, 50)
	for _, row := range []struct {
		name, authorization string
		status              int
		ctype, says         string // %s is the credential without its scheme
	}{
		{"bearer", "Bearer " + secret, 500, "application/json", `{"error":{"message":"cannot check Bearer %s","type":"auth"}}`},
		{"basic", "Basic " + secret, 500, "application/json", `{"error":{"message":"cannot check Basic %s."}}`},
		{"without its scheme", "Bearer " + secret, 500, "application/json", `{"error":{"message":"cannot check '%s'"}}`},
		{"no scheme", secret, 500, "text/plain", `cannot check %s`},
		{"long", "Bearer " + long, 500, "application/json", `{"error":{"message":"cannot check %s"}}`},
		{"long, at the end of what is noted", "Bearer " + long, 500, "text/plain", strings.Repeat("-", 150) + `%s`},
		{"rejected", "Bearer " + secret, 400, "text/plain", `cannot check %s in kv_transfer_params`},
		{"error event", "Bearer " + secret, 200, "text/event-stream", "data: {\"error\":{\"message\":\"cannot check %s\"}}\n\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := routertest.NewAnyEngine(t, func(w http.ResponseWriter, r *http.Request, _ string) {
				given := r.Header.Get("Authorization")
				if _, bare, ok := strings.Cut(given, " "); ok {
					given = bare
				}
				w.Header().Set("Content-Type", row.ctype)
				w.WriteHeader(row.status)
				_, _ = fmt.Fprintf(w, row.says, given)
			})
			cfg := routertest.AnyFleet(e)
			cfg.Models[0].ForwardAuthorization = true
			var log lockedBuffer
			g := routertest.Start(t, cfg, router.Parts{Log: slog.New(slog.NewTextHandler(&log, nil))})
			body := routertest.PlainBody
			if row.status == 200 {
				body = routertest.StreamBody
			}
			r := g.Post(routertest.PathCompletions, body, "Authorization", row.authorization)
			g.Summary(1)
			rec := httptest.NewRecorder()
			g.Router.Operations().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/requests?id="+r.Header.Get("X-Request-Id"), nil))
			part := secret[:10]
			if r.Status < 400 || strings.Contains(r.Body, part) {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if !strings.Contains(rec.Body.String(), "failed_before") || strings.Contains(rec.Body.String(), part) {
				t.Errorf("/requests: %s", rec.Body)
			}
			if text := log.String(); !strings.Contains(text, "[credential]") || strings.Contains(text, part) {
				t.Errorf("the log: %s", text)
			}
		})
	}
}
