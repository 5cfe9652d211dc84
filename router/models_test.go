package router_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
)

// TestModelsOverTheFleet merges what engines report, and routes the names of adapters to the engines that have them.
func TestModelsOverTheFleet(t *testing.T) {
	engines := []*routertest.AnyEngine{routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"choices":[]}`)), routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"choices":[]}`))}
	engines[0].Serves(`{"object":"list","data":[{"id":"tiny","created":7,"owned_by":"vllm","root":"org/tiny","parent":null,"max_model_len":4096},
		{"id":"a/lora","created":8,"root":"/loras/a","parent":"tiny"},{"id":"stray","parent":"nobody"}]}`)
	engines[1].Serves(`{"object":"list","data":[{"id":"tiny","created":9,"root":"org/tiny","parent":null,"max_model_len":2048}]}`)
	cfg := routertest.AnyFleet(engines...)
	g := routertest.Start(t, cfg, router.Parts{Clients: routertest.Clients{Models: []string{"tiny", "a/lora", "late"}}})
	const good = "Bearer good"
	list := func() string { return g.Ask("GET", routertest.PathModels, "Authorization", good).Body }
	want := `{"object":"list","data":[{"id":"tiny","object":"model","created":7,"owned_by":"pdrouter","root":"org/tiny","max_model_len":2048},` +
		`{"id":"a/lora","object":"model","created":8,"owned_by":"pdrouter","root":"/loras/a","parent":"tiny"}]}`
	routertest.Eventually(t, "both have reported", func() bool { return list() == want })
	for _, path := range []string{"/v1/models/a/lora", "/v1/models/a%2Flora", "/v1/models/tiny"} {
		r := g.Ask("GET", path, "Authorization", good)
		var c struct{ Object string }
		if err := json.Unmarshal([]byte(r.Body), &c); err != nil || r.Status != 200 || c.Object != "model" || r.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: status %d: %s", path, r.Status, r.Body)
		}
	}
	if r := g.Ask("GET", "/v1/models/stray", "Authorization", good); r.Status != 404 || *routertest.ErrorOf(t, r.Body).Param != "model" {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
	if r := g.Ask("GET", "/v1/models/tiny"); r.Status != 401 {
		t.Errorf("without credentials: status %d", r.Status)
	}
	for range 6 {
		if r := g.Post(routertest.PathCompletions, strings.Replace(routertest.PlainBody, "tiny", "a/lora", 1), "Authorization", good); r.Status != 200 || r.Header.Get("X-Pdrouter-Decode") != "decode-0" {
			t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
		}
	}
	for _, q := range engines[0].All() {
		if !strings.Contains(q.Body, `"a/lora"`) {
			t.Errorf("the engine was sent %s", q.Body)
		}
	}
	if r := g.Post(routertest.PathCompletions, strings.Replace(routertest.PlainBody, "tiny", "late", 1), "Authorization", good); r.Status != 404 {
		t.Errorf("an adapter that nobody has: status %d", r.Status)
	}
	engines[1].Serves(`{"data":[{"id":"tiny","max_model_len":2048},{"id":"late","parent":"tiny"},{"id":"secret","parent":"tiny"}]}`)
	routertest.Eventually(t, "it is loaded", func() bool {
		r := g.Post(routertest.PathCompletions, strings.Replace(routertest.PlainBody, "tiny", "late", 1), "Authorization", good)
		return r.Status == 200 && r.Header.Get("X-Pdrouter-Decode") == "decode-1"
	})
	if r := g.Post(routertest.PathCompletions, strings.Replace(routertest.PlainBody, "tiny", "secret", 1), "Authorization", good); r.Status != 403 {
		t.Errorf("an adapter that is not the caller's: status %d", r.Status)
	}
	if strings.Contains(list(), "secret") {
		t.Errorf("got %s", list())
	}
}
