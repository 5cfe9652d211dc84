package metadata

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A copy holds while the gateway is heard, though no renewal is told, and then for its lifetime from the last moment at which
// the gateway was.
func TestDirectoryHoldsWhileTheGatewayIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newClient(t, "http://h", "all", nil).Directory()
		rec := record("prefill-0", 7, 1, 0) // lives a minute
		d.told(WatchEvent{Kind: WatchSync})
		d.mu.Lock()
		d.keepLocked(rec.Engine, newHeldPeer(7, []Record{rec}, true))
		d.mu.Unlock()
		for range 40 {
			time.Sleep(15 * time.Second)
			d.told(WatchEvent{}) // a keep-alive
		}
		time.Sleep(20 * time.Second)
		if !d.knows(rec.Incarnation) {
			t.Fatal("after ten minutes of keep-alives the copy is gone")
		}
		d.doubt(false) // the stream has ended
		for _, c := range []struct {
			after time.Duration // since it was heard
			held  bool
		}{{20 * time.Second, true}, {59 * time.Second, true}, {60 * time.Second, false}} {
			time.Sleep(c.after - time.Since(d.heard))
			if _, _, ok := d.held(rec.Incarnation, false); ok != c.held || d.knows(rec.Incarnation) {
				t.Errorf("%v after the gateway was heard: held is %v; want %v, and not for sure", c.after, ok, c.held)
			}
		}
	})
}

// sometimes refuses paths with a status, as long as it is told to.
type sometimes struct {
	path   string
	status atomic.Int64
	n      atomic.Int64
	caller Caller
}

func (a *sometimes) Authorize(r *http.Request, want Access) (Caller, error) {
	if status := a.status.Load(); status != 0 && r.URL.Path == a.path {
		a.n.Add(1)
		return a.caller, fakeRefusal{int(status)}
	}
	return a.caller, nil
}

// A list or a fetch that fails is tried again for as long as it takes.
func TestDirectoryFetchesInTheEnd(t *testing.T) {
	for _, path := range []string{"/metadata/v1/engines", "/metadata/v1/engines/prefill-0"} {
		s := NewMemory()
		rec := record("prefill-0", 7, 1, 0)
		put(t, s, rec, nil)
		g := newGateway(t, HandlerConfig{}, s)
		no := &sometimes{path: path}
		no.status.Store(http.StatusServiceUnavailable)
		g.auth = no
		c, err := NewClient(ClientConfig{URL: g.url(), Watch: ClientWatchConfig{Retry: time.Millisecond, Longest: 5 * time.Millisecond}}, func() (string, error) { return "all", nil }, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := c.Directory()
		running(t, func(ctx context.Context) error {
			return d.Run(ctx, func(string) bool { return true }, quiet())
		})
		t.Cleanup(func() { g.handler.Close() })
		eventually(t, "it fails twenty times", func() bool { return no.n.Load() >= 20 })
		no.status.Store(0)
		eventually(t, "it is known", func() bool { return d.knows(rec.Incarnation) })
	}
}

// A refusal is about an engine, not about a generation that was asked for, and is forgotten when something is told.
func TestDirectoryForgetsRefusals(t *testing.T) {
	s := NewMemory()
	put(t, s, record("prefill-0", 7, 1, 0), nil)
	g := newGateway(t, HandlerConfig{}, s)
	no := &sometimes{path: "/metadata/v1/engines/prefill-0"}
	no.status.Store(http.StatusForbidden)
	g.auth = no
	d := follow(t, g, "token")
	var status *StatusError
	if _, err := d.Engine(t.Context(), Incarnation{"prefill-0", 1<<64 - 1}); !errors.As(err, &status) || status.Status != http.StatusForbidden {
		t.Fatalf("got %v; want 403", err)
	}
	no.status.Store(0)
	next := record("prefill-0", 8, 1, 0)
	put(t, s, next, nil)
	eventually(t, "the next run is known", func() bool { return d.knows(next.Incarnation) })
	if recs, err := d.Engine(t.Context(), next.Incarnation); err != nil || len(recs) != 1 {
		t.Errorf("got %d records, %v", len(recs), err)
	}
}

// An agent of one rank gets the ranks that map onto it, knows that there are more, and keeps them.
func TestDirectoryOfSomeRanks(t *testing.T) {
	s := NewMemory()
	for i := range 2 {
		put(t, s, record("prefill-0", 7, 2, i), nil)
		put(t, s, record("decode-0", 7, 2, i), nil)
	}
	g := newGateway(t, HandlerConfig{}, s)
	g.auth = fakeCallers{"one": {Engine: "decode-0", Role: Decode, Ranks: []Rank{{TP: 1}}}}
	d := follow(t, g, "one")
	inc := Incarnation{"prefill-0", 7}
	recs, err := d.Engine(t.Context(), inc)
	if err != nil || len(recs) != 1 || recs[0].Rank.TP != 1 {
		t.Errorf("got %+v, %v; want rank 0/0/1", recs, err)
	}
	eventually(t, "they are kept", func() bool { return d.knows(inc) })
	listed, err := d.client.Engines(t.Context())
	if err != nil || len(listed) != 2 || listed[1].Ranks != 2 {
		t.Errorf("listed %+v, %v; want both engines, of 2 ranks", listed, err)
	}
	// The header is the gateway's word. Without it, one of two ranks is not the whole.
	if _, err := of(recs, false, inc); !errors.Is(err, ErrNotFound) {
		t.Errorf("one of two ranks: got %v; want ErrNotFound", err)
	}
}

// A fleet that comes to a gateway at once has all copies soon, and nobody is turned away.
func TestDirectoriesOfAFleet(t *testing.T) {
	agents := 30
	if testing.Short() {
		agents = 10
	}
	s := NewMemory()
	fleet(t, s, 2*agents)
	local, err := NewCache(s, CacheConfig{}, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	callers := fakeCallers{}
	for i := range agents {
		callers[fmt.Sprint(i)] = Caller{Engine: fmt.Sprint("decode-", 2*i+1), Role: Decode}
	}
	h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Copy: local, Authorizer: callers, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	running(t, local.Run)
	var failed atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		probe := &statusOf{ResponseWriter: w}
		h.ServeHTTP(probe, r)
		if probe.status >= 500 {
			failed.Add(1)
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(h.Close)
	began, before := time.Now(), burnt()
	var all sync.WaitGroup
	for i := range agents {
		c, err := NewClient(ClientConfig{URL: srv.URL, Timeout: time.Minute}, func() (string, error) { return fmt.Sprint(i), nil }, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := c.Directory()
		running(t, func(ctx context.Context) error {
			return d.Run(ctx, func(engine string) bool { return engine[0] == 'p' }, quiet())
		})
		all.Go(func() {
			eventually(t, "all peers are known", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				n := 0
				for _, p := range d.peers {
					if p.sure {
						n++
					}
				}
				return n == agents
			})
		})
	}
	all.Wait()
	t.Logf("%d directories know %d engines each after %v, for %v of processor time", agents, agents, time.Since(began).Round(time.Millisecond), burnt()-before)
	if n := failed.Load(); n > 0 {
		t.Errorf("%d answers of 5xx", n)
	}
}

// statusOf notes the status of an answer.
type statusOf struct {
	http.ResponseWriter
	status int
}

func (s *statusOf) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusOf) Unwrap() http.ResponseWriter { return s.ResponseWriter }
