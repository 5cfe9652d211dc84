//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestStockVLLMFirstToken has the clients of a pair get prefill's token where that is exact: streams and whole answers are one engine's. It
// prints what the time to the first token was made of, with and without.
func TestStockVLLMFirstToken(t *testing.T) {
	v := prepare(t, "full")
	way := pair{connector: "vllm-nixl-pull", class: "NixlConnector"}
	var prefill, decode engine
	v.step(t, "start two instances", func() {
		prefill = v.engine(t, role{name: "prefill", transfer: way.transfer("kv_producer")}, nil)
		decode = v.engine(t, role{name: "decode", cpu: 1, transfer: way.transfer("kv_consumer")}, nil)
		prefill.up(t)
		decode.up(t)
	})
	type asked struct{ path, body string }
	var bodies []asked
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 60 {
		text := fmt.Sprintf("%d %s", n, strings.Repeat("why not? ", 6+rng.IntN(40))+strings.Repeat("x", rng.IntN(32)))
		a := asked{"/v1/completions", fmt.Sprintf(`"prompt":%q`, text)}
		if n%2 == 1 {
			a = asked{"/v1/chat/completions", fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, text)}
		}
		a.body = fmt.Sprintf(`{"model":"tiny",%s,"temperature":0,"max_tokens":%d`, a.body, 2+rng.IntN(12))
		switch n % 6 {
		case 0:
		case 1:
			a.body += `,"stream":true,"logit_bias":{"70":3}`
		default:
			a.body += `,"stream":true,"stream_options":{"include_usage":true}`
		}
		a.body += "}"
		bodies = append(bodies, a)
	}
	want := make([]string, len(bodies))
	v.step(t, "one engine's answers", func() {
		for i, a := range bodies {
			want[i], _ = told(t, decode.url+a.path, a.body)
		}
	})
	for _, first := range []string{"prefill", "decode"} {
		v.step(t, "first_token: "+first, func() {
			g := serve(t, v.gateway, config{connector: way.connector, first: first, prefill: []backend{prefill.backend()}, decode: []backend{decode.backend()}})
			g.warm(t)
			if first == "prefill" { // its engines must have said how they divide their caches
				until(t, slow, "clients get prefill's token", func() bool {
					told(t, g.url+bodies[1].path, bodies[1].body)
					n, _ := scrape(t, g.operations).sum("pdrouter_first_tokens_total", `result="engines"`)
					told(t, g.url+bodies[1].path, bodies[1].body)
					after, _ := scrape(t, g.operations).sum("pdrouter_first_tokens_total", `result="engines"`)
					return n == after
				})
			}
			var toFirst time.Duration
			for i, a := range bodies {
				got, took := told(t, g.url+a.path, a.body)
				if toFirst += took; got != want[i] {
					t.Errorf("%s\ngot  %s\nwant %s", a.body, got, want[i])
				}
			}
			stages := g.stages(t)
			t.Logf("first_token: %s: clients had the first token after %v in the mean; stages in ms: %v", first, toFirst/time.Duration(len(bodies)), stages)
			from, _ := scrape(t, g.operations).sum("pdrouter_first_tokens_total", `result="prefill"`)
			t.Logf("%v of %d requests had prefill's token", from, len(bodies))
			if first == "prefill" && from < 10 || first == "decode" && from > 0 {
				t.Errorf("%v requests had prefill's token", from)
			}
			if err := g.stop(t, slow); err != nil {
				t.Errorf("pdrouter after SIGTERM: %v", err)
			}
		})
	}
	until(t, slow, "no block is held", func() bool { return unused(t, prefill) && unused(t, decode) })
}

// told asks and returns what a client can tell one engine from another by: the text, how it ended and the tokens of prompt and answer. took is the
// time to the first event with text of a stream; 0 of a whole answer.
func told(t *testing.T, url, body string) (says string, took time.Duration) {
	t.Helper()
	began := time.Now()
	a, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(a.Body)
		t.Fatalf("%s: status %d: %s", body, a.StatusCode, b)
	}
	var text, finish, usage string
	roles, ended := 0, false
	in := bufio.NewReader(a.Body)
	for {
		line, err := in.ReadString('\n')
		data := strings.TrimSpace(strings.TrimPrefix(line, "data: "))
		var e struct {
			Choices []struct {
				Text           string
				Delta, Message struct{ Role, Content string }
				Finish         string `json:"finish_reason"`
			}
			Usage struct {
				Prompt int `json:"prompt_tokens"`
				Answer int `json:"completion_tokens"`
				Total  int `json:"total_tokens"`
			}
		}
		switch {
		case data == "[DONE]":
			ended = true
		case data != "" && !strings.HasPrefix(data, ":"):
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
		}
		for _, c := range e.Choices {
			more := c.Text + c.Delta.Content + c.Message.Content
			if text += more; took == 0 && more != "" && strings.HasPrefix(line, "data: ") {
				took = time.Since(began)
			}
			if finish += c.Finish; c.Delta.Role+c.Message.Role != "" {
				roles++
			}
		}
		if e.Usage.Prompt > 0 {
			usage = fmt.Sprint(e.Usage)
		}
		if err != nil {
			return fmt.Sprintf("%q %s %s, %d roles, ended %v", text, finish, usage, roles, ended), took
		}
	}
}

// finishedRequest is what /requests says of a request.
type finishedRequest struct {
	Stream          bool
	First           string             `json:"first_token"`
	Stages          map[string]float64 `json:"stage_seconds"`
	Prefill, Decode string
	Prompt          int `json:"prompt_tokens"`
	Predicted       int `json:"predicted_cached_tokens"`
	Counted         int `json:"counted_cached_tokens"`

	PredictedSeconds float64 `json:"predicted_seconds"` // from the choice of engines to the first token
	Phases           struct {
		Plan       time.Duration `json:"plan"`
		FirstToken time.Duration `json:"first_token"`
	} `json:"phases"`
}

// requests are the gateway's finished ones, the latest first.
func (g gateway) requests(t *testing.T) (all []finishedRequest) {
	t.Helper()
	body, err := read(t.Context(), g.operations+"/requests")
	if err == nil {
		err = json.Unmarshal(body, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// stages are the mean milliseconds of the stages of the gateway's finished streams; with first_token: prefill of those that had prefill's token.
func (g gateway) stages(t *testing.T) map[string]float64 {
	t.Helper()
	sum, n := map[string]float64{}, 0.0
	for _, r := range g.requests(t) {
		if r.Stream && (r.First == "" || r.First == "prefill") {
			n++
			for stage, took := range r.Stages {
				sum[stage] += took * 1000
			}
		}
	}
	for stage := range sum {
		sum[stage] = float64(int(100*sum[stage]/n)) / 100
	}
	return sum
}
