package inspect_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/inspect"
)

// TestFleetWaitsForEngines: an engine that is still starting is waited for, and named.
func TestFleetWaitsForEngines(t *testing.T) {
	asked := 0
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"data":[{"id":"tiny"}]}`))
	}))
	defer engine.Close()
	fleet := inspect.Fleet{Engines: []string{engine.URL}, Wait: time.Minute}
	var out strings.Builder
	m, err := fleet.Model(t.Context(), &out)
	if err != nil || m.Name != "tiny" || len(m.Engines) != 1 || m.Engines[0].URL != engine.URL || strings.Count(out.String(), "waiting for "+engine.URL) != 1 {
		t.Errorf("got %+v, %v; said %q", m, err, out.String())
	}
}

func TestFleetGivesUpOnEngines(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc // nil: nothing listens
		want   string
	}{
		"nothing there": {nil, "no answer within 300ms from http://"},
		"starting":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "no answer within 300ms from http://"},
		"another thing": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, "answered 404"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if c.answer == nil {
			listener.Close()
		} else {
			server := &http.Server{Handler: c.answer}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { server.Close() })
		}
		fleet := inspect.Fleet{Engines: []string{"http://" + listener.Addr().String()}, Wait: 300 * time.Millisecond}
		var out strings.Builder
		_, err = fleet.Model(t.Context(), &out)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		}
		if c.want == "answered 404" == strings.Contains(out.String(), "waiting for http://") {
			t.Errorf("%s: said %q", name, out.String())
		}
	}
}
