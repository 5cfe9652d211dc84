package router_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestFault14to26Bodies sends bodies that are refused before any engine is asked.
func TestFault14to26Bodies(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	g.Post(routertest.PathCompletions, routertest.PlainBody) // the pair's probe is over
	before := s.Cluster.Count("", "")
	long := strings.Repeat("s", 100<<10)
	stops := `"a"` + strings.Repeat(`,"a"`, 128)
	sampled := func(members string) string {
		return `{"model":"tiny","token_ids":[1],"sampling_params":{` + members + `}}`
	}
	for _, row := range []struct {
		name, path, body string
		status           int
		reason, param    string
	}{
		{"14 broken", routertest.PathCompletions, `{"model":"tiny","prompt":`, 400, "bad_json", ""},
		{"14 trailing bytes", routertest.PathCompletions, routertest.PlainBody + `{}`, 400, "bad_json", ""},
		{"14 bad UTF-8", routertest.PathCompletions, "{\"model\":\"tiny\",\"prompt\":\"\xff\"}", 400, "bad_json", ""},
		{"14 half a surrogate", routertest.PathChat, `{"model":"tiny","messages":[],"\ud800":1,"\udfff":2,"x":tru}`, 400, "bad_json", ""},
		{"14 deep", routertest.PathCompletions, `{"model":"tiny","prompt":"a","x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, 400, "bad_json", ""},
		{"14 deep in messages", routertest.PathMessages, `{"model":"tiny","messages":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, 400, "bad_json", ""},
		{"14 no object", routertest.PathResponses, `[]`, 400, "bad_json", ""},
		{"14 empty", routertest.PathGenerate, ``, 400, "bad_json", ""},
		{"14 long and broken", routertest.PathCompletions, `{"model":"tiny","prompt":"` + long + `"`, 400, "bad_json", ""},
		{"14 passed on", "/v1/embeddings", `{"model":"tiny","input":"` + long, 400, "bad_json", ""},
		{"15 duplicate key", routertest.PathCompletions, `{"model":"tiny","model":"other","prompt":"a"}`, 400, "duplicate_key", ""},
		{"15 the same key in other letters", routertest.PathCompletions, `{"model":"tiny","mod\u0065l":"other","prompt":"a"}`, 400, "duplicate_key", ""},
		{"15 nested", routertest.PathCompletions, `{"model":"tiny","prompt":"a","x":{"a":1,"a":2}}`, 400, "duplicate_key", ""},
		{"15 nested in arrays", routertest.PathChat, `{"model":"tiny","messages":[[{"x":[0,{"role":1,"b":2,"role":3}]}]]}`, 400, "duplicate_key", ""},
		{"15 in sampling_params", routertest.PathGenerate, sampled(`"max_tokens":9,"max_tokens":1`), 400, "duplicate_key", ""},
		{"15 in transfer params", routertest.PathCompletions, `{"model":"tiny","prompt":"a","kv_transfer_params":{"a":{"b":1,"b":1}}}`, 400, "duplicate_key", ""},
		{"15 passed on", "/v1/embeddings", `{"model":"tiny","input":"a","x":{"a":1,"a":2}}`, 400, "duplicate_key", ""},
		{"15 long", routertest.PathCompletions, `{"model":"tiny","` + long + `":1,"` + long + `":2}`, 400, "duplicate_key", ""},
		{"17 unknown model", routertest.PathCompletions, `{"model":"other","prompt":"a"}`, 404, "unknown_model", "model"},
		{"17 unknown in other letters", routertest.PathChat, `{"model":"Tiny","messages":[]}`, 404, "unknown_model", "model"},
		{"17 unknown and long", routertest.PathResponses, `{"model":"` + long + `","input":"a"}`, 404, "unknown_model", "model"},
		{"17 unknown, passed on", "/v1/embeddings", `{"model":"other","input":"a"}`, 404, "unknown_model", "model"},
		{"17 no model", routertest.PathCompletions, `{"prompt":"a"}`, 400, "unknown_model", "model"},
		{"22 n", routertest.PathCompletions, `{"model":"tiny","prompt":"a","n":17}`, 400, "over_cap", "n"},
		{"22 n beyond all numbers", routertest.PathChat, `{"model":"tiny","messages":[],"n":99999999999999999999}`, 400, "", "n"},
		{"22 no n", routertest.PathChat, `{"model":"tiny","messages":[],"n":0}`, 400, "", "n"},
		{"22 best_of", routertest.PathCompletions, `{"model":"tiny","prompt":"a","best_of":17}`, 400, "over_cap", "best_of"},
		{"22 prompts", routertest.PathCompletions, `{"model":"tiny","prompt":["a"` + strings.Repeat(`,"a"`, 64) + `]}`, 400, "over_cap", "prompt"},
		{"22 prompts of tokens", routertest.PathCompletions, `{"model":"tiny","prompt":[[1]` + strings.Repeat(`,[1]`, 64) + `]}`, 400, "over_cap", "prompt"},
		{"22 stop", routertest.PathCompletions, `{"model":"tiny","prompt":"a","stop":[` + stops + `]}`, 400, "over_cap", "stop"},
		{"22 stop_sequences", routertest.PathMessages, `{"model":"tiny","messages":[],"max_tokens":9,"stop_sequences":[` + stops + `]}`, 400, "over_cap", "stop_sequences"},
		{"22 logprobs", routertest.PathCompletions, `{"model":"tiny","prompt":"a","logprobs":21}`, 400, "over_cap", "logprobs"},
		{"22 prompt_logprobs", routertest.PathCompletions, `{"model":"tiny","prompt":"a","prompt_logprobs":21}`, 400, "over_cap", "prompt_logprobs"},
		{"22 top_logprobs", routertest.PathChat, `{"model":"tiny","messages":[],"logprobs":true,"top_logprobs":21}`, 400, "over_cap", "top_logprobs"},
		{"22 top_logprobs of responses", routertest.PathResponses, `{"model":"tiny","input":"a","top_logprobs":21}`, 400, "over_cap", "top_logprobs"},
		{"22 sampling_params n", routertest.PathGenerate, sampled(`"n":17`), 400, "over_cap", "sampling_params.n"},
		{"22 sampling_params stop", routertest.PathGenerate, sampled(`"stop":[` + stops + `]`), 400, "over_cap", "sampling_params.stop"},
		{"22 sampling_params logprobs", routertest.PathGenerate, sampled(`"logprobs":21`), 400, "over_cap", "sampling_params.logprobs"},
		{"22 max_tokens below 0", routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":-1}`, 400, "bad_field", "max_tokens"},
		{"22 max_completion_tokens below 0", routertest.PathChat, `{"model":"tiny","messages":[],"max_completion_tokens":-1}`, 400, "bad_field", "max_completion_tokens"},
		{"22 max_output_tokens below 0", routertest.PathResponses, `{"model":"tiny","input":"a","max_output_tokens":-1}`, 400, "bad_field", "max_output_tokens"},
		{"22 messages' max_tokens below 0", routertest.PathMessages, `{"model":"tiny","messages":[],"max_tokens":-1}`, 400, "bad_field", "max_tokens"},
		{"22 sampling_params max_tokens below 0", routertest.PathGenerate, sampled(`"max_tokens":-1`), 400, "bad_field", "sampling_params.max_tokens"},
		{"26 stream_options", routertest.PathCompletions, `{"model":"tiny","prompt":"a","stream_options":{"include_usage":true}}`, 400, "bad_field", "stream_options"},
		{"26 stream_options, not streamed", routertest.PathChat, `{"model":"tiny","messages":[],"stream_options":{},"stream":false}`, 400, "bad_field", "stream_options"},
		{"26 stream_options of tokens", routertest.PathGenerate, `{"model":"tiny","token_ids":[1],"sampling_params":{},"stream_options":{"include_usage":true}}`, 400, "bad_field", "stream_options"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := g.Post(row.path, row.body)
			e := routertest.ErrorOf(t, r.Body)
			if r.Status != row.status || len(e.Message) > 1024 || len(r.Body) > 2048 || strings.Contains(r.Body, long[:300]) {
				t.Errorf("status %d, %d bytes, %d of them the message; want %d: %.3000s", r.Status, len(r.Body), len(e.Message), row.status, r.Body)
			}
			if got := r.Header.Get("X-Pdrouter-Reason"); row.reason != "" && got != row.reason {
				t.Errorf("reason %q; want %q", got, row.reason)
			}
			// A client of /v1/messages is told the parameter by the message.
			if row.param != "" && row.path != routertest.PathMessages && (e.Param == nil || *e.Param != row.param) || !strings.Contains(e.Message, row.param) {
				t.Errorf("param in %s; want %q", r.Body, row.param)
			}
			if r.Header.Get("X-Should-Retry") != "false" || r.Header.Get("X-Request-Id") == "" {
				t.Errorf("header %v", r.Header)
			}
			if n := s.Cluster.Count("", ""); n != before {
				t.Errorf("engines got %d requests", n-before)
			}
		})
	}
}

// TestFault16ForwardedToTheByte sends fields that a parser of JSON would change: without the hand-off, what decode is sent is what
// the client has sent.
func TestFault16ForwardedToTheByte(t *testing.T) {
	const odd = `"seed":9223372036854775807, "x":[1.0,1e400,-0.0,0.1000000000000000055511151231257827], "unknown" :{ "b":1,"a":"\/\u00e9" },"z":-0`
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		for path, body := range map[string]string{
			routertest.PathCompletions: `{ "prompt" : "é\u00e9", ` + odd + `, "model":"tiny" , "max_tokens" : 16 }`,
			routertest.PathChat:        "{\n\t\"messages\" : [{\"content\":\"é\\u00e9\"}],\r\n " + odd + `, "model":"tiny" , "max_tokens" : 16 }`,
		} {
			t.Run("16 "+connectorName+path, func(t *testing.T) {
				s, g := newServed(t, connectorName)
				before := s.Cluster.Count("", "")
				if r := g.Post(path, body); r.Status != 200 {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
				g.WaitIdle()
				legs := 0
				for _, q := range s.Cluster.All()[before:] {
					legs++
					if got := withoutKV(t, q.Body); q.Leg != "prefill" && got != body || !strings.Contains(got, odd) {
						t.Errorf("%s was sent %s", q.Leg, q.Body)
					}
				}
				if want := map[bool]int{true: 1, false: 2}[connectorName == connector.NameNone]; legs != want {
					t.Errorf("%d legs; want %d", legs, want)
				}
			})
		}
	}
}

// newServed is a fleet of one pair, or of one engine, which is known.
func newServed(t *testing.T, connectorName string) (*routertest.Pool, *routertest.Gateway) {
	t.Helper()
	s, parts := routertest.NewPool(t, connectorName, 1, 1, nil), router.Parts{}
	if connectorName == connector.NameKVPlane {
		s, _, parts = routertest.NewPlane(t, 1, 1)
	}
	parts.Planner = routertest.FirstUsable{}
	g := routertest.Start(t, s.Config, parts)
	if connectorName != connector.NameNone {
		g.WaitWarm()
	}
	return s, g
}

// withoutKV takes the hand-off out of a leg's body, as the router has put it in.
func withoutKV(t *testing.T, body string) string {
	t.Helper()
	const key = `"kv_transfer_params":`
	i := strings.Index(body, key)
	if i < 0 {
		return body
	}
	d := json.NewDecoder(strings.NewReader(body[i+len(key):]))
	var value json.RawMessage
	if err := d.Decode(&value); err != nil {
		t.Fatal(err)
	}
	before, behind := body[:i], body[i+len(key)+int(d.InputOffset()):]
	if rest, ok := strings.CutPrefix(behind, ","); ok {
		return before + rest
	}
	return strings.TrimSuffix(before, ",") + behind
}

// TestFault18ClientTransferParams sends kv_transfer_params in each place: they are dropped and counted, no engine sees them and
// nobody is called at the address that they name; a strict gateway refuses them and says where they stand.
func TestFault18ClientTransferParams(t *testing.T) {
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	var called atomic.Int64
	go func() {
		for {
			conn, err := trap.Accept()
			if err != nil {
				return
			}
			called.Add(1)
			_ = conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(trap.Addr().String())
	evil := `{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"evil","remote_block_ids":[[1]],"remote_request_id":"evil",` +
		`"remote_host":"127.0.0.1","remote_port":` + port + `,"tp_size":1}`
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		s, g := newServed(t, connectorName)
		n, before, bodies := 0, s.Cluster.Count("", ""), map[string]string{}
		for _, kind := range []string{"kv_transfer_params", "ec_transfer_params"} {
			for place, format := range map[string]string{
				kind: `"%s":%s`, "vllm_xargs." + kind: `"vllm_xargs":{"ok":1,"%s":%s}`,
				"sampling_params.extra_args." + kind: `"sampling_params":{"extra_args":{"%s":%s}}`,
			} {
				bodies[place] = `{"model":"tiny","prompt":"a","max_tokens":16,` + fmt.Sprintf(format, kind, evil) + `}`
			}
		}
		for place, body := range bodies {
			t.Run("18 "+connectorName+" "+place, func(t *testing.T) {
				r := g.Post(routertest.PathCompletions, body)
				if got, whole := routertest.Text(t, r); r.Status != 200 || got != routertest.WholeText || !whole {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
				if n++; !g.Summary(n).Removed {
					t.Error("the summary does not say that a field was dropped")
				}
			})
		}
		g.WaitIdle()
		for _, q := range s.Cluster.All()[before:] {
			if strings.Contains(q.Body, "evil") || strings.Contains(q.Body, port) || strings.Contains(q.Body, "ec_transfer") {
				t.Errorf("%s was sent %s", q.Engine, q.Body)
			}
		}
		strict := s.Config
		strict.Strict = true
		if err := g.Router.Apply(strict, g.Parts); err != nil {
			t.Fatal(err)
		}
		before = s.Cluster.Count("", "")
		for place, body := range bodies {
			t.Run("18 strict "+connectorName+" "+place, func(t *testing.T) {
				r := g.Post(routertest.PathCompletions, body)
				if e := routertest.ErrorOf(t, r.Body); r.Status != 400 || e.Param == nil || *e.Param != place || r.Header.Get("X-Pdrouter-Reason") != "transfer_params" {
					t.Errorf("%d %s; want 400 and %s", r.Status, r.Body, place)
				}
			})
		}
		if n := s.Cluster.Count("", ""); n != before {
			t.Errorf("strict: engines got %d requests", n-before)
		}
		g.Stop()
	}
	if n := called.Load(); n != 0 {
		t.Errorf("somebody has called %d times at the client's address", n)
	}
}
