package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/connector"
)

// TestConfigMistakes checks that every mistake is reported, each beginning with its dotted key.
func TestConfigMistakes(t *testing.T) {
	ok := Engine{Name: "a", URL: "http://10.0.0.1:8000"}
	for _, row := range []struct {
		name string
		cfg  Config
		want []string
	}{
		{"empty", Config{}, []string{"models is empty; want at least one model"}},
		{"no name, no engine", Config{Models: []Model{{}}}, []string{
			"models[0].name is empty; want the name clients ask for",
			"models[0].engines is empty; want at least one engine for connector none"}},
		{"connector", Config{Models: []Model{{Name: "m", Connector: "magic"}}}, []string{
			`models[0].connector is "magic"; want vllm-nixl-push, vllm-nixl-pull, kvplane, sglang or none`}},
		{"one role", Config{Models: []Model{{Name: "m", Connector: connector.NamePush, Decode: []Engine{ok}}}}, []string{
			"models[0].prefill is empty; want at least one engine for connector vllm-nixl-push"}},
		{"names twice", Config{Models: []Model{{Name: "m", Engines: []Engine{ok, ok}}, {Name: "m", Engines: []Engine{ok}}}}, []string{
			`models[0].engines[1].name is "a", the name of another engine; want a name of its own`,
			`models[1].name is "m" again; want a name of its own`,
			`models[1].engines[0].name is "a", the name of another engine; want a name of its own`}},
		{"url", Config{Models: []Model{{Name: "m", Engines: []Engine{{Name: "a", URL: "10.0.0.1:8000"}}}}}, []string{
			`models[0].engines[0].url is "10.0.0.1:8000"; want a base URL such as http://10.0.0.7:8000`}},
		{"url with a path", Config{Models: []Model{{Name: "m", Engines: []Engine{{Name: "a", URL: ok.URL + "/v1"}, {Name: "b", URL: ok.URL + "/"}, {Name: "c", URL: "http://ingress/c"}, {Name: "d", URL: "http://ingress/d/v1/completions"}}, EnginesFrom: Source{DNS: "http://engines.svc:8000/v1/"}}}}, []string{
			`models[0].engines_from.dns is "http://engines.svc:8000/v1/"; want it without /v1: the gateway adds the paths of the routes`,
			`models[0].engines[0].url is "http://10.0.0.1:8000/v1"; want it without /v1: the gateway adds the paths of the routes`,
			`models[0].engines[3].url is "http://ingress/d/v1/completions"; want it without /v1/completions: the gateway adds the paths of the routes`}},
		{"control", Config{Models: []Model{{Name: "m", Engines: []Engine{{Name: "a", URL: ok.URL, Control: ok.URL}}}}}, []string{
			"models[0].engines[0].control is set; want no control routes for connector none"}},
		{"negative", Config{Models: []Model{{Name: "m", Engines: []Engine{ok}}}, Timeouts: Timeouts{Prefill: -1, RequestTotal: -1}, Limits: Limits{Attempts: -2, Handshakes: -1, HandshakesPerEngine: -1}}, []string{
			"timeouts.request_total is -1ns; want more than 0", "timeouts.prefill is -1ns; want more than 0", "limits.attempts is -2; want more than 0",
			"limits.handshakes is -1; want more than 0", "limits.handshakes_per_engine is -1; want more than 0"}},
		{"index", Config{Models: []Model{{Name: "m", Engines: []Engine{ok}}}, Limits: Limits{PrefixIndexEntries: mostEntries + 1}}, []string{
			"limits.prefix_index_entries is 100000001; want at most 100000000"}},
		{"good", Config{Models: []Model{{Name: "m", Engines: []Engine{ok}}}}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got []string
			if err := row.cfg.Validate(); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
