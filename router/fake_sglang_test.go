package router

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"pdrouter/router/config"
	"pdrouter/router/connector"
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
	l := "decode"
	if f.prefill {
		l = "prefill"
	}
	f.c.mu.Lock()
	x := f.does(l)
	f.c.requests = append(f.c.requests, &seen{f.name, l, r.URL.Path, r.Header.Get("X-Request-Id"), r.Header.Clone(), string(raw), nil, x.Do})
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
