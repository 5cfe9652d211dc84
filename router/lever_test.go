package router_test

import (
	"strings"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/edge"
	"pdrouter/router/openai"
)

// fakeCaller is an authenticator that takes everybody for one.
type fakeCaller struct{ who auth.Principal }

func (f fakeCaller) Authenticate(string) (auth.Principal, error) { return f.who, nil }

// leverBody has what engines would heed beside the generation, in each shape.
const leverBody = `{"model":"tiny","priority":-9000,"session_id":"victim","rid":"victim","data_parallel_rank":3,"prompt":"a","input":"a",` +
	`"token_ids":[1],"sampling_params":{"max_tokens":4},"messages":[{"role":"user","content":"a"}],"vllm_xargs":{"kv_cache_report_mode":"full"}}`

// TestFault20LeverFields has no engine get from a body what says who goes first, who it is, or where it runs; who has the scope
// may say how urgent it is.
func TestFault20LeverFields(t *testing.T) {
	for _, row := range []struct {
		name   string
		scopes []string
		urgent bool
	}{{"without the scope", nil, false}, {"with the scope", []string{edge.ScopePriority}, true}} {
		t.Run(row.name, func(t *testing.T) {
			e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"choices":[]}`))
			g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{Clients: fakeCaller{auth.Principal{Subject: "one", Scopes: row.scopes}}})
			for i, path := range []string{routertest.PathChat, routertest.PathCompletions, routertest.PathGenerate, routertest.PathResponses, routertest.PathMessages, routertest.PathBatch, "/pooling"} {
				body := leverBody
				if path == routertest.PathBatch {
					body = strings.Replace(body, `[{"role":"user","content":"a"}]`, `[[{"role":"user","content":"a"}]]`, 1)
				}
				r := g.Post(path, body, "Authorization", "Bearer x")
				asked := e.All()
				if r.Status != 200 || len(asked) != 1 {
					t.Fatalf("%s: status %d, asked %d times: %s", path, r.Status, len(asked), r.Body)
				}
				for _, word := range []string{"session_id", "victim", "data_parallel_rank", "kv_cache_report_mode"} {
					if strings.Contains(asked[0].Body, word) {
						t.Errorf("%s: the engine got %s", path, asked[0].Body)
					}
				}
				if strings.Contains(asked[0].Body, `"priority":-9000`) != row.urgent {
					t.Errorf("%s: the engine got %s", path, asked[0].Body)
				}
				if s := g.Summary(i + 1); !s.Removed {
					t.Errorf("%s: the summary does not say that a field was dropped", path)
				}
			}
		})
	}
}

// TestPriorityDropped counts a priority that its caller may not say as a field that was dropped.
func TestPriorityDropped(t *testing.T) {
	e := routertest.NewAnyEngine(t, routertest.JSONAnswer(200, `{"choices":[]}`))
	g := routertest.Start(t, routertest.AnyFleet(e), router.Parts{})
	for i, body := range []string{`{"model":"tiny","prompt":"a","priority":1}`, `{"model":"tiny","prompt":"a","priority":0}`} {
		g.Post(routertest.PathCompletions, body)
		if got := g.Summary(i + 1).Removed; got != (i == 0) {
			t.Errorf("%s: removed %v", body, got)
		}
	}
}

// TestExtraKey lets a client share a cache by a name of its own only where nobody's is kept apart from others'.
func TestExtraKey(t *testing.T) {
	b, e := openai.ParseBody(openai.ShapeChat, []byte(`{"extra_key":"k","messages":[]}`), openai.Limits{})
	if e != nil {
		t.Fatal(e)
	}
	if got := string(b.AppendDecode(nil, "id", nil)); got != `{"extra_key":"k","messages":[]}` {
		t.Errorf("shared: %s", got)
	}
	b.Sealed = `"s"`
	if got := string(b.AppendDecode(nil, "id", nil)); got != `{"cache_salt":"s","messages":[]}` {
		t.Errorf("apart: %s", got)
	}
}
