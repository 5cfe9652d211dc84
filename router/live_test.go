package router_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/exchange"
)

// TestLiveWhileRequestsRun reads the requests under way while they begin, are retried, stream and end: what it reads no owner changes (-race), and at the
// end none is left.
func TestLiveWhileRequestsRun(t *testing.T) {
	for _, name := range []string{connector.NamePush, connector.NamePull} {
		t.Run(name, func(t *testing.T) {
			s := routertest.NewPool(t, name, 2, 2, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 3, Do: routertest.DoErrorLate, N: 20}}})
			g := routertest.Start(t, s.Config, router.Parts{})
			live := func() (out []exchange.Live) {
				w := httptest.NewRecorder()
				g.Router.Operations().ServeHTTP(w, httptest.NewRequest("GET", "/requests/live", nil))
				if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
					t.Error(err)
				}
				return out
			}
			var over atomic.Bool
			var reader, clients sync.WaitGroup
			both := 0
			reader.Go(func() {
				for !over.Load() {
					for _, r := range live() {
						if r.Model != "tiny" || r.Arrived.IsZero() || r.RequestID == "" {
							t.Errorf("under way: %+v", r)
						}
						if r.Prefill != "" && r.Decode != "" {
							both++
						}
					}
				}
			})
			for i := range 8 {
				clients.Go(func() {
					for j := range 10 {
						g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":"%d %d","max_tokens":3,"stream":%t}`, i, j, j%2 == 0))
					}
				})
			}
			clients.Wait()
			over.Store(true)
			reader.Wait()
			if both == 0 {
				t.Error("no request was seen with both its engines")
			}
			if left := live(); len(left) != 0 {
				t.Errorf("under way at the end: %+v", left)
			}
		})
	}
}
