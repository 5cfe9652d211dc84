package routertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// Rooms are where the fake engines of one test meet, as stock SGLang's do: prefill waits in its room until decode has
// said where its blocks are, and answers when they are written; either leaves with its connection.
type Rooms struct {
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
	DoDieInRoom  = "die in the room"
	DoNoMeeting  = "no meeting"  // decode cannot reach prefill's bootstrap server, and says so
	DoNoTransfer = "no transfer" // prefill says that it could not write
	DoTurnDown   = "turn down"   // the scheduler finds fault with the request
)

func (s *Rooms) enter(room string) *sglangRoom {
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

func (s *Rooms) leave(room string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rooms[room]; r != nil {
		if r.there--; r.there == 0 {
			delete(s.rooms, room)
		}
	}
}

func (s *Rooms) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rooms)
}

// SGLang speaks as much of SGLang's protocol as the router needs. Its answer is that of Engine.
type SGLang struct {
	*Engine
	rooms   *Rooms
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
func newSGLang(t *testing.T, p, d int) (*Pool, *Rooms) {
	t.Helper()
	return NewSGLangOf(t, NewCluster(true), p, d)
}

// NewSGLangOf is a fleet of fake SGLang engines in a cluster.
func NewSGLangOf(t *testing.T, c *Cluster, p, d int) (*Pool, *Rooms) {
	t.Helper()
	rooms := &Rooms{rooms: map[string]*sglangRoom{}, used: map[string]int{}}
	s := &Pool{Cluster: c}
	m := config.Model{Name: "tiny", Connector: connector.NameSGLang}
	engine := func(name string, prefill bool, port int) *Engine {
		f := &SGLang{Engine: &Engine{Name: name, Cluster: s.Cluster, habit: Habit{Tokens: 3, Parrot: true}, N: map[string]int{}}, rooms: rooms, prefill: prefill, port: port}
		f.Server = c.Server(http.HandlerFunc(f.serve))
		f.host, _, _ = net.SplitHostPort(f.Server.Listener.Addr().String())
		t.Cleanup(func() { f.Server.CloseClientConnections(); f.Server.Close() })
		return f.Engine
	}
	for i := range p {
		e := engine("prefill-"+strconv.Itoa(i), true, 8998+i)
		c := e.Config()
		if i > 0 {
			c.BootstrapPort = 8998 + i
		}
		s.Prefill, m.Prefill = append(s.Prefill, e), append(m.Prefill, c)
	}
	for i := range d {
		e := engine("decode-"+strconv.Itoa(i), false, 0)
		s.Decode, m.Decode = append(s.Decode, e), append(m.Decode, e.Config())
	}
	s.Config = config.Config{Models: []config.Model{m}}
	return s, rooms
}

func (f *SGLang) serve(w http.ResponseWriter, r *http.Request) {
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
	f.Cluster.Mu.Lock()
	x := f.does(l)
	f.Cluster.Requests = append(f.Cluster.Requests, &Request{f.Name, l, r.URL.Path, r.Header.Get("X-Request-Id"), r.Header.Clone(), string(raw), nil, x.Do})
	f.Cluster.Mu.Unlock()
	f.busy(1)
	defer f.busy(-1)
	if x.Do == DoReject || x.Do == DoError || x.Do == DoRefuse {
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
		if x.Do == DoNeverKV {
			<-r.Context().Done()
			return
		}
		close(room.written)
		plain.MaxTokens = 1
		f.answer(w, plain, "")
		return
	}
	close(room.decode)
	if x.Do == DoNoMeeting && *b.Port != x.N { // it is another prefill engine's
		x = Fault{}
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
func (f *SGLang) meets(w http.ResponseWriter, r *http.Request, x Fault, other chan struct{}, stream bool) bool {
	select {
	case <-other:
	case <-r.Context().Done():
		return false
	}
	said, status := map[string]string{DoNoMeeting: "Decode handshake failed for request rank=0", DoNoTransfer: "Prefill transfer failed for request rank=0", DoTurnDown: "as told"}[x.Do], 500
	if x.Do == DoTurnDown {
		status = 400
	}
	switch {
	case x.Do == DoDieInRoom:
		_ = f.Server.Listener.Close()
		ResetConn(w)
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

// Left waits until no room is in use, and checks that none was used twice.
func (s *Rooms) Left(t *testing.T) {
	t.Helper()
	Eventually(t, "no room is in use", func() bool { return s.held() == 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for room, n := range s.used {
		if v, err := strconv.ParseUint(room, 10, 64); err != nil || v >= 1<<63 || n > 2 {
			t.Errorf("room %s for %d legs", room, n)
		}
	}
}

// StartSGLang serves such a fleet.
func StartSGLang(t *testing.T, p, d int) (*Pool, *Rooms, *Gateway) {
	t.Helper()
	s, rooms := newSGLang(t, p, d)
	s.Config.Timeouts.Prefill, s.Config.Timeouts.Transfer = 2*1e9, 2*1e9
	g := Start(t, s.Config, router.Parts{Planner: FirstUsable{}})
	return s, rooms, g
}
