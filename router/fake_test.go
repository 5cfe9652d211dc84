package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
	"pdrouter/router/config"
)

// fault is one thing that a fake engine does wrong.
type fault struct {
	Leg string // "prefill", "decode", "alone"; "" is any
	Nth int    // which request of that leg, from 1; 0 is every one
	Do  string
	N   int // how much, for faults that have a measure
}

// What a fault may do.
const (
	doRefuse    = "503"
	doBusy      = "429"
	doError     = "500"
	doReject    = "400"
	doTicket    = "403 ticket"    // the leg's ticket is not accepted
	doReset     = "reset"         // the connection breaks before a byte
	doResetLate = "reset later"   // behind N milliseconds
	doDie       = "die"           // the same, and nobody listens any more
	doHang      = "hang"          // nothing, until the client goes
	doBare      = "no params"     // prefill answers without kv_transfer_params
	doPart      = "part params"   // prefill answers with half of them
	doOld       = "old params"    // prefill answers without remote_request_id
	doGarbage   = "garbage"       // 200 and no JSON
	doTrail     = "trail"         // 200 and JSON with more behind it, which names the hand-off
	doPage      = "html"          // 200 and a page where a stream was asked for
	doBreak     = "break"         // the stream breaks behind N tokens
	doNoDone    = "no done"       // the stream ends cleanly behind N tokens, without its terminal event
	doErrFrame  = "error frame"   // an error event behind N tokens, then the terminal event
	doNoKV      = "no kv"         // decode's blocks did not come: 503 transfer_failed
	doSlow      = "slow"          // N milliseconds of prefill, or between tokens
	doNeverKV   = "never writes"  // prefill answers and writes nothing
	doSlowReply = "slow reply"    // prefill has written, and answers N milliseconds later
	doBigToken  = "big token"     // one token of N bytes, and then none until the client goes; not streamed, an answer that is so much larger
	doNewEngine = "new engine id" // prefill was started anew

	doRefuseLate = "503 later"   // behind N milliseconds
	doErrorLate  = "500 later"   // behind N milliseconds
	doLateToken  = "late tokens" // N milliseconds before every token but the first
)

// fakeVLLM speaks as much of an engine's protocol as the router needs. Its answer is "tok0 tok1 …".
type fakeVLLM struct {
	name  string
	c     *cluster
	srv   *httptest.Server
	plain bool // it knows requests by the very name that it is given

	events *kvplane.Events // connector kvplane

	mu      sync.Mutex
	health  func(http.ResponseWriter, *http.Request) // nil: it is healthy
	habit   habit
	id      string
	faults  []fault
	n       map[string]int // requests by leg
	full    time.Time      // until then it begins with no request
	open    int            // requests under way
	works   int            // of them, those that make tokens
	mute    bool           // it says nothing of how many they are
	usage   string         // the part of its KV cache that it says is in use; empty: it says nothing of it
	expired int            // how many leases it says that have ended
	breaks  int            // looks at that, from the next on, that it breaks the connection of
	tells   time.Duration  // how long it takes to say it
	looks   int            // at that, under way
	most    int            // of them at once, where they are held
}

func newFakeVLLM(t *testing.T, c *cluster, name string, faults ...fault) *fakeVLLM {
	t.Helper()
	f := &fakeVLLM{name: name, c: c, habit: habit{tokens: 3}, id: "id-of-" + name, faults: faults, n: map[string]int{}}
	c.engines = append(c.engines, f)
	f.srv = c.server(http.HandlerFunc(f.serve))
	f.srv.Config.ErrorLog = nil
	t.Cleanup(func() { f.srv.CloseClientConnections(); f.srv.Close() })
	return f
}

// control serves the engine's control routes, and returns their base URL.
func (f *fakeVLLM) control(t *testing.T) string {
	f.events = kvplane.NewEvents()
	srv := f.c.server(kvplane.ControlHandler(f.events, func(id kvplane.TransferID, _ string) {
		f.c.mu.Lock()
		defer f.c.mu.Unlock()
		f.c.cancels++
		f.c.dropped[id.String()] = true
		delete(f.c.prefill, id.String())
		delete(f.c.decode, id.String())
	}, func(r *http.Request) error {
		if r.Header.Get("Authorization") != "Bearer plane" {
			return errors.New("who?")
		}
		return nil
	}, slog.New(slog.DiscardHandler)))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL
}

func (f *fakeVLLM) config() config.Engine { return config.Engine{Name: f.name, URL: f.srv.URL} }

// does returns the fault that this request of the leg meets.
func (f *fakeVLLM) does(l string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n[l]++
	for _, x := range f.faults {
		if (x.Leg == l || x.Leg == "") && (x.Nth == 0 || x.Nth == f.n[l]) {
			return x
		}
	}
	return fault{}
}

func (f *fakeVLLM) busy(by int) {
	f.mu.Lock()
	f.open += by
	f.mu.Unlock()
}

func (f *fakeVLLM) working(by int) {
	f.mu.Lock()
	f.works += by
	f.mu.Unlock()
}

// tell says what it has in hand, as engines do.
func (f *fakeVLLM) tell(w http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	defer func() { f.looks-- }()
	if f.tells > 0 {
		f.mu.Unlock()
		time.Sleep(f.tells)
		f.mu.Lock()
	}
	if f.breaks > 0 {
		f.breaks--
		resetConn(w)
		return
	}
	if f.mute {
		http.NotFound(w, nil)
		return
	}
	fmt.Fprintf(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\"} %d.0\nvllm:num_requests_waiting{engine=\"0\"} %d.0\n",
		f.works, f.open-f.works)
	if f.expired > 0 {
		fmt.Fprintf(w, "vllm:nixl_num_kv_expired_reqs_total{engine=\"0\"} %d.0\n", f.expired)
	}
	if f.usage != "" {
		fmt.Fprintf(w, "vllm:kv_cache_usage_perc{engine=\"0\"} %s\nvllm:cache_config_info{engine=\"0\",num_gpu_blocks=\"100\"} 1.0\n", f.usage)
	}
}

// healthIs changes what its health route does.
func (f *fakeVLLM) healthIs(say func(http.ResponseWriter, *http.Request)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.health = say
}

// neverSays is a health route that does not answer.
func neverSays(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// unhealthy is one that says no.
func unhealthy(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }

func (f *fakeVLLM) underWay() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

// habit is how an engine answers.
type habit struct {
	tokens int
	parrot bool // its tokens begin with the prompt and the seed that it was given
	cached int  // tokens, as its streams of completions say; 0: they do not say, and its answers say 4
}

func (f *fakeVLLM) habits() habit {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.habit
}

// answers changes how it answers, while it does.
func (f *fakeVLLM) answers(change func(*habit)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.habit)
}

// begins waits for the engine's turn, and reports whether the client is there then.
func (f *fakeVLLM) begins(r *http.Request) bool {
	f.mu.Lock()
	wait := time.Until(f.full)
	f.mu.Unlock()
	return wait <= 0 || pause(r, fault{Do: doSlow, N: int(wait.Milliseconds()) + 1})
}

// isFull has it begin with nothing for d.
func (f *fakeVLLM) isFull(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = time.Now().Add(d)
}

type fakeBody struct {
	Model     string         `json:"model"`
	Stream    bool           `json:"stream"`
	MaxTokens int            `json:"max_tokens"`
	KV        map[string]any `json:"kv_transfer_params"`
	Options   map[string]any `json:"stream_options"`
	RequestID string         `json:"request_id"`
	path      string
	Prompt    any         `json:"prompt"`
	Seed      json.Number `json:"seed"`
	N         int         `json:"n"`
}

func (f *fakeVLLM) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		f.mu.Lock()
		say := f.health
		f.mu.Unlock()
		if say != nil {
			say(w, r)
		}
		return
	}
	if r.URL.Path == "/metrics" {
		f.tell(w)
		return
	}
	raw, _ := io.ReadAll(r.Body)
	var b fakeBody
	if err := json.Unmarshal(raw, &b); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	b.path = r.URL.Path
	l := "alone"
	if b.KV["do_remote_decode"] == true {
		l = "prefill"
	} else if b.KV["do_remote_prefill"] == true {
		l = "decode"
	}
	id := r.Header.Get("X-Request-Id")
	tid, plane := b.KV["transfer_id"].(string)
	if plane = plane && b.KV["peer"] != nil; plane {
		id = tid // both sides know the transfer by its own id
	}
	f.c.mu.Lock()
	x := f.does(l)
	f.c.requests = append(f.c.requests, &seen{f.name, l, r.URL.Path, r.Header.Get("X-Request-Id"), r.Header.Clone(), string(raw), b.KV, x.Do})
	f.c.mu.Unlock()
	f.busy(1)
	defer f.busy(-1)
	if !f.begins(r) {
		f.c.mu.Lock()
		f.c.unbegun[id] = l == "decode"
		f.c.mu.Unlock()
		return
	}
	if l == "prefill" {
		f.c.isAtWork(id, true)
		defer f.c.isAtWork(id, false)
	}
	if f.fails(w, r, x) {
		return
	}
	switch l {
	case "prefill":
		if !pause(r, x) {
			return // aborted in mid-prefill: nothing is held
		}
		if x.Do == doNewEngine {
			f.mu.Lock()
			f.id += "'"
			f.mu.Unlock()
		}
		if x.Do != doNeverKV && x.Do != doBare {
			f.c.finished(id)
			if f.events != nil {
				for tp := range 2 {
					e := kvplane.TransferEvent{Transfer: id, Engine: f.name, Rank: metadata.Rank{TP: tp}, Event: "written", Bytes: 96}
					f.events.Publish(e)
					e.Event = "sent"
					f.events.Publish(e)
				}
			}
		}
		if x.Do == doSlowReply {
			pause(r, fault{Do: doSlow, N: x.N})
		}
		f.answer(w, b, f.params(id, x)+pad(x))
	case "decode":
		f.taken(w, b)
		key := id
		if !f.c.push {
			key, _ = b.KV["remote_request_id"].(string)
		}
		if engine, _ := b.KV["remote_engine_id"].(string); !plane && !f.c.lives(engine) {
			<-r.Context().Done() // a start that is over never writes
			return
		}
		got := f.c.registered(key)
		select {
		case <-got:
		case <-r.Context().Done():
			if plane { // an engine of ours gives up what it reserved; in the others it stays
				f.c.mu.Lock()
				delete(f.c.decode, id)
				f.c.mu.Unlock()
			}
			return
		}
		if f.events != nil {
			for _, e := range []kvplane.TransferEvent{{Event: "counted", K: 1, N: 2}, {Event: "counted", K: 2, N: 2}, {Event: "ready", Blocks: 3}} {
				e.Transfer, e.Engine = id, f.name
				f.events.Publish(e)
			}
		}
		f.generate(w, r, b, x)
	default:
		f.taken(w, b)
		f.generate(w, r, b, x)
	}
}

func (f *fakeVLLM) params(id string, x fault) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch x.Do {
	case doBare:
		return ""
	case doPart:
		return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":%q}`, f.id)
	}
	if x.Do == doOld {
		return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":%q,`+
			`"remote_host":"10.1.2.3","remote_port":5601,"tp_size":2,"remote_block_ids":[[1,2]]}`, f.id)
	}
	name := id
	if f.plain {
		name = "cmpl-" + id + "-0"
	}
	return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":%q,`+
		`"remote_host":"10.1.2.3","remote_port":5601,"tp_size":2,"pp_size":1,"dcp_size":1,"remote_block_ids":[[1,2]],`+
		`"remote_request_id":%q,"transfer_id":%q}`, f.id, name, id)
}

func (f *fakeVLLM) answer(w http.ResponseWriter, b fakeBody, extra string) {
	w.Header().Set("Content-Type", "application/json")
	n := f.habits().tokens
	if b.MaxTokens > 0 {
		n = min(n, b.MaxTokens)
	}
	if s, ok := b.shape(); ok {
		_, _ = io.WriteString(w, shapedAnswer(s, b, n, extra))
		return
	}
	finish := "stop"
	if n < f.habits().tokens {
		finish = "length"
	}
	fmt.Fprintf(w, `{"id":"x","object":"text_completion","model":%q,"choices":[{"index":0,"text":%q,"finish_reason":%q}],`+
		`"usage":{"prompt_tokens":7,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}%s}`,
		b.Model, f.says(b)+tokens(n), finish, n, 4, extra)
}

// pad is a member that makes an answer as large as the fault says.
func pad(x fault) string {
	if x.Do != doBigToken {
		return ""
	}
	return `,"pad":"` + strings.Repeat("a", x.N) + `"`
}

// says is how its answer begins.
func (f *fakeVLLM) says(b fakeBody) string {
	if !f.habits().parrot {
		return ""
	}
	return fmt.Sprintf("%v/%v/%d ", b.Prompt, b.Seed, b.N)
}

func tokens(n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "tok%d ", i)
	}
	return s.String()
}

// generate answers a decode or aggregated leg.
func (f *fakeVLLM) generate(w http.ResponseWriter, r *http.Request, b fakeBody, x fault) {
	f.working(1)
	defer f.working(-1)
	if !b.Stream {
		if pause(r, x) {
			f.answer(w, b, `,"kv_transfer_params":{"remote_host":"10.9.9.9"}`+pad(x))
		}
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flush := w.(http.Flusher).Flush
	if x.Do == doBigToken {
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"text\":%q}]}\n\n", strings.Repeat("a", x.N))
		flush()
		<-r.Context().Done()
		return
	}
	n := f.habits().tokens
	if x.Do == doBreak || x.Do == doNoDone || x.Do == doErrFrame {
		n = x.N
	}
	for i := range n {
		if r.Context().Err() != nil || !pause(r, x) || i > 0 && x.Do == doLateToken && !pause(r, fault{Do: doSlow, N: x.N}) {
			return
		}
		said := ""
		if i == 0 {
			said = f.says(b)
		}
		if s, ok := b.shape(); ok {
			_, _ = io.WriteString(w, shapedToken(s, i))
			flush()
			continue
		}
		fmt.Fprintf(w, "data: {\"id\":\"%s\",\"choices\":[{\"index\":0,\"text\":\"%stok%d \"}]}\n\n", r.Header.Get("X-Request-Id"), said, i)
		flush()
	}
	if s, ok := b.shape(); ok {
		shapedEnding(w, s, b, x, n)
		return
	}
	switch x.Do {
	case doBreak:
		resetConn(w)
		return
	case doNoDone:
		return
	case doErrFrame:
		_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"as told\",\"code\":500}}\n\n")
	default:
		details := ""
		if cached := f.habits().cached; cached > 0 {
			details = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
		}
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":%d%s},"+
			"\"kv_transfer_params\":{\"remote_host\":\"10.9.9.9\"}}\n\n", n, details)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// hold has every generation wait until the channel is closed.
func (f *fakeVLLM) hold(until <-chan struct{}) {
	next := f.srv.Config.Handler
	f.srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			f.mu.Lock()
			f.open++
			f.most = max(f.most, f.open)
			f.mu.Unlock()
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			select {
			case <-until:
			case <-r.Context().Done():
			}
			f.busy(-1)
		}
		next.ServeHTTP(w, r)
	})
}

func (f *fakeVLLM) mostUnderWay() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}
