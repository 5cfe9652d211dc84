package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"pdrouter/bench/fake"
	"pdrouter/bench/internal/benchtest"
)

// modelledFleet runs modelled engines in this process, faster than real, and returns their addresses.
func modelledFleet(t *testing.T, connector string, prefill, decode int, speed float64) []string {
	t.Helper()
	spec := Spec{Costs: "llama-3.1-8b-h100", Connector: connector, Prefill: prefill, Decode: decode, Budget: 512, Speed: speed}
	return strings.Fields(benchtest.Listen(t, func(ctx context.Context, out io.Writer) error { return Serve(ctx, spec, out) }))
}

// ask sends a body to an engine and returns its answer.
func ask(t *testing.T, address, body string) (int, string) {
	t.Helper()
	a, err := http.Post("http://"+address+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer a.Body.Close()
	said, err := io.ReadAll(a.Body)
	if err != nil {
		t.Error(err)
	}
	return a.StatusCode, string(said)
}

func fleetOf(t *testing.T, address string) FleetReading {
	t.Helper()
	a, err := http.Get("http://" + address + FleetPath)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	var r FleetReading
	if err := json.NewDecoder(a.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestModelledEnginesHandOff asks a pair as routers do: the second prompt is found in the prefix cache, and every token is an
// event.
func TestModelledEnginesHandOff(t *testing.T) {
	text := strings.Repeat("abcd", 100)
	whole := fmt.Sprintf(`"model":"bench","stream":true,"max_tokens":5,"messages":[{"role":"user","content":%q}]}`, text)
	for _, connector := range []string{"vllm-nixl-pull", "vllm-nixl-push"} {
		t.Run(connector, func(t *testing.T) {
			at := modelledFleet(t, connector, 1, 1, 10) // prefill holds what it has for seconds of the clock
			for i := range 2 {
				id, decode := "", ""
				if connector == "vllm-nixl-push" {
					id = fmt.Sprintf(`,"transfer_id":"t%d"`, i)
				}
				answered := make(chan string, 1)
				if id != "" { // both at once
					go func() {
						_, said := ask(t, at[1], `{"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false`+id+`},`+whole)
						answered <- said
					}()
					awaitGauge(t, at[1], "vllm:num_requests_waiting", 1)
				}
				status, first := ask(t, at[0], `{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false`+id+`},`+whole)
				if status != http.StatusOK {
					t.Fatalf("status %d: %s", status, first)
				}
				var p struct {
					KV map[string]any `json:"kv_transfer_params"`
				}
				if err := json.Unmarshal([]byte(first), &p); err != nil {
					t.Fatal(err)
				}
				if got, want := p.KV["remote_prefill_cached_tokens"], float64(96*i); got != want {
					t.Errorf("request %d: %v tokens were cached; want %v", i, got, want)
				}
				if id == "" {
					kv, _ := json.Marshal(p.KV)
					_, decode = ask(t, at[1], `{"kv_transfer_params":`+string(kv)+`,`+whole)
				} else {
					decode = <-answered
				}
				if n := strings.Count(decode, `"content":" word"`); n != 5 || !strings.HasSuffix(decode, "data: [DONE]\n\n") {
					t.Errorf("request %d: %d events with a token; want 5 and [DONE]: %s", i, n, decode)
				}
			}
			r := fleetOf(t, at[0])
			if r.Prompts != 200 || r.Found != 96 || r.Possible != 96 || len(r.Handovers) != 2 {
				t.Errorf("got %+v; want 96 tokens found of 96 possible of 200, and two hand-offs", r)
			}
			for _, h := range r.Handovers {
				if (h.Asked < h.Finished) != (connector == "vllm-nixl-push") || h.First <= h.Finished {
					t.Errorf("%+v: decode is asked before prefill has finished with push only, and answers after it", h)
				}
			}
		})
	}
}

// TestModelledEngineTellsItsLoad reads the gauges that routers read, while a request runs and when its client has left.
func TestModelledEngineTellsItsLoad(t *testing.T) {
	at := modelledFleet(t, "none", 0, 1, 20)
	ctx, leave := context.WithCancel(t.Context())
	body := []byte(`{"model":"bench","stream":true,"max_tokens":400000,"messages":[{"role":"user","content":"abcd"}]}`)
	q, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at[0]+"/v1/chat/completions", bytes.NewReader(body))
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	awaitGauge(t, at[0], "vllm:num_requests_running", 1)
	leave()
	a.Body.Close()
	awaitGauge(t, at[0], "vllm:num_requests_running", 0)
	awaitGauge(t, at[0], "vllm:kv_cache_usage_perc", 0)
}

// awaitGauge waits until an engine tells a value.
func awaitGauge(t *testing.T, address, name string, want int) {
	t.Helper()
	line := fmt.Sprintf("\n%s{engine=\"0\",model_name=\"bench\"} %d\n", name, want)
	for t.Context().Err() == nil {
		a, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(a.Body)
		a.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), line) {
			return
		}
	}
}

func TestModelledBodies(t *testing.T) {
	s := &modelServer{seed: modelSeed}
	text := strings.Repeat("x", 130)
	for name, c := range map[string]struct {
		body           string
		request        string
		leg            ModelLeg
		key            string
		prompt, answer int
		fails          bool
	}{
		"whole":         {body: `{"max_tokens":7,"messages":[{"role":"user","content": "` + text + `"}]}`, leg: wholeLeg, prompt: 33, answer: 7},
		"prompt":        {body: `{"prompt":"` + text + `","max_tokens":7}`, leg: wholeLeg, prompt: 33, answer: 7},
		"prefill":       {body: `{"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"transfer_id":"t"},"prompt":"` + text + `","max_tokens":7}`, leg: PrefillLeg, key: "t", prompt: 33, answer: 1},
		"decode":        {body: `{"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"t","remote_request_id":"r"},"prompt":"` + text + `","max_tokens":7}`, leg: DecodeLeg, key: "t", prompt: 33, answer: 7},
		"decode, pull":  {body: `{"kv_transfer_params":{"do_remote_prefill":true,"transfer_id":null,"remote_request_id":"r"},"prompt":"` + text + `","max_tokens":7}`, leg: DecodeLeg, key: "r", prompt: 33, answer: 7},
		"prefill by id": {body: `{"kv_transfer_params":{"do_remote_decode":true,"remote_host":null},"prompt":"` + text + `"}`, request: "r", leg: PrefillLeg, key: "r", prompt: 33, answer: 1},
		"decode by id":  {body: `{"kv_transfer_params":{"do_remote_prefill":true,"remote_request_id":"chatcmpl-r"},"prompt":"` + text + `"}`, request: "x", leg: DecodeLeg, key: "r", prompt: 33, answer: 16},
		"of nobody":     {body: `{"kv_transfer_params":{"do_remote_prefill":true},"prompt":"x"}`, fails: true},
		"without text":  {body: `{"prompt":[1,2]}`, fails: true},
		"without bound": {body: `{"prompt":"` + text + `"}`, prompt: 33, answer: 16},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := s.read([]byte(c.body), c.request)
			if (err != nil) != c.fails {
				t.Fatalf("got %v; want that it fails: %t", err, c.fails)
			}
			if err == nil && (q.Leg != c.leg || q.Key != c.key || q.Prompt != c.prompt || q.Answer != c.answer || len(q.Runs) != 2) {
				t.Errorf("got leg %d, key %q, %d and %d tokens, %d blocks; want %+v and 2 blocks", q.Leg, q.Key, q.Prompt, q.Answer, len(q.Runs), c)
			}
		})
	}
}

// TestFloorPushes: both legs of the baseline proxy's push name the same transfer, so that decode has its KV.
func TestFloorPushes(t *testing.T) {
	engines := modelledFleet(t, "vllm-nixl-push", 1, 1, 20)
	baseline := strings.TrimSpace(benchtest.Listen(t, func(ctx context.Context, out io.Writer) error {
		return fake.ServeBaseline(ctx, "push", engines[0], engines[1], out)
	}))
	for range 2 {
		if status, said := ask(t, baseline, string(fake.ChatBody(256, false))); status != http.StatusOK {
			t.Errorf("%d: %s", status, said)
		}
	}
}
