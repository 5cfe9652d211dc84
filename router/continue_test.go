package router_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/dispatch"
)

// fakeTeller is an engine whose next token depends on all ids before it, so that a token lost, doubled or moved shows in the
// text. Some characters are two tokens: the first has no text yet.
type fakeTeller struct {
	mu    sync.Mutex
	room  int // tokens of prompt and answer; 0: it does not say
	dies  int // tokens until the connection breaks; -1: never
	asked []string
	given []string // the token ids that came with a hand-off in place of messages
}

// nextToken is what the model says behind ids.
func nextToken(ids []int) (id int, text string) {
	sum := uint32(7)
	for _, i := range ids {
		sum = sum*31 + uint32(i)
	}
	if n := len(ids); n > 0 && ids[n-1] >= 5000 { // the second half of a character
		return 4000 + ids[n-1] - 5000, string(rune('à' + ids[n-1] - 5000))
	}
	if sum%4 == 0 {
		return 5000 + int(sum/4%20), ""
	}
	return 100 + int(sum%800), fmt.Sprintf("w%d ", sum%800)
}

func (f *fakeTeller) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		if r.URL.Path == "/v1/models" && f.room > 0 {
			fmt.Fprintf(w, `{"object":"list","data":[{"id":"tiny","max_model_len":%d}]}`, f.room)
		}
		return
	}
	raw, _ := io.ReadAll(r.Body)
	var b struct {
		Prompt   json.RawMessage
		Messages json.RawMessage
		Most     *int `json:"max_tokens"`
		Stream   bool
		Tell     bool `json:"return_token_ids"`
		Options  struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
		KV struct {
			Hands bool            `json:"do_remote_decode"`
			IDs   json.RawMessage `json:"prompt_token_ids"`
		} `json:"kv_transfer_params"`
	}
	if json.Unmarshal(raw, &b) != nil {
		http.Error(w, "no", 400)
		return
	}
	f.mu.Lock()
	dies := f.dies
	f.asked = append(f.asked, r.URL.Path+" "+string(raw))
	f.mu.Unlock()
	var ids []int
	if json.Unmarshal(b.Prompt, &ids) != nil {
		for _, c := range string(b.Prompt) + string(b.Messages) {
			ids = append(ids, int(c))
		}
	}
	if r.URL.Path == routertest.PathChat && b.KV.IDs != nil { // as stock vLLM does
		ids = nil
		_ = json.Unmarshal(b.KV.IDs, &ids)
		f.mu.Lock()
		f.given = append(f.given, string(b.KV.IDs))
		f.mu.Unlock()
	}
	if len(ids) > 0 && ids[len(ids)-1] >= 5000 {
		http.Error(w, "half a character at the seam", 500)
		return
	}
	prompt, _ := json.Marshal(ids)
	chat := r.URL.Path == routertest.PathChat
	most := 16 // of a completion that does not say it, as stock vLLM does
	switch {
	case b.Most != nil:
		most = *b.Most
	case chat:
		most = f.room - len(ids)
	}
	id := fmt.Sprintf(`"id":"%s","created":%d,"model":"tiny"`, r.Header.Get("X-Request-Id"), len(ids))
	if !b.Stream {
		w.Header().Set("Content-Type", "application/json")
		told := "null"
		if b.Tell {
			told = string(prompt)
		}
		params := "null"
		if b.KV.Hands {
			params = fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"p","remote_host":"10.1.2.3","remote_port":5601,"tp_size":1,`+
				`"remote_block_ids":[[1]],"remote_request_id":%q}`, r.Header.Get("X-Request-Id"))
		}
		fmt.Fprintf(w, `{%s,"object":"x","choices":[{"index":0,"text":"t","finish_reason":"length"}],"prompt_token_ids":%s,"usage":{"prompt_tokens":%d},"kv_transfer_params":%s}`,
			id, told, len(ids), params)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	hidden := func(v string) string {
		if b.Tell {
			return v
		}
		return "null"
	}
	for i := range most {
		if i == dies {
			routertest.ResetConn(w)
			return
		}
		token, text := nextToken(ids)
		ids = append(ids, token)
		finish, first := "null", "null"
		if i == most-1 {
			finish = `"length"`
		}
		if i == 0 {
			first = hidden(string(prompt))
		}
		told := hidden(fmt.Sprintf("[%d]", token))
		if chat {
			fmt.Fprintf(w, `data: {%s,"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":%q},"finish_reason":%s,"token_ids":%s}],"prompt_token_ids":%s}`+"\n\n",
				id, text, finish, told, first)
		} else {
			fmt.Fprintf(w, `data: {%s,"object":"text_completion","choices":[{"index":0,"text":%q,"finish_reason":%s,"prompt_token_ids":%s,"token_ids":%s}]}`+"\n\n",
				id, text, finish, first, told)
		}
		w.(http.Flusher).Flush()
	}
	if b.Options.Usage {
		var n []int
		_ = json.Unmarshal(prompt, &n)
		fmt.Fprintf(w, `data: {%s,"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`+"\n\n", id, len(n), len(n)+most, most)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// said joins the text of a stream, and checks that its events are of one answer.
func said(t *testing.T, body string) (text, usage string) {
	t.Helper()
	var out strings.Builder
	first := ""
	for _, event := range strings.Split(body, "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var p struct {
			ID      string
			Created int
			Object  string
			Choices []struct {
				Text  string
				Delta struct{ Content string }
			}
			Usage json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &p); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		if of := fmt.Sprint(p.ID, p.Created); first == "" {
			first = of
		} else if of != first {
			t.Errorf("an event of %s in the answer %s", of, first)
		}
		for _, c := range p.Choices {
			out.WriteString(c.Text + c.Delta.Content)
		}
		if len(p.Usage) > 0 {
			usage = string(p.Usage)
		}
	}
	return out.String(), usage
}

// TestFault53Continued kills decode at random tokens, once or twice: the client has what one engine would have said, once.
func TestFault53Continued(t *testing.T) {
	tellers := make([]*fakeTeller, 3)
	m := config.Model{Name: "tiny"}
	for i := range tellers {
		tellers[i] = &fakeTeller{dies: -1, room: 120}
		srv := httptest.NewServer(http.HandlerFunc(tellers[i].serve))
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
		m.Engines = append(m.Engines, config.Engine{Name: fmt.Sprintf("d%d", i), URL: srv.URL})
	}
	p := routertest.Policy(t, policies.Choosing{AfterFailure: policies.Continue})
	cfg := config.Config{Models: []config.Model{m}, Limits: config.Limits{RetryFloor: new(1 << 20), Failures: 1 << 20}, Health: config.Health{Failures: 1 << 20, PanicPercent: 1}}
	g := routertest.Start(t, cfg, router.Parts{Planner: p})
	set := func(dies ...int) {
		for i, f := range tellers {
			f.mu.Lock()
			f.dies, f.asked = dies[i], nil
			f.mu.Unlock()
		}
	}
	before := 0
	for i := range tellers {
		dies := []int{1, 1, 1}
		dies[i] = -1
		set(dies...)
		routertest.Eventually(t, "each engine has said how much room it has", func() bool {
			before++
			return g.Post(routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"?"}],"temperature":0,"stream":true}`).Err == nil
		})
	}
	continued := 0
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 53))
		n := 1 + rng.IntN(20)
		path, body := routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":"seed %d","max_tokens":%d,"temperature":0,"stream":true`, seed, n)
		if rng.IntN(2) == 0 {
			path, body = routertest.PathChat, fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"seed %d"}],"max_tokens":%d,"temperature":0,"stream":true`, seed, n)
			if rng.IntN(2) == 0 { // to the model's end
				body = strings.Replace(body, fmt.Sprintf(`"max_tokens":%d,`, n), "", 1)
			}
		}
		usage := rng.IntN(2) == 0
		if usage {
			body += `,"stream_options":{"include_usage":true}`
		}
		body += "}"
		set(-1, -1, -1)
		want, wantUsage := said(t, g.Post(path, body).Body)
		// One engine never dies, so that there is one to end with.
		dies := []int{1 + rng.IntN(n+1), 1 + rng.IntN(n+1), -1}
		rng.Shuffle(3, func(i, j int) { dies[i], dies[j] = dies[j], dies[i] })
		set(dies...)
		r := g.Post(path, body)
		got, gotUsage := said(t, r.Body)
		if got != want || gotUsage != wantUsage || r.Err != nil || strings.Count(r.Body, "[DONE]") != 1 || strings.Contains(r.Body, "token_ids\":[") {
			t.Fatalf("seed %d, dies %v: end %v, text %q; want %q; usage %q; want %q\n%s", seed, dies, r.Err, got, want, gotUsage, wantUsage, r.Body)
		}
		continued += int(g.Summary(before + 2*int(seed) + 2).Continued)
	}
	if continued < 300 {
		t.Errorf("%d continuations", continued)
	}
}

// TestFault53NotContinued has bodies that nobody can go on with exactly: the client is told, as without the policy.
func TestFault53NotContinued(t *testing.T) {
	f := &fakeTeller{dies: 3}
	srv := httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	p := routertest.Policy(t, policies.Choosing{AfterFailure: policies.Continue})
	cfg := config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{{Name: "a", URL: srv.URL}}}}, Health: config.Health{Failures: 1 << 20}}
	g := routertest.Start(t, cfg, router.Parts{Planner: p})
	for i, row := range []struct{ more, result string }{
		{`"temperature":1`, "unsupported"},
		{`"top_p":1`, "unsupported"},
		{`"temperature":0,"stop":["x"]`, "unsupported"},
		{`"temperature":0,"tools":[{"type":"function"}]`, "unsupported"},
		{`"temperature":0,"response_format":{"type":"json_object"}`, "unsupported"},
		{`"temperature":0,"logprobs":1`, "unsupported"},
		{`"temperature":0,"return_token_ids":true`, "unsupported"},
		{`"temperature":0,"presence_penalty":1`, "unsupported"},
		{`"temperature":0,"max_tokens":null`, "unsupported"},
		{`"temperature":0`, "failed"}, // there is no other engine
	} {
		r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"p","stream":true,`+row.more+`}`)
		if r.Err == nil || strings.Contains(r.Body, "[DONE]") || strings.Count(r.Body, `{"error"`) != 1 {
			t.Errorf("%s: end %v, body %q", row.more, r.Err, r.Body)
		}
		if sum := g.Summary(i + 1); sum.NotContinued != row.result || sum.Outcome != dispatch.FailedAfter {
			t.Errorf("%s: %+v", row.more, sum)
		}
	}
}

// TestFault53NoRoomKnown: a chat that goes to the model's end is not continued by an engine that does not say where that is: as a completion it would
// end after 16 tokens.
func TestFault53NoRoomKnown(t *testing.T) {
	m := config.Model{Name: "tiny"}
	for _, name := range []string{"a", "b"} {
		f := &fakeTeller{dies: 3}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				return
			}
			f.room = 120
			f.serve(w, r)
		}))
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
		m.Engines = append(m.Engines, config.Engine{Name: name, URL: srv.URL})
	}
	p := routertest.Policy(t, policies.Choosing{AfterFailure: policies.Continue})
	g := routertest.Start(t, config.Config{Models: []config.Model{m}, Health: config.Health{Failures: 1 << 20}}, router.Parts{Planner: p})
	r := g.Post(routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"p"}],"temperature":0,"stream":true}`)
	if sum := g.Summary(1); r.Err == nil || strings.Contains(r.Body, "[DONE]") || sum.NotContinued != "failed" || sum.Attempts != 1 {
		t.Errorf("end %v, %+v, body %q", r.Err, sum, r.Body)
	}
}

// TestFault53ContinuedByTheSameRevision has every engine die after two tokens: no stream has tokens of two revisions. An engine whose revision is not
// known goes on with each.
func TestFault53ContinuedByTheSameRevision(t *testing.T) {
	m := config.Model{Name: "tiny"}
	tellers := map[string]*fakeTeller{}
	for name, revision := range map[string]string{"a0": "1", "a1": "1", "b0": "2", "b1": "2", "c": ""} {
		tellers[name] = &fakeTeller{dies: 2}
		srv := httptest.NewServer(http.HandlerFunc(tellers[name].serve))
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
		m.Engines = append(m.Engines, config.Engine{Name: name, URL: srv.URL, Revision: revision})
	}
	p := routertest.Policy(t, policies.Choosing{AfterFailure: policies.Continue})
	cfg := config.Config{Models: []config.Model{m}, Limits: config.Limits{RetryFloor: new(1 << 20), Failures: 1 << 20, Attempts: 5}, Health: config.Health{Failures: 1 << 20, PanicPercent: 1}}
	g := routertest.Start(t, cfg, router.Parts{Planner: p})
	toUnknown := 0
	for i := range 30 {
		r := g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":"%d","max_tokens":20,"temperature":0,"stream":true}`, i))
		asked := map[byte]int{}
		for name, f := range tellers {
			f.mu.Lock()
			asked[name[0]] += len(f.asked)
			f.asked = nil
			f.mu.Unlock()
		}
		if asked['a'] > 0 && asked['b'] > 0 || asked['a']+asked['b'] != 2 {
			t.Errorf("engines asked: %d of revision 1, %d of 2; %q", asked['a'], asked['b'], r.Body)
		}
		toUnknown += asked['c']
	}
	if toUnknown != 30 {
		t.Errorf("the engine without a revision was asked %d times", toUnknown)
	}
}
