package adminapi_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/internal/adminapi"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/overrides"
	"pdrouter/internal/shared"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestDrained: an engine that has KV which decode has yet to collect is not drained, though it works on no request.
func TestDrained(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	base := config.Config{Models: []config.Model{{Name: "m", Engines: []config.Engine{{Name: "e0", URL: "http://e0:8000", Drain: true}}}}}
	store := overrides.NewStore(shared.NewMap(nil, "p", "engines", nil, log), true, log)
	of := router.EngineStats{Name: "e0"}
	routes := adminapi.New(adminapi.Config{Auth: everybody{}, View: fleetview.New(base, store, nil, nil, log), Overrides: store,
		Stats:    func() router.Stats { return router.Stats{Engines: []router.EngineStats{of}} },
		Requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"}, []string{"action", "status"}), Log: log})
	for _, row := range []struct {
		inFlight, uncollected int64
		want                  string
	}{{1, 0, "draining"}, {0, 1, "draining"}, {0, 0, "drained"}} {
		of.InFlight, of.Uncollected = row.inFlight, row.uncollected
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/admin/v1/engines/e0", nil))
		var got adminapi.Engine
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.State != row.want {
			t.Errorf("%+v: %q, %v; want %s", row, got.State, err, row.want)
		}
	}
}
