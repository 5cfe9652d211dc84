package pair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/internal/proc"
)

// playedGateway answers as a gateway does, with that status; what it says of the request comes only when it is asked again.
func playedGateway(t *testing.T, status int, of string) *GatewayFleet {
	t.Helper()
	late := true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch {
		case q.URL.Path == "/v1/completions":
			w.Header().Set("X-Request-Id", "one/1")
			w.WriteHeader(status)
		case q.URL.Path == "/requests" && q.URL.Query().Get("id") == "one/1" && late:
			late = false
			http.Error(w, "no such request", http.StatusNotFound)
		case q.URL.Path == "/requests" && q.URL.Query().Get("id") == "one/1":
			fmt.Fprint(w, of)
		default:
			t.Errorf("asked for %s", q.URL)
		}
	}))
	t.Cleanup(s.Close)
	address := strings.TrimPrefix(s.URL, "http://")
	return &GatewayFleet{Gateway: &harness.Child{Address: address}, operations: address}
}

// TestGatewayAsk: a request counts only if both engines have served it at the first attempt; its wait is what the gateway
// says.
func TestGatewayAsk(t *testing.T) {
	const served = `{"outcome":"completed","reason":"split","prefill":"p","decode":"d","attempts":1,"phases":{"plan":1000,"pair":3001000}}`
	a, err := playedGateway(t, 200, served).ask(t.Context())
	if err != nil || a.paired != 3*time.Millisecond || a.took <= 0 {
		t.Errorf("%+v, %v; want a wait of 3 ms", a, err)
	}
	for name, f := range map[string]*GatewayFleet{
		"refused":        playedGateway(t, 503, served),
		"not split":      playedGateway(t, 200, strings.Replace(served, `"prefill":"p"`, `"prefill":""`, 1)),
		"tried again":    playedGateway(t, 200, strings.Replace(served, `"attempts":1`, `"attempts":2`, 1)),
		"failed":         playedGateway(t, 200, strings.Replace(served, "completed", "failed_after", 1)),
		"without a pair": playedGateway(t, 200, strings.Replace(served, "3001000", "0", 1)),
	} {
		if _, err := f.ask(t.Context()); !errors.Is(err, load.ErrVoid) {
			t.Errorf("%s: %v; want %v", name, err, load.ErrVoid)
		}
	}
}

// TestGatewayState: an engine is usable once it is up and fits prefill, whether they have shaken hands or not.
func TestGatewayState(t *testing.T) {
	for _, tc := range []struct {
		said string
		want bool
	}{
		{`{"engines":[{"name":"d","up":true}],"pairs":[],"pairs_warm":1}`, true},
		{`{"engines":[{"name":"d","up":true}],"pairs":[{"decode":"d","pairable":true}]}`, true},
		{`{"engines":[{"name":"d","up":true}],"pairs":[{"decode":"d","pairable":false}]}`, false},
		{`{"engines":[{"name":"d","up":true}],"pairs":[{"decode":"e","pairable":false}]}`, true},
		{`{"engines":[{"name":"d","up":false}],"pairs":[{"decode":"d","pairable":true}]}`, false},
		{`{"engines":[{"name":"e","up":true}]}`, false},
	} {
		var s GatewayState
		if err := json.Unmarshal([]byte(tc.said), &s); err != nil {
			t.Fatal(err)
		}
		if got := s.usable("d"); got != tc.want {
			t.Errorf("%s: usable is %t; want %t", tc.said, got, tc.want)
		}
	}
}

// TestGatewayUntil: whoever waits for a gateway is told of an engine that has ended meanwhile.
func TestGatewayUntil(t *testing.T) {
	f := playedGateway(t, 200, "")
	gone := make(chan struct{})
	close(gone)
	f.Gateway.Process, f.Gateway.Name, f.Gateway.Said = &proc.Process{Done: gone}, "the gateway", &harness.LastBytes{}
	f.operations = "127.0.0.1:1"
	err := f.until(context.Background(), "never", func(GatewayState) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "the gateway has ended") {
		t.Errorf("%v; want that the gateway has ended", err)
	}
}
