package router

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestModelsOverTheFleet merges what engines report, and routes the names of adapters to the engines that have them.
func TestModelsOverTheFleet(t *testing.T) {
	engines := []*fakeAny{newFakeAny(t, jsonAnswer(200, `{"choices":[]}`)), newFakeAny(t, jsonAnswer(200, `{"choices":[]}`))}
	engines[0].serves(`{"object":"list","data":[{"id":"tiny","created":7,"owned_by":"vllm","root":"org/tiny","parent":null,"max_model_len":4096},
		{"id":"a/lora","created":8,"root":"/loras/a","parent":"tiny"},{"id":"stray","parent":"nobody"}]}`)
	engines[1].serves(`{"object":"list","data":[{"id":"tiny","created":9,"root":"org/tiny","parent":null,"max_model_len":2048}]}`)
	cfg := anyFleet(engines...)
	g := start(t, cfg, Parts{Clients: fakeClients{models: []string{"tiny", "a/lora", "late"}}})
	const good = "Bearer good"
	list := func() string { return g.ask("GET", pathModels, "Authorization", good).Body }
	want := `{"object":"list","data":[{"id":"tiny","object":"model","created":7,"owned_by":"pdrouter","root":"org/tiny","max_model_len":2048},` +
		`{"id":"a/lora","object":"model","created":8,"owned_by":"pdrouter","root":"/loras/a","parent":"tiny"}]}`
	eventually(t, "both have reported", func() bool { return list() == want })
	for _, path := range []string{"/v1/models/a/lora", "/v1/models/a%2Flora", "/v1/models/tiny"} {
		r := g.ask("GET", path, "Authorization", good)
		var c struct{ Object string }
		if err := json.Unmarshal([]byte(r.Body), &c); err != nil || r.Status != 200 || c.Object != "model" || r.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: status %d: %s", path, r.Status, r.Body)
		}
	}
	if r := g.ask("GET", "/v1/models/stray", "Authorization", good); r.Status != 404 || *errorOf(t, r.Body).Param != "model" {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
	if r := g.ask("GET", "/v1/models/tiny"); r.Status != 401 {
		t.Errorf("without credentials: status %d", r.Status)
	}
	for range 6 {
		if r := g.post(pathCompletions, strings.Replace(plainBody, "tiny", "a/lora", 1), "Authorization", good); r.Status != 200 || r.Header.Get("X-Pdrouter-Decode") != "decode-0" {
			t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
		}
	}
	for _, q := range engines[0].all() {
		if !strings.Contains(q.Body, `"a/lora"`) {
			t.Errorf("the engine was sent %s", q.Body)
		}
	}
	if r := g.post(pathCompletions, strings.Replace(plainBody, "tiny", "late", 1), "Authorization", good); r.Status != 404 {
		t.Errorf("an adapter that nobody has: status %d", r.Status)
	}
	engines[1].serves(`{"data":[{"id":"tiny","max_model_len":2048},{"id":"late","parent":"tiny"},{"id":"secret","parent":"tiny"}]}`)
	eventually(t, "it is loaded", func() bool {
		r := g.post(pathCompletions, strings.Replace(plainBody, "tiny", "late", 1), "Authorization", good)
		return r.Status == 200 && r.Header.Get("X-Pdrouter-Decode") == "decode-1"
	})
	if r := g.post(pathCompletions, strings.Replace(plainBody, "tiny", "secret", 1), "Authorization", good); r.Status != 403 {
		t.Errorf("an adapter that is not the caller's: status %d", r.Status)
	}
	if strings.Contains(list(), "secret") {
		t.Errorf("got %s", list())
	}
}
