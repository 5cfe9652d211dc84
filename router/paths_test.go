package router_test

import (
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// TestPaths sends plain requests over every connector.
func TestPaths(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull} {
		for _, route := range []string{routertest.PathCompletions, routertest.PathChat} {
			for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
				if route == routertest.PathChat {
					body = strings.Replace(body, `"prompt":"one two three"`, `"messages":[{"role":"user","content":"one two three"}]`, 1)
				}
				stream := strings.Contains(body, "stream")
				name := connectorName + route
				if stream {
					name += " streamed"
				}
				t.Run(name, func(t *testing.T) { checkPath(t, connectorName, route, body, stream) })
			}
		}
	}
}

func checkPath(t *testing.T, connectorName, route, body string, stream bool) {
	s := routertest.NewPool(t, connectorName, 1, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for range 3 { // the second and third meet connections that were used before
		r := g.Post(route, body, "X-Request-Id", "mine")
		got, whole := routertest.Text(t, r)
		if r.Status != 200 || got != routertest.WholeText || !whole {
			t.Fatalf("status %d, text %q, whole %v (%v)\n%s", r.Status, got, whole, r.Err, r.Body)
		}
		if strings.Contains(r.Body, "kv_transfer_params") || strings.Contains(r.Body, "10.9.9.9") {
			t.Errorf("the engines' hand-off reached the client: %s", r.Body)
		}
		if id := r.Header.Get("X-Request-Id"); id != "mine" {
			t.Errorf("x-request-id is %q; want the client's", id)
		}
		want := map[string]string{"X-Pdrouter-Decode": "decode-0", "X-Pdrouter-Prefill": "prefill-0", "X-Pdrouter-Reason": "split"}
		if connectorName == connector.NameNone {
			want = map[string]string{"X-Pdrouter-Decode": "decode-0", "X-Pdrouter-Prefill": "", "X-Pdrouter-Reason": "aggregated"}
		}
		for k, v := range want {
			if r.Header.Get(k) != v {
				t.Errorf("%s is %q; want %q", k, r.Header.Get(k), v)
			}
		}
	}
	g.WaitIdle()
	s.CheckNothingHeld(t)
	checkLegs(t, s, connectorName, route)
	sum := g.Summary(3)
	if sum.Outcome != dispatch.Completed || sum.Status != 200 || sum.Attempts != 1 || sum.Stream != stream || sum.OutputTokens != 3 {
		t.Errorf("summary %+v", sum)
	}
	if connectorName == connector.NamePull && (sum.Phases.Prefill == 0 || sum.Phases.FirstToken < sum.Phases.Prefill || sum.CachedTokens != 4) {
		t.Errorf("phases %+v, cached %d", sum.Phases, sum.CachedTokens)
	}
}

// checkLegs checks what the engines were sent.
func checkLegs(t *testing.T, s *routertest.Pool, connectorName, route string) {
	t.Helper()
	ids := map[string]int{}
	for _, q := range s.Cluster.All() {
		ids[q.Leg+" "+q.ID]++
		if q.ID == "" || q.ID == "mine" {
			t.Errorf("%s was sent X-Request-Id %q", q.Engine, q.ID)
		}
		switch q.Leg {
		case "alone":
			if connectorName != connector.NameNone || strings.Contains(q.Body, "kv_transfer_params") {
				t.Errorf("%s served alone with %s", q.Engine, q.Body)
			}
			continue
		case "prefill":
			if !strings.Contains(q.Body, `"max_tokens":1`) || strings.Contains(q.Body, `"stream":true`) {
				t.Errorf("prefill was sent %s", q.Body)
			}
		case "decode":
			if q.KV["remote_engine_id"] != "id-of-prefill-0" || q.KV["remote_host"] != "10.1.2.3" || q.KV["remote_port"] != 5601.0 {
				t.Errorf("decode was sent %v", q.KV)
			}
		}
		if q.Path != route && q.Path != routertest.PathCompletions {
			t.Errorf("path %s", q.Path)
		}
	}
	for id, n := range ids {
		if n != 1 {
			t.Errorf("%s was sent %d times", id, n)
		}
	}
}
