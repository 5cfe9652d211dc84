package client

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

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// A copy holds while the gateway is heard, though no renewal is told, and then for its lifetime from the last moment at which
// the gateway was.
func TestDirectoryHoldsWhileTheGatewayIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newClient(t, "http://h", "all", nil).Directory()
		rec := metadatatest.Record("prefill-0", 7, 1, 0) // lives a minute
		d.told(metadata.WatchEvent{Kind: metadata.WatchSync})
		d.mu.Lock()
		d.keepLocked(rec.Engine, newHeldPeer(7, []metadata.Record{rec}, true))
		d.mu.Unlock()
		for range 40 {
			time.Sleep(15 * time.Second)
			d.told(metadata.WatchEvent{}) // a keep-alive
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

// What was asked for before news came, and is answered late, takes nothing away from what was asked for after them.
func TestDirectoryKeepsTheNewerAnswer(t *testing.T) {
	d := newClient(t, "http://h", "all", nil).Directory()
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	changed := metadatatest.Anew(rec, time.Second)
	d.told(metadata.WatchEvent{Kind: metadata.WatchSync})
	begin := func() *flight {
		f := &flight{cancel: func() {}, done: make(chan struct{}), sure: true}
		d.flights[rec.Engine] = f
		return f
	}
	news := metadata.WatchEvent{Kind: metadata.WatchPut, Incarnation: rec.Incarnation}
	first := begin()
	d.told(news)
	second := begin()
	d.told(news)
	d.landed(begin(), rec.Engine, []metadata.Record{changed}, false, nil)
	d.landed(first, rec.Engine, []metadata.Record{rec}, false, nil)
	if recs, _, ok := d.held(rec.Incarnation, true); !ok || !recs[0].Published.Equal(changed.Published) {
		t.Errorf("after an answer that was late: known is %v, %v; want what was asked for last", ok, recs)
	}
	d.landed(second, rec.Engine, nil, false, &StatusError{Status: http.StatusForbidden})
	if !d.knows(rec.Incarnation) {
		t.Error("after a refusal that was late it is not known")
	}
}

// sometimes refuses paths with a status, as long as it is told to.
type sometimes struct {
	path   string
	status atomic.Int64
	n      atomic.Int64
	caller routes.Caller
}

func (a *sometimes) Authorize(r *http.Request, want routes.Access) (routes.Caller, error) {
	if status := a.status.Load(); status != 0 && r.URL.Path == a.path {
		a.n.Add(1)
		return a.caller, routestest.Refusal(int(status))
	}
	return a.caller, nil
}

// A list or a fetch that fails is tried again for as long as it takes.
func TestDirectoryFetchesInTheEnd(t *testing.T) {
	for _, path := range []string{"/metadata/v1/engines", "/metadata/v1/engines/prefill-0"} {
		s := store.NewMemory()
		rec := metadatatest.Record("prefill-0", 7, 1, 0)
		metadatatest.Put(t, s, rec, nil)
		g := routestest.New(t, routes.Config{}, s)
		no := &sometimes{path: path}
		no.status.Store(http.StatusServiceUnavailable)
		g.Auth = no
		c, err := New(Config{URL: g.URL(), Watch: WatchConfig{Retry: time.Millisecond, Longest: 5 * time.Millisecond}}, func() (string, error) { return "all", nil }, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := c.Directory()
		metadatatest.Background(t, func(ctx context.Context) error {
			return d.Run(ctx, func(string) bool { return true }, metadatatest.Quiet())
		})
		t.Cleanup(func() { g.Handler.Close() })
		metadatatest.Eventually(t, "it fails twenty times", func() bool { return no.n.Load() >= 20 })
		no.status.Store(0)
		metadatatest.Eventually(t, "it is known", func() bool { return d.knows(rec.Incarnation) })
	}
}

// A refusal is about an engine, not about a generation that was asked for, and is forgotten when something is told.
func TestDirectoryForgetsRefusals(t *testing.T) {
	s := store.NewMemory()
	metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	g := routestest.New(t, routes.Config{}, s)
	no := &sometimes{path: "/metadata/v1/engines/prefill-0"}
	no.status.Store(http.StatusForbidden)
	g.Auth = no
	d := follow(t, g, "token")
	var status *StatusError
	if _, err := d.Engine(t.Context(), metadata.Incarnation{Engine: "prefill-0", Generation: 1<<64 - 1}); !errors.As(err, &status) || status.Status != http.StatusForbidden {
		t.Fatalf("got %v; want 403", err)
	}
	no.status.Store(0)
	next := metadatatest.Record("prefill-0", 8, 1, 0)
	metadatatest.Put(t, s, next, nil)
	metadatatest.Eventually(t, "the next run is known", func() bool { return d.knows(next.Incarnation) })
	if recs, err := d.Engine(t.Context(), next.Incarnation); err != nil || len(recs) != 1 {
		t.Errorf("got %d records, %v", len(recs), err)
	}
}

// A refusal does not last: the gateway may permit later what it refuses now, without anything that it could tell.
func TestDirectoryAsksAgain(t *testing.T) {
	s := store.NewMemory()
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	metadatatest.Put(t, s, rec, nil)
	g := routestest.New(t, routes.Config{}, s)
	no := &sometimes{path: "/metadata/v1/engines/prefill-0"}
	no.status.Store(http.StatusForbidden)
	g.Auth = no
	d := follow(t, g, "token")
	if _, err := d.Engine(t.Context(), rec.Incarnation); err == nil {
		t.Fatal("it is not refused")
	}
	no.status.Store(0)
	metadatatest.Eventually(t, "it is permitted", func() bool { _, err := d.Engine(t.Context(), rec.Incarnation); return err == nil })
}

// An agent of one rank gets the ranks that map onto it, knows that there are more, and keeps them.
func TestDirectoryOfSomeRanks(t *testing.T) {
	s := store.NewMemory()
	for i := range 2 {
		metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 2, i), nil)
		metadatatest.Put(t, s, metadatatest.Record("decode-0", 7, 2, i), nil)
	}
	g := routestest.New(t, routes.Config{}, s)
	g.Auth = routestest.Callers{"one": {Engine: "decode-0", Role: metadata.Decode, Ranks: []metadata.Rank{{TP: 1}}}}
	d := follow(t, g, "one")
	inc := metadata.Incarnation{Engine: "prefill-0", Generation: 7}
	recs, err := d.Engine(t.Context(), inc)
	if err != nil || len(recs) != 1 || recs[0].Rank.TP != 1 {
		t.Errorf("got %+v, %v; want rank 0/0/1", recs, err)
	}
	metadatatest.Eventually(t, "they are kept", func() bool { return d.knows(inc) })
	listed, err := d.client.Engines(t.Context())
	if err != nil || len(listed) != 2 || listed[1].Ranks != 2 {
		t.Errorf("listed %+v, %v; want both engines, of 2 ranks", listed, err)
	}
	// The header is the gateway's word. Without it, one of two ranks is not the whole.
	if _, err := of(recs, false, inc); !errors.Is(err, metadata.ErrNotFound) {
		t.Errorf("one of two ranks: got %v; want ErrNotFound", err)
	}
}

// A fleet that comes to a gateway at once has all copies soon, and nobody is turned away.
func TestDirectoriesOfAFleet(t *testing.T) {
	agents := 30
	if testing.Short() {
		agents = 10
	}
	s := store.NewMemory()
	metadatatest.Fleet(t, s, 2*agents)
	local, err := cache.New(s, cache.Config{}, metadatatest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	callers := routestest.Callers{}
	for i := range agents {
		callers[fmt.Sprint(i)] = routes.Caller{Engine: fmt.Sprint("decode-", 2*i+1), Role: metadata.Decode}
	}
	h, err := routes.New(routes.Config{}, routes.Parts{Store: s, Copy: local, Authorizer: callers, Log: metadatatest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	metadatatest.Background(t, local.Run)
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
	began, before := time.Now(), metadatatest.ProcessorTime()
	var all sync.WaitGroup
	for i := range agents {
		c, err := New(Config{URL: srv.URL, Timeout: time.Minute}, func() (string, error) { return fmt.Sprint(i), nil }, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := c.Directory()
		metadatatest.Background(t, func(ctx context.Context) error {
			return d.Run(ctx, func(engine string) bool { return engine[0] == 'p' }, metadatatest.Quiet())
		})
		all.Go(func() {
			metadatatest.Eventually(t, "all peers are known", func() bool {
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
	t.Logf("%d directories know %d engines each after %v, for %v of processor time", agents, agents, time.Since(began).Round(time.Millisecond), metadatatest.ProcessorTime()-before)
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
