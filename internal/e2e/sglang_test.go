package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSGLangRouter gives the same bodies to SGLang's own router and to pdrouter, each in front of the same recording engines,
// and compares what the engines are sent, field by field. It says nothing of KV: there are no engines behind the records.
func TestSGLangRouter(t *testing.T) {
	lib := filepath.Join(root(t), ".deps", "sglang-router")
	if _, err := os.Stat(lib); err != nil {
		t.Skip("SGLang's router is not installed; internal/deps/sglang.sh installs it")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	r := &rooms{met: map[string]chan struct{}{}}
	p, d := newRecorder(t, "prefill", r), newRecorder(t, "decode", r)
	at := freeAddresses(t, 2)
	_, metrics, _ := net.SplitHostPort(at[1])
	host, port, _ := net.SplitHostPort(at[0])
	theirs := start(t, "sglang-router", []string{"PYTHONPATH=" + lib, "HF_HUB_OFFLINE=1"}, python, "sglang_launch.py", "--host", host, "--port", port,
		"--pd-disaggregation", "--prefill", p.srv.URL, strconv.Itoa(bootstrapPort), "--decode", d.srv.URL, "--policy", "round_robin", "--disable-retries",
		"--prometheus-host", "127.0.0.1", "--prometheus-port", metrics, "--worker-startup-check-interval", "1", "--log-level", "error")
	ours := serve(t, build(t), config{connector: "sglang", prefill: []backend{{url: p.srv.URL}}, decode: []backend{{url: d.srv.URL}}})
	theirs.ready(t, "http://"+at[0]+"/readiness", 3*time.Minute)

	for _, row := range []struct{ name, path, body string }{
		{"chat", chat, `{"model":"tiny","messages":[{"role":"user","content":"a"}]}`},
		{"chat, streamed", chat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true}}`},
		{"chat, all that says how", chat, `{"model":"tiny","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}],"max_completion_tokens":7,` +
			`"temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.25,"seed":7,"stop":["x","y"],"frequency_penalty":0.5,"presence_penalty":0.25,"repetition_penalty":1.5,` +
			`"logprobs":true,"top_logprobs":2,"min_tokens":2,"ignore_eos":true,"response_format":{"type":"json_object"},"user":"u"}`},
		{"chat, tools", chat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto"}`},
		{"chat, choices", chat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"n":3,"temperature":0}`},
		{"chat, choices, streamed", chat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"n":2,"temperature":0,"stream":true}`},
		{"completions", completions, `{"model":"tiny","prompt":"a","max_tokens":5,"logprobs":2}`},
		{"completions, streamed", completions, `{"model":"tiny","prompt":"a","max_tokens":5,"stream":true}`},
		{"completions, one token", completions, `{"model":"tiny","prompt":"a","max_tokens":1}`},
		{"completions, prompts", completions, `{"model":"tiny","prompt":["a","b"],"max_tokens":5}`},
		{"completions, a room of the client's", completions, `{"model":"tiny","prompt":"a","bootstrap_host":"10.0.0.1","bootstrap_port":1,"bootstrap_room":1}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			p.forget()
			d.forget()
			theirAnswer := said(t, "http://"+at[0]+row.path, row.body)
			theirP, theirD := p.forget(), d.forget()
			ourAnswer := said(t, ours.url+row.path, row.body)
			ourP, ourD := p.forget(), d.forget()
			for _, a := range []string{theirAnswer, ourAnswer} { // the client's answer is decode's
				if !strings.Contains(a, "by decode") || strings.Contains(a, "by prefill") {
					t.Errorf("the client was answered %s", a)
				}
			}
			want, got := meetings(t, theirP, theirD), meetings(t, ourP, ourD)
			if want != got {
				t.Errorf("pdrouter sends legs to %d rooms, SGLang's router to %d", got, want)
			}
			compareLegs(t, "prefill", row.body, theirP, ourP)
			compareLegs(t, "decode", row.body, theirD, ourD)
		})
	}
	t.Run("rejected", func(t *testing.T) { // what both engines reject is the client's to know
		for _, url := range []string{"http://" + at[0], ours.url} {
			if status, answer := post(t, url+completions, `{"model":"tiny","prompt":"a","stop":"`+rejected+`"}`); status != 400 || !strings.Contains(answer, "as told") {
				t.Errorf("%s: status %d: %s", url, status, answer)
			}
		}
	})
}

const (
	chat          = "/v1/chat/completions"
	completions   = "/v1/completions"
	bootstrapPort = 8998
	rejected      = "what an engine rejects"
)

// rooms are where the legs meet.
type rooms struct {
	mu  sync.Mutex
	met map[string]chan struct{} // by room and role; closed when a leg of the role has named the room
}

func (r *rooms) at(role, room string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := role + room
	if r.met[at] == nil {
		r.met[at] = make(chan struct{})
	}
	return r.met[at]
}

// meet waits until a leg of the other role has named each of the leg's rooms. It reports false if the leg was ended before.
func (r *rooms) meet(q *http.Request, role string, l leg) bool {
	other := map[string]string{"prefill": "decode", "decode": "prefill"}[role]
	for _, room := range list(l.body["bootstrap_room"]) {
		close(r.at(role, fmt.Sprint(room)))
	}
	for _, room := range list(l.body["bootstrap_room"]) {
		select {
		case <-r.at(other, fmt.Sprint(room)):
		case <-q.Context().Done():
			return false
		}
	}
	return true
}

// recorder is an engine that keeps what it is sent, and answers when the legs have met.
type recorder struct {
	role  string
	rooms *rooms
	srv   *httptest.Server
	mu    sync.Mutex
	legs  []leg
}

// leg is one request to an engine.
type leg struct {
	path   string
	header http.Header
	body   map[string]any
}

func newRecorder(t *testing.T, role string, at *rooms) *recorder {
	r := &recorder{role: role, rooms: at}
	r.srv = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.srv.Close)
	return r
}

// forget returns the legs since the last call.
func (r *recorder) forget() []leg {
	r.mu.Lock()
	defer r.mu.Unlock()
	legs := r.legs
	r.legs = nil
	return legs
}

func (r *recorder) serve(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if q.Method == http.MethodGet { // its name is no name that anybody could fetch a tokenizer by
		_, _ = io.WriteString(w, `{"model_path":"/dev/null","served_model_name":"tiny","disaggregation_mode":"`+r.role+`","object":"list","data":[{"id":"tiny","object":"model"}]}`)
		return
	}
	raw, _ := io.ReadAll(q.Body)
	l := leg{path: q.URL.Path, header: q.Header.Clone()}
	read := json.NewDecoder(bytes.NewReader(raw))
	read.UseNumber()
	if read.Decode(&l.body) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.legs = append(r.legs, l)
	r.mu.Unlock()
	if l.body["stop"] == rejected {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"object":"error","message":"as told","type":"BadRequestError","param":null,"code":400}`)
		return
	}
	if !r.rooms.meet(q, r.role, l) {
		return
	}
	one := `{"index":0,"%s":{"role":"assistant","content":"by ` + r.role + `"},"text":"by ` + r.role + `","logprobs":null,"finish_reason":"stop"}`
	rest := `"id":"x","created":1,"model":"tiny","usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`
	if l.body["stream"] == true {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, `data: {"object":"chunk","choices":[`+one+`],`+rest+"\n\ndata: [DONE]\n\n", "delta")
		return
	}
	_, _ = fmt.Fprintf(w, `{"object":"answer","choices":[`+one+`],`+rest, "message")
}

// post asks under headers that name what no client may say.
func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Data-Parallel-Rank", "1")
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	got, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(got)
}

func said(t *testing.T, url, body string) string {
	t.Helper()
	status, answer := post(t, url, body)
	if status != 200 {
		t.Fatalf("%s: status %d: %s", url, status, answer)
	}
	return answer
}

// meetings checks that each room is named once by either role, and where it is. It returns how many rooms there are.
func meetings(t *testing.T, prefill, decode []leg) int {
	t.Helper()
	var rooms [2][]string
	for i, legs := range [][]leg{prefill, decode} {
		for _, l := range legs {
			for _, host := range list(l.body["bootstrap_host"]) {
				if host != "127.0.0.1" {
					t.Errorf("bootstrap_host %v", host)
				}
			}
			for _, port := range list(l.body["bootstrap_port"]) {
				if port != json.Number(strconv.Itoa(bootstrapPort)) {
					t.Errorf("bootstrap_port %v", port)
				}
			}
			for _, room := range list(l.body["bootstrap_room"]) {
				n, is := room.(json.Number)
				if v, err := strconv.ParseUint(string(n), 10, 64); !is || err != nil || v >= 1<<63 {
					t.Errorf("bootstrap_room %v", room)
				}
				rooms[i] = append(rooms[i], string(n))
			}
			if len(l.header.Values("X-Data-Parallel-Rank")) != 0 {
				t.Error("the client's rank reached an engine")
			}
		}
		slices.Sort(rooms[i])
	}
	if len(rooms[0]) == 0 || !slices.Equal(rooms[0], rooms[1]) || len(slices.Compact(slices.Clone(rooms[0]))) != len(rooms[0]) {
		t.Errorf("rooms of prefill %v, of decode %v", rooms[0], rooms[1])
	}
	return len(rooms[0])
}

func list(v any) []any {
	if l, is := v.([]any); is {
		return l
	}
	return []any{v}
}

// differs says why a member of a leg's body may differ between the two routers.
var differs = map[string]string{
	"bootstrap_host": "one of a leg; an array where SGLang's router sends several choices or prompts in one leg",
	"bootstrap_port": "likewise",
	"bootstrap_room": "new at every dispatch",
	"n":              "pdrouter sends a leg for each choice",
	"prompt":         "pdrouter sends a leg for each prompt",
	"seed":           "each choice has one of its own",
	"user":           "SGLang's router leaves it out",
}

// compareLegs compares every member: what SGLang's router writes of its own accord are the defaults of SGLang, and pdrouter
// leaves those to SGLang.
func compareLegs(t *testing.T, role, body string, theirs, ours []leg) {
	t.Helper()
	var client map[string]any
	if err := json.Unmarshal([]byte(body), &client); err != nil {
		t.Fatal(err)
	}
	if len(theirs) != 1 || len(ours) == 0 {
		t.Fatalf("%s got %d legs of SGLang's router and %d of pdrouter", role, len(theirs), len(ours))
	}
	want := theirs[0]
	for _, l := range ours {
		if l.path != want.path || l.header.Get("Content-Type") != want.header.Get("Content-Type") {
			t.Errorf("%s: asked %s as %s, SGLang's router %s as %s", role, l.path, l.header.Get("Content-Type"), want.path, want.header.Get("Content-Type"))
		}
		for k := range merged(want.body, l.body) {
			was, wrote := want.body[k]
			is, writes := l.body[k]
			_, asked := client[k]
			switch {
			case equal(was, is):
			case differs[k] != "" && writes:
			case role == "prefill" && (k == "stream" || k == "stream_options") && is != true && (was == true || !writes): // so that a failure of prefill is a status, not an event behind one of 200
			case wrote && !writes && !asked: // a default
			default:
				t.Errorf("%s: %s is %v, SGLang's router sends %v", role, k, is, was)
			}
		}
	}
}

func merged(a, b map[string]any) map[string]bool {
	all := map[string]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return all
}

// equal compares numbers by value, at the precision that SGLang's router keeps.
func equal(a, b any) bool {
	x, isX := a.(json.Number)
	y, isY := b.(json.Number)
	if isX && isY {
		v, _ := x.Float64()
		w, _ := y.Float64()
		return float32(v) == float32(w)
	}
	p, _ := json.Marshal(a)
	q, _ := json.Marshal(b)
	return bytes.Equal(p, q)
}
