package routertest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/policies"
)

// Cluster is what the fake engines have in common: which KV is held for whom, as stock engines hold it.
type Cluster struct {
	Mu       sync.Mutex
	Push     bool
	prefill  map[string]bool          // finished, waiting for decode, by the engine-side request id
	decode   map[string]chan struct{} // registered, waiting for prefill
	moved    map[string]bool          // ids whose blocks were handed over, for good
	Twice    []string                 // ids that were used a second time
	dropped  map[string]bool          // ids that were cancelled, which a leg under way must not hold either
	unbegun  map[string]bool          // ids of decode legs whose client had gone before the engine began with them, of which it may not be told
	atWork   map[string]bool          // ids that prefill works on
	Cancels  int
	Requests []*Request
	engines  []*Engine
	Net      *Network // that the engines are in; nil: loopback
}

// Server serves one engine, or its control routes.
func (c *Cluster) Server(h http.Handler) *httptest.Server {
	if c.Net == nil {
		return httptest.NewServer(h)
	}
	s := &httptest.Server{Listener: c.Net.Listen(), Config: &http.Server{Handler: h}}
	s.Start()
	return s
}

// lives reports whether an engine has that id now.
func (c *Cluster) lives(id string) bool {
	for _, e := range c.engines {
		e.Mu.Lock()
		same := e.ID == id
		e.Mu.Unlock()
		if same {
			return true
		}
	}
	return false
}

// Request is one request that a fake engine got.
type Request struct {
	Engine, Leg, Path, ID string
	Header                http.Header
	Body                  string
	KV                    map[string]any
	Fault                 string // what it met
}

// Prompt is the prompt of its body, if that has no quote in it.
func (q *Request) Prompt() string {
	_, p, _ := strings.Cut(q.Body, `"prompt":"`)
	p, _, _ = strings.Cut(p, `"`)
	return p
}

// NewCluster makes a cluster without engines; push says that prefill writes to decode.
func NewCluster(push bool) *Cluster {
	return &Cluster{Push: push, prefill: map[string]bool{}, decode: map[string]chan struct{}{}, moved: map[string]bool{}, dropped: map[string]bool{}, unbegun: map[string]bool{}, atWork: map[string]bool{}}
}

// finished has prefill write what decode waits for, or hold it.
func (c *Cluster) finished(id string) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if ch, ok := c.decode[id]; ok {
		delete(c.decode, id)
		c.moved[id] = true
		close(ch)
		return
	}
	if !c.dropped[id] {
		c.prefill[id] = true
	}
}

// registered has decode take what prefill holds, or wait for it.
func (c *Cluster) registered(id string) <-chan struct{} {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	ch := make(chan struct{})
	if c.moved[id] {
		c.Twice = append(c.Twice, id)
	}
	if c.prefill[id] {
		delete(c.prefill, id)
		c.moved[id] = true
		close(ch)
		return ch
	}
	if c.Push {
		c.decode[id] = ch
	}
	return ch
}

// awaitDecode waits until a decode engine has read its leg of a request, or ctx is over, or a second has passed.
func (c *Cluster) awaitDecode(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for ctx.Err() == nil {
		c.Mu.Lock()
		asked := slices.ContainsFunc(c.Requests, func(q *Request) bool { return q.ID == id && q.Leg == "decode" })
		c.Mu.Unlock()
		if asked {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// isAtWork notes whether prefill works on a request.
func (c *Cluster) isAtWork(id string, is bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.atWork[id] = is
}

// quietLocked reports whether nothing can be on its way for a request any more: prefill does not work on it, and both legs of a later
// one were asked and it was handed over.
func (c *Cluster) quietLocked(id string) bool {
	if c.atWork[id] {
		return false
	}
	behind, legs := false, map[string]map[string]bool{}
	for _, q := range c.Requests {
		switch {
		case q.ID == id:
			behind = behind || q.Leg == "decode"
		case behind:
			if legs[q.ID] == nil {
				legs[q.ID] = map[string]bool{}
			}
			legs[q.ID][q.Leg] = true
			if legs[q.ID]["prefill"] && legs[q.ID]["decode"] && c.moved[q.ID] {
				return true
			}
		}
	}
	return false
}

// Held counts the requests whose blocks are held for nobody, on either side.
func (c *Cluster) Held() (prefill, decode int) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return len(c.prefill), len(c.decode)
}

// Count counts the requests of a leg; "" is any leg or engine.
func (c *Cluster) Count(engine, l string) int {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	n := 0
	for _, s := range c.Requests {
		if (engine == "" || s.Engine == engine) && (l == "" || s.Leg == l) {
			n++
		}
	}
	return n
}

func (c *Cluster) All() []*Request {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return append([]*Request(nil), c.Requests...)
}

// RawRequest sends bytes and returns what came back until the server closed or the deadline passed.
func RawRequest(t *testing.T, addr, request string) (status string, rest string, closed bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	br := bufio.NewReader(conn)
	status, _ = br.ReadString('\n')
	all, err := io.ReadAll(br)
	return strings.TrimSpace(status), string(all), !errors.Is(err, os.ErrDeadlineExceeded)
}

// FirstUsable is a planner that takes the first engines that are usable, so that a test knows which.
type FirstUsable struct{}

func (FirstUsable) Choose(q policies.Request, f policies.Fleet, _ policies.Draw) policies.Choice {
	first := func(engines []policies.Engine) int {
		return slices.IndexFunc(engines, func(e policies.Engine) bool { return e.Usable })
	}
	c := policies.Choice{Prefill: first(f.Prefill), Decode: first(f.Decode), Reason: policies.Split}
	switch {
	case c.Decode < 0:
		c.Reason = policies.NoDecode
	case q.Unsplittable != "":
		c.Prefill, c.Reason = -1, q.Unsplittable
	case c.Prefill < 0:
		c.Reason = policies.NoPrefill
	default:
		c.Split = true
	}
	return c
}
