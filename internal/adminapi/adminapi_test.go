package adminapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/auth"
	"pdrouter/internal/adminapi"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/overrides"
	"pdrouter/internal/shared"
	"pdrouter/router"
	"pdrouter/router/config"
)

// everybody lets everybody do everything.
type everybody struct{}

func (everybody) Authorize(*http.Request, string) (auth.Principal, error) {
	return auth.Principal{Subject: "ann"}, nil
}

// serve returns the routes over engines that have no requests.
func serve(base config.Config, store *overrides.Store, apply func(context.Context, *fleetview.View) error) http.Handler {
	log := slog.New(slog.DiscardHandler)
	var view *fleetview.View
	view = fleetview.New(base, store, func(string) bool { return false }, func(ctx context.Context) error { return apply(ctx, view) }, log)
	return adminapi.New(adminapi.Config{Auth: everybody{}, View: view, Overrides: store, Stats: func() router.Stats { return router.Stats{} },
		Requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"}, []string{"action", "status"}), Log: log})
}

// TestRefusedChangeLeavesNothing has a change that cannot be taken into use, while somebody else's change applies it as well:
// it holds nowhere, is with no other gateway, and is not done later.
func TestRefusedChangeLeavesNothing(t *testing.T) {
	base := config.Config{Models: []config.Model{{Name: "m", Engines: []config.Engine{{Name: "e0", URL: "http://e0:8000"}}}}}
	log := slog.New(slog.DiscardHandler)
	cache := shared.NewMap(nil, "p", "engines", nil, log)
	store := overrides.NewStore(cache, true, log)
	var fails int
	var leave context.CancelFunc
	var now config.Config // what is in use
	apply := func(ctx context.Context, view *fleetview.View) error {
		leave() // the administrator does
		cfg := view.Merge(base)
		if fails > 0 {
			fails--
			store.Learn(nil) // a look at the shared cache
			now = cfg        // another source's change took it into use
			return errors.New("no")
		}
		now = cfg
		return ctx.Err()
	}
	routes := serve(base, store, apply)
	ask := func(method, path, body string) int {
		var left context.Context
		left, leave = context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequestWithContext(left, method, path, strings.NewReader(body)))
		return w.Code
	}
	for name, change := range map[string][3]string{
		"drain":  {"POST", "/admin/v1/engines/e0/drain", ""},
		"remove": {"DELETE", "/admin/v1/engines/e0", ""},
		"add":    {"POST", "/admin/v1/models/m/engines", `{"name":"e1","url":"http://e1:8000"}`},
	} {
		fails = 1
		if status := ask(change[0], change[1], change[2]); status != http.StatusServiceUnavailable {
			t.Errorf("%s: status %d; want it refused", name, status)
		}
		if all, told := store.All(), cache.All(); len(all) != 0 || len(told) != 0 {
			t.Errorf("%s: %v is kept, %v told", name, all, told)
		}
		if e := now.Models[0].Engines; len(e) != 1 || e[0].Drain {
			t.Errorf("%s: %+v in use", name, e)
		}
	}
	status := ask("POST", "/admin/v1/engines/e0/drain", "")
	if status != http.StatusOK || cache.All()["e0"] == "" || !now.Models[0].Engines[0].Drain {
		t.Errorf("the same again: %d, %v told, %+v in use", status, cache.All(), now.Models[0].Engines)
	}
}

// TestAddedEngineNeedsItsKey adds an engine whose key is not here.
func TestAddedEngineNeedsItsKey(t *testing.T) {
	folder := t.TempDir()
	base := config.Config{Models: []config.Model{{Name: "m", EnginesFrom: config.Source{File: "/engines.yaml", KeyDir: folder}}}}
	log := slog.New(slog.DiscardHandler)
	store := overrides.NewStore(shared.NewMap(nil, "p", "engines", nil, log), true, log)
	routes := serve(base, store, func(context.Context, *fleetview.View) error { return nil })
	w := httptest.NewRecorder()
	routes.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/admin/v1/models/m/engines",
		strings.NewReader(fmt.Sprintf(`{"name":"e1","url":"http://e1:8000","bearer_token_file":%q}`, folder+"/none"))))
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "bearer_token_file cannot be read") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}
