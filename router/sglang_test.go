package router

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// sglangRooms are where the fake engines of one test meet, as stock SGLang's do: prefill waits in its room until decode has
// said where its blocks are, and answers when they are written; either leaves with its connection.
type sglangRooms struct {
	mu    sync.Mutex
	rooms map[string]*sglangRoom
	used  map[string]int // legs that ever came to a room
}

type sglangRoom struct {
	prefill, decode, written chan struct{}
	there                    int // legs in it
}

// What an engine does when both legs are in the room.
const (
	doDieInRoom  = "die in the room"
	doNoMeeting  = "no meeting"  // decode cannot reach prefill's bootstrap server, and says so
	doNoTransfer = "no transfer" // prefill says that it could not write
	doTurnDown   = "turn down"   // the scheduler finds fault with the request
)

func (s *sglangRooms) enter(room string) *sglangRoom {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[room]++
	r := s.rooms[room]
	if r == nil {
		r = &sglangRoom{prefill: make(chan struct{}), decode: make(chan struct{}), written: make(chan struct{})}
		s.rooms[room] = r
	}
	r.there++
	return r
}

func (s *sglangRooms) leave(room string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rooms[room]; r != nil {
		if r.there--; r.there == 0 {
			delete(s.rooms, room)
		}
	}
}

func (s *sglangRooms) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rooms)
}

// fakeSGLang speaks as much of SGLang's protocol as the router needs. Its answer is that of fakeVLLM.
type fakeSGLang struct {
	*fakeVLLM
	rooms   *sglangRooms
	prefill bool
	host    string
	port    int
}

type sglangBody struct {
	Host   *string      `json:"bootstrap_host"`
	Port   *int         `json:"bootstrap_port"`
	Room   *json.Number `json:"bootstrap_room"`
	Stream bool         `json:"stream"`
}

// newSGLang is a fleet of fake SGLang engines.
func newSGLang(t *testing.T, p, d int) (*pool, *sglangRooms) {
	t.Helper()
	return newSGLangOf(t, newCluster(true), p, d)
}

func newSGLangOf(t *testing.T, c *cluster, p, d int) (*pool, *sglangRooms) {
	t.Helper()
	rooms := &sglangRooms{rooms: map[string]*sglangRoom{}, used: map[string]int{}}
	s := &pool{c: c}
	m := config.Model{Name: "tiny", Connector: connector.NameSGLang}
	engine := func(name string, prefill bool, port int) *fakeVLLM {
		f := &fakeSGLang{fakeVLLM: &fakeVLLM{name: name, c: s.c, habit: habit{tokens: 3, parrot: true}, n: map[string]int{}}, rooms: rooms, prefill: prefill, port: port}
		f.srv = c.server(http.HandlerFunc(f.serve))
		f.host, _, _ = net.SplitHostPort(f.srv.Listener.Addr().String())
		t.Cleanup(func() { f.srv.CloseClientConnections(); f.srv.Close() })
		return f.fakeVLLM
	}
	for i := range p {
		e := engine("prefill-"+strconv.Itoa(i), true, 8998+i)
		c := e.config()
		if i > 0 {
			c.BootstrapPort = 8998 + i
		}
		s.p, m.Prefill = append(s.p, e), append(m.Prefill, c)
	}
	for i := range d {
		e := engine("decode-"+strconv.Itoa(i), false, 0)
		s.d, m.Decode = append(s.d, e), append(m.Decode, e.config())
	}
	s.cfg = config.Config{Models: []config.Model{m}}
	return s, rooms
}

func (f *fakeSGLang) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		return
	}
	raw, _ := io.ReadAll(r.Body)
	var b sglangBody
	var plain fakeBody
	if json.Unmarshal(raw, &b) != nil || json.Unmarshal(raw, &plain) != nil || b.Host == nil || b.Port == nil || b.Room == nil {
		w.WriteHeader(400)
		_, _ = io.WriteString(w, `{"object":"error","message":"without bootstrap room id","type":"BadRequestError","param":null,"code":400}`)
		return
	}
	leg := "decode"
	if f.prefill {
		leg = "prefill"
	}
	f.c.mu.Lock()
	x := f.does(leg)
	f.c.requests = append(f.c.requests, &seen{f.name, leg, r.URL.Path, r.Header.Get("X-Request-Id"), r.Header.Clone(), string(raw), nil, x.Do})
	f.c.mu.Unlock()
	f.busy(1)
	defer f.busy(-1)
	if x.Do == doReject || x.Do == doError || x.Do == doRefuse {
		status, _ := strconv.Atoi(x.Do)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"object":"error","message":"as told","type":"some","param":null,"code":%d}`, status)
		return
	}
	if f.fails(w, r, x) {
		return
	}
	name := b.Room.String()
	room := f.rooms.enter(name)
	defer f.rooms.leave(name)
	if f.prefill {
		if *b.Host != f.host || *b.Port != f.port || b.Stream {
			w.WriteHeader(500)
			return
		}
		close(room.prefill)
		if !f.meets(w, r, x, room.decode, false) {
			return
		}
		if !pause(r, x) {
			return
		}
		if x.Do == doNeverKV {
			<-r.Context().Done()
			return
		}
		close(room.written)
		plain.MaxTokens = 1
		f.answer(w, plain, "")
		return
	}
	close(room.decode)
	if x.Do == doNoMeeting && *b.Port != x.N { // it is another prefill engine's
		x = fault{}
	}
	if x.Do != "" && !f.meets(w, r, x, room.prefill, b.Stream) {
		return
	}
	select {
	case <-room.written:
	case <-r.Context().Done():
		return
	}
	f.generate(w, r, plain, x)
}

// meets waits for the other leg, and does what needs no more. It reports false if that was all.
func (f *fakeSGLang) meets(w http.ResponseWriter, r *http.Request, x fault, other chan struct{}, stream bool) bool {
	select {
	case <-other:
	case <-r.Context().Done():
		return false
	}
	said, status := map[string]string{doNoMeeting: "Decode handshake failed for request rank=0", doNoTransfer: "Prefill transfer failed for request rank=0", doTurnDown: "as told"}[x.Do], 500
	if x.Do == doTurnDown {
		status = 400
	}
	switch {
	case x.Do == doDieInRoom:
		_ = f.srv.Listener.Close()
		resetConn(w)
		return false
	case said == "":
		return true
	}
	body := fmt.Sprintf(`{"object":"error","message":%q,"type":"some","param":null,"code":%d}`, said, status)
	if stream { // it has said 200 by then
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"error\": %s}\n\ndata: [DONE]\n\n", body)
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
	return false
}

func (s *sglangRooms) left(t *testing.T) {
	t.Helper()
	eventually(t, "no room is in use", func() bool { return s.held() == 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for room, n := range s.used {
		if v, err := strconv.ParseUint(room, 10, 64); err != nil || v >= 1<<63 || n > 2 {
			t.Errorf("room %s for %d legs", room, n)
		}
	}
}

// startSGLang serves such a fleet.
func startSGLang(t *testing.T, p, d int) (*pool, *sglangRooms, *gateway) {
	t.Helper()
	s, rooms := newSGLang(t, p, d)
	s.cfg.Timeouts.Prefill, s.cfg.Timeouts.Transfer = 2*1e9, 2*1e9
	g := start(t, s.cfg, Parts{Planner: firstUsable{}})
	return s, rooms, g
}

// TestSGLang serves whole answers and streams, of one choice and of several, over rooms that are used once.
func TestSGLang(t *testing.T) {
	for _, row := range []struct{ name, path, body string }{
		{"whole", pathCompletions, `{"model":"tiny","prompt":"a","min_tokens":2,"seed":18014398509481985,"bootstrap_room":1,"bootstrap_host":"10.0.0.1","bootstrap_port":1%s}`},
		{"one token", pathCompletions, `{"model":"tiny","prompt":"a","max_tokens":1%s}`},
		{"chat", pathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}]%s}`},
		{"n", pathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"temperature":0,"n":3%s}`},
		{"prompts", pathCompletions, `{"model":"tiny","prompt":["a","b"]%s}`},
	} {
		for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
			t.Run(row.name+stream, func(t *testing.T) {
				s, rooms, g := startSGLang(t, 1, 1)
				body := fmt.Sprintf(row.body, stream)
				r := g.post(row.path, body)
				if r.Status != 200 || r.Err != nil || r.Header.Get("X-Pdrouter-Reason") != "split" {
					t.Fatalf("status %d, %v, header %v: %s", r.Status, r.Err, r.Header, r.Body)
				}
				fanOf(t, r)
				g.settled()
				rooms.left(t)
				for _, q := range s.c.all() {
					if strings.Contains(q.Body, "transfer_params") || strings.Count(q.Body, "bootstrap_room") != 1 || strings.Contains(q.Body, "10.0.0.1") {
						t.Errorf("%s was sent %s", q.Leg, q.Body)
					}
					if streams := strings.Contains(q.Body, `"stream":true`); streams != (stream != "" && q.Leg == "decode") {
						t.Errorf("%s was sent %s", q.Leg, q.Body)
					}
					if strings.Contains(body, "min_tokens") && !strings.Contains(q.Body, `"min_tokens":2,"seed":18014398509481985`) {
						t.Errorf("%s was sent %s", q.Leg, q.Body)
					}
				}
			})
		}
	}
}

// TestSGLangRefuses answers what its engines serve neither together nor alone, and without a prefill engine.
func TestSGLangRefuses(t *testing.T) {
	s, _, g := startSGLang(t, 1, 1)
	for _, field := range []string{`"echo":true`, `"prompt_logprobs":1`, `"n":2,"seed":9223372036854775807`} {
		r := g.post(pathCompletions, `{"model":"tiny","prompt":"a",`+field+`}`)
		if errorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Should-Retry") != "false" || s.c.count("", "") != 0 {
			t.Errorf("%s: status %d: %s", field, r.Status, r.Body)
		}
	}
	for path, body := range map[string]string{ // no member of their bodies says where the engines meet
		pathResponses: `{"model":"tiny","input":"a","truncation":"disabled"}`, pathMessages: `{"model":"tiny","messages":[],"max_tokens":9}`,
		pathGenerate: `{"model":"tiny","token_ids":[1],"sampling_params":{}}`,
	} {
		r := g.post(path, body)
		if errorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Should-Retry") != "false" || s.c.count("", "") != 0 {
			t.Errorf("%s: status %d: %s", path, r.Status, r.Body)
		}
	}
	s.p[0].srv.CloseClientConnections()
	_ = s.p[0].srv.Listener.Close()
	r := g.post(pathCompletions, plainBody)
	if errorOf(t, r.Body); r.Status != 503 || s.c.count("", "alone") != 0 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
}

// TestFault47to62SGLang breaks one leg before the gate, and has the client leave: the answer is whole or a true error, and
// no room stays in use.
func TestFault47to62SGLang(t *testing.T) {
	for _, row := range []struct {
		name   string
		p, d   int
		faults map[string][]fault
		status int
	}{
		{"47 P refuses", 2, 1, map[string][]fault{"prefill-0": {{Do: doRefuse}}}, 200},
		{"47 P resets", 2, 1, map[string][]fault{"prefill-0": {{Do: doReset}}}, 200},
		{"47 P fails", 2, 1, map[string][]fault{"prefill-0": {{Do: doError}}}, 200},
		{"48 both reject", 1, 1, map[string][]fault{"prefill-0": {{Do: doReject}}, "decode-0": {{Do: doReject}}}, 400},
		{"50 P hangs", 2, 1, map[string][]fault{"prefill-0": {{Do: doHang}}}, 200},
		{"47 P dies in the room", 2, 1, map[string][]fault{"prefill-0": {{Do: doDieInRoom}}}, 200},
		{"47 P cannot write to D", 2, 2, map[string][]fault{"prefill-0": {{Do: doNoTransfer}}}, 200},
		{"48 P rejects alone", 1, 1, map[string][]fault{"prefill-0": {{Do: doReject}}}, 400},
		{"48 D finds fault at work", 1, 1, map[string][]fault{"decode-0": {{Do: doTurnDown}}}, 400},
		{"49 P garbage", 2, 1, map[string][]fault{"prefill-0": {{Do: doGarbage}}}, 200},
		{"51 D refuses", 1, 2, map[string][]fault{"decode-0": {{Do: doRefuse}}}, 200},
		{"51 D resets", 1, 2, map[string][]fault{"decode-0": {{Do: doReset}}}, 200},
		{"51 D dies", 1, 2, map[string][]fault{"decode-0": {{Do: doDie}}}, 200},
		{"51 D dies in the room", 1, 2, map[string][]fault{"decode-0": {{Do: doDieInRoom}}}, 200},
		{"52 D cannot reach P's bootstrap server", 2, 1, map[string][]fault{"decode-0": {{Do: doNoMeeting, N: 8998}}}, 200},
		{"52 D fails", 1, 2, map[string][]fault{"decode-0": {{Do: doError}}}, 200},
		{"54 P writes nothing", 2, 1, map[string][]fault{"prefill-0": {{Do: doNeverKV}}}, 200},
		{"60 D garbage", 1, 2, map[string][]fault{"decode-0": {{Do: doGarbage}}}, 200},
	} {
		for _, body := range []string{plainBody, streamBody} {
			t.Run(fmt.Sprint(row.name, body == streamBody), func(t *testing.T) {
				s, rooms, g := startSGLang(t, row.p, row.d)
				s.setFaults(row.faults)
				r := g.post(pathCompletions, body)
				if r.Status != row.status || r.Err != nil {
					t.Fatalf("status %d, %v: %s", r.Status, r.Err, r.Body)
				}
				if row.status == 400 {
					if e := errorOf(t, r.Body); e.Message != "as told" {
						t.Errorf("body %s", r.Body)
					}
				} else {
					if got, whole := text(t, r); !strings.HasSuffix(got, wholeText) || !whole {
						t.Errorf("text %q", got)
					}
					if row.p == 2 && s.c.count("prefill-1", "") == 0 || row.d == 2 && s.c.count("decode-1", "") == 0 {
						t.Error("the engine that was well was not asked")
					}
				}
				g.settled()
				rooms.left(t)
			})
		}
	}
	for _, leg := range []string{"prefill", "decode"} {
		t.Run("58 the client leaves during "+leg, func(t *testing.T) {
			s, rooms, g := startSGLang(t, 1, 1)
			slow := []fault{{Leg: leg, Do: doSlow, N: 60000}}
			s.setFaults(map[string][]fault{"prefill-0": slow, "decode-0": slow})
			conn, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", pathCompletions, len(streamBody), streamBody)
			eventually(t, "decode is at work", func() bool { return s.d[0].underWay() == 1 })
			_ = conn.Close()
			if sum := g.last(1); sum.Outcome != report.ClientLeft {
				t.Errorf("summary %+v", sum)
			}
			g.settled()
			rooms.left(t)
		})
	}
}
