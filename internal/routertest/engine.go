package routertest

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
	"pdrouter/kvplane/control"
	"pdrouter/metadata"
	"pdrouter/router/config"
)

// Engine speaks as much of an engine's protocol as the router needs. Its answer is "tok0 tok1 …".
type Engine struct {
	Name     string
	Cluster  *Cluster
	Server   *httptest.Server
	PlainIDs bool // it knows requests by the very name that it is given

	events *control.Broadcaster // connector kvplane

	Mu      sync.Mutex
	health  func(http.ResponseWriter, *http.Request) // nil: it is healthy
	habit   Habit
	ID      string
	Faults  []Fault
	N       map[string]int // requests by leg
	full    time.Time      // until then it begins with no request
	Open    int            // requests under way
	Works   int            // of them, those that make tokens
	Mute    bool           // it says nothing of how many they are
	Usage   string         // the part of its KV cache that it says is in use; empty: it says nothing of it
	Expired int            // how many leases it says that have ended
	Breaks  int            // looks at that, from the next on, that it breaks the connection of
	Tells   time.Duration  // how long it takes to say it
	Looks   int            // at that, under way
	most    int            // of them at once, where they are held
}

// NewEngine starts an engine of the cluster, until the test ends.
func NewEngine(t *testing.T, c *Cluster, name string, faults ...Fault) *Engine {
	t.Helper()
	f := &Engine{Name: name, Cluster: c, habit: Habit{Tokens: 3}, ID: "id-of-" + name, Faults: faults, N: map[string]int{}}
	c.engines = append(c.engines, f)
	f.Server = c.Server(http.HandlerFunc(f.Serve))
	f.Server.Config.ErrorLog = nil
	t.Cleanup(func() { f.Server.CloseClientConnections(); f.Server.Close() })
	return f
}

// control serves the engine's control routes, and returns their base URL.
func (f *Engine) control(t *testing.T) string {
	f.events = control.NewBroadcaster()
	srv := f.Cluster.Server(control.Handler(f.events, func(id kvplane.TransferID, _ string) {
		f.Cluster.Mu.Lock()
		defer f.Cluster.Mu.Unlock()
		f.Cluster.Cancels++
		f.Cluster.dropped[id.String()] = true
		delete(f.Cluster.prefill, id.String())
		delete(f.Cluster.decode, id.String())
	}, func(r *http.Request) error {
		if r.Header.Get("Authorization") != "Bearer plane" {
			return errors.New("who?")
		}
		return nil
	}, slog.New(slog.DiscardHandler)))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL
}

// Config is the engine as a configuration has it.
func (f *Engine) Config() config.Engine { return config.Engine{Name: f.Name, URL: f.Server.URL} }

// does returns the fault that this request of the leg meets.
func (f *Engine) does(l string) Fault {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.N[l]++
	for _, x := range f.Faults {
		if (x.Leg == l || x.Leg == "") && (x.Nth == 0 || x.Nth == f.N[l]) {
			return x
		}
	}
	return Fault{}
}

func (f *Engine) busy(by int) {
	f.Mu.Lock()
	f.Open += by
	f.Mu.Unlock()
}

func (f *Engine) working(by int) {
	f.Mu.Lock()
	f.Works += by
	f.Mu.Unlock()
}

// tell says what it has in hand, as engines do.
func (f *Engine) tell(w http.ResponseWriter) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Looks++
	defer func() { f.Looks-- }()
	if f.Tells > 0 {
		f.Mu.Unlock()
		time.Sleep(f.Tells)
		f.Mu.Lock()
	}
	if f.Breaks > 0 {
		f.Breaks--
		ResetConn(w)
		return
	}
	if f.Mute {
		http.NotFound(w, nil)
		return
	}
	fmt.Fprintf(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\"} %d.0\nvllm:num_requests_waiting{engine=\"0\"} %d.0\n",
		f.Works, f.Open-f.Works)
	if f.Expired > 0 {
		fmt.Fprintf(w, "vllm:nixl_num_kv_expired_reqs_total{engine=\"0\"} %d.0\n", f.Expired)
	}
	if f.Usage != "" {
		fmt.Fprintf(w, "vllm:kv_cache_usage_perc{engine=\"0\"} %s\nvllm:cache_config_info{engine=\"0\",num_gpu_blocks=\"100\"} 1.0\n", f.Usage)
	}
}

// SetHealth changes what its health route does.
func (f *Engine) SetHealth(say func(http.ResponseWriter, *http.Request)) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.health = say
}

// NeverSays is a health route that does not answer.
func NeverSays(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Unhealthy is one that says no.
func Unhealthy(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }

// UnderWay is how many requests the engine has now, MostUnderWay how many it had at once while it was held.
func (f *Engine) UnderWay() int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Open
}

// Habit is how an engine answers.
type Habit struct {
	Tokens int
	Parrot bool   // its tokens begin with the prompt and the seed that it was given
	IDs    string // the array of token ids that a chat's prompt has, which it answers if it is asked for; "": it ignores that
	Cached int    // tokens, as its streams of completions say; 0: they do not say, and its answers say 4
}

func (f *Engine) habits() Habit {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.habit
}

// SetHabit changes how it answers, while it does.
func (f *Engine) SetHabit(change func(*Habit)) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	change(&f.habit)
}

// begins waits for the engine's turn, and reports whether the client is there then.
func (f *Engine) begins(r *http.Request) bool {
	f.Mu.Lock()
	wait := time.Until(f.full)
	f.Mu.Unlock()
	return wait <= 0 || pause(r, Fault{Do: DoSlow, N: int(wait.Milliseconds()) + 1})
}

// PauseFor has it begin with nothing for d.
func (f *Engine) PauseFor(d time.Duration) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.full = time.Now().Add(d)
}

type fakeBody struct {
	Model     string         `json:"model"`
	Stream    bool           `json:"stream"`
	MaxTokens int            `json:"max_tokens"`
	KV        map[string]any `json:"kv_transfer_params"`
	Options   map[string]any `json:"stream_options"`
	IDs       bool           `json:"return_token_ids"`
	RequestID string         `json:"request_id"`
	path      string
	Prompt    any         `json:"prompt"`
	Seed      json.Number `json:"seed"`
	N         int         `json:"n"`
}

// Serve answers one request.
func (f *Engine) Serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		f.Mu.Lock()
		say := f.health
		f.Mu.Unlock()
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
	f.Cluster.Mu.Lock()
	x := f.does(l)
	f.Cluster.Requests = append(f.Cluster.Requests, &Request{f.Name, l, r.URL.Path, r.Header.Get("X-Request-Id"), r.Header.Clone(), string(raw), b.KV, x.Do})
	f.Cluster.Mu.Unlock()
	f.busy(1)
	defer f.busy(-1)
	if !f.begins(r) {
		f.Cluster.Mu.Lock()
		f.Cluster.unbegun[id] = l == "decode"
		f.Cluster.Mu.Unlock()
		return
	}
	if l == "prefill" {
		f.Cluster.isAtWork(id, true)
		defer f.Cluster.isAtWork(id, false)
	}
	if (x.Do == DoRefuseIDs || x.Do == DoBareIDs) && !strings.Contains(string(raw), "token_ids") {
		x = Fault{}
	}
	if f.fails(w, r, x) {
		return
	}
	switch l {
	case "prefill":
		if !pause(r, x) {
			return // aborted in mid-prefill: nothing is held
		}
		if x.Do == DoNewEngine {
			f.Mu.Lock()
			f.ID += "'"
			f.Mu.Unlock()
		}
		if x.Do != DoNeverKV && x.Do != DoBare {
			f.Cluster.finished(id)
			if f.events != nil {
				for tp := range 2 {
					f.events.Publish(control.Event{Transfer: id, Engine: f.Name, Rank: metadata.Rank{TP: tp}, Event: "sent", Bytes: 96})
				}
			}
		}
		if x.Do == DoSlowReply {
			pause(r, Fault{Do: DoSlow, N: x.N})
		}
		f.answer(w, b, f.params(id, x)+pad(x))
	case "decode":
		f.taken(w, b)
		key := id
		if !f.Cluster.Push {
			key, _ = b.KV["remote_request_id"].(string)
		}
		if engine, _ := b.KV["remote_engine_id"].(string); !plane && !f.Cluster.lives(engine) {
			<-r.Context().Done() // a start that is over never writes
			return
		}
		got := f.Cluster.registered(key)
		select {
		case <-got:
		case <-r.Context().Done():
			if plane { // an engine of ours gives up what it reserved; in the others it stays
				f.Cluster.Mu.Lock()
				delete(f.Cluster.decode, id)
				f.Cluster.Mu.Unlock()
			}
			return
		}
		if f.events != nil {
			f.events.Publish(control.Event{Transfer: id, Engine: f.Name, Event: "ready", K: 2, N: 2, Blocks: 3})
		}
		f.generate(w, r, b, x)
	default:
		f.taken(w, b)
		f.generate(w, r, b, x)
	}
}

// HoldUntil has every generation wait until the channel is closed.
func (f *Engine) HoldUntil(until <-chan struct{}) {
	next := f.Server.Config.Handler
	f.Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			f.Mu.Lock()
			f.Open++
			f.most = max(f.most, f.Open)
			f.Mu.Unlock()
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

func (f *Engine) MostUnderWay() int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.most
}
