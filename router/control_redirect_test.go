package router_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/kvplane/control"
	"pdrouter/kvplane/transfer"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestControlClientFollowsNoRedirects has the control address of an engine redirect to another server.
func TestControlClientFollowsNoRedirects(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			var reached atomic.Int32
			elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				reached.Add(1)
				w.WriteHeader(http.StatusAccepted)
			}))
			defer elsewhere.Close()
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, elsewhere.URL+r.URL.Path, status)
			}))
			defer engine.Close()
			r, err := router.New(config.Config{Models: []config.Model{{Name: "m", Engines: []config.Engine{{Name: "e", URL: "http://127.0.0.1:9"}}}}}, router.Parts{Planner: routertest.FirstUsable{}})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			token := func() (string, error) { return "secret", nil }
			want := fmt.Sprintf("status %d", status)
			if err := control.CancelTransfer(t.Context(), r.Debug().ControlClient(), engine.URL, token, transfer.NewID(), "why"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("cancel: %v; want %s", err, want)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			_ = control.Watch(ctx, r.Debug().ControlClient(), engine.URL, token, func(ev control.Event) {
				if !strings.Contains(ev.Reason, want) {
					t.Errorf("watch: %+v; want %s", ev, want)
				}
				stop()
			})
			if n := reached.Load(); n > 0 {
				t.Errorf("the other server got %d requests", n)
			}
		})
	}
}
