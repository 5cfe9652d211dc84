package client

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// follow runs a directory over a gateway until the test ends, and waits until it follows.
func follow(t *testing.T, g *routestest.Gateway, token string) *Directory {
	t.Helper()
	c, err := New(Config{URL: g.URL(), Timeout: 10 * time.Second, Watch: WatchConfig{Longest: 100 * time.Millisecond}},
		func() (string, error) { return token, nil }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := c.Directory()
	metadatatest.Background(t, func(ctx context.Context) error {
		return d.Run(ctx, func(engine string) bool { return engine != "self" }, metadatatest.Quiet())
	})
	t.Cleanup(func() { g.Handler.Close() })
	metadatatest.Eventually(t, "it follows", d.follows)
	return d
}

func (d *Directory) follows() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.following
}

// knows reports whether the directory answers for the incarnation without asking.
func (d *Directory) knows(inc metadata.Incarnation) bool {
	recs, err, ok := d.held(inc, true)
	return ok && err == nil && len(recs) > 0
}

const enginesPath = "GET /metadata/v1/engines/"

func TestDirectoryKnowsPeersInAdvance(t *testing.T) {
	s := store.NewMemory()
	before := metadatatest.Record("prefill-0", 7, 1, 0)
	metadatatest.Put(t, s, before, nil)
	g := routestest.New(t, routes.Config{}, s)
	d := follow(t, g, "all")
	metadatatest.Eventually(t, "what was there is known", func() bool { return d.knows(before.Incarnation) })
	r0, r1 := metadatatest.Record("decode-0", 7, 2, 0), metadatatest.Record("decode-0", 7, 2, 1)
	metadatatest.Put(t, s, r0, nil)
	metadatatest.Put(t, s, r1, nil)
	metadatatest.Put(t, s, metadatatest.Record("self", 7, 1, 0), nil)
	metadatatest.Eventually(t, "what is new is known", func() bool { return d.knows(r0.Incarnation) })
	asked := g.Asked(enginesPath)
	for range 100 {
		for inc, n := range map[metadata.Incarnation]int{before.Incarnation: 1, r0.Incarnation: 2} {
			if recs, err := d.Engine(t.Context(), inc); err != nil || len(recs) != n {
				t.Fatalf("%v: got %d records, %v; want %d", inc, len(recs), err, n)
			}
		}
	}
	if now := g.Asked(enginesPath); now != asked {
		t.Errorf("known peers cost %d requests", now-asked)
	}
	if g.Asked(enginesPath+"self") > 0 {
		t.Error("an engine that is not wanted was fetched")
	}

	// Another generation takes the place of the old one, which is then known to be old without a request.
	next := metadatatest.Record("prefill-0", 8, 1, 0)
	metadatatest.Put(t, s, next, nil)
	metadatatest.Eventually(t, "the next generation is known", func() bool { return d.knows(next.Incarnation) })
	asked = g.Asked(enginesPath)
	if _, err := d.Engine(t.Context(), before.Incarnation); !errors.Is(err, metadata.ErrStale) || g.Asked(enginesPath) != asked {
		t.Errorf("got %v after %d requests; want ErrStale after none", err, g.Asked(enginesPath)-asked)
	}

	// A record that has changed is fetched again.
	changed := metadatatest.Later(next, time.Second)
	changed.HTTP = "http://elsewhere:1"
	metadatatest.Put(t, s, changed, nil)
	metadatatest.Eventually(t, "the changed record is known", func() bool {
		recs, _, ok := d.held(next.Incarnation, true)
		return ok && recs[0].HTTP == changed.HTTP
	})
	if err := s.Delete(t.Context(), next.Incarnation, next.Rank); err != nil {
		t.Fatal(err)
	}
	metadatatest.Eventually(t, "the withdrawn engine is forgotten", func() bool {
		_, _, ok := d.held(next.Incarnation, false)
		return !ok
	})
}

func TestDirectoryOverARestartOfTheGateway(t *testing.T) {
	s := store.NewMemory()
	stays, goes := metadatatest.Record("prefill-0", 7, 1, 0), metadatatest.Record("prefill-1", 7, 1, 0)
	metadatatest.Put(t, s, stays, nil)
	metadatatest.Put(t, s, goes, nil)
	g := routestest.New(t, routes.Config{}, s)
	d := follow(t, g, "all")
	metadatatest.Eventually(t, "both are known", func() bool { return d.knows(stays.Incarnation) && d.knows(goes.Incarnation) })
	g.Stop()
	metadatatest.Eventually(t, "the loss is noticed", func() bool { return !d.follows() })
	if d.knows(stays.Incarnation) {
		t.Error("what may have changed unheard counts as known")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if recs, err := d.Engine(ctx, stays.Incarnation); err != nil || len(recs) != 1 {
		t.Errorf("without a gateway: got %d records, %v; want the last good copy", len(recs), err)
	}
	metadatatest.Put(t, s, metadatatest.Record("prefill-1", 8, 1, 0), nil) // nobody hears it
	news := metadatatest.Record("decode-0", 7, 1, 0)
	metadatatest.Put(t, s, news, nil)
	g.Start()
	metadatatest.Eventually(t, "it follows again", func() bool {
		return d.knows(stays.Incarnation) && d.knows(news.Incarnation) && d.knows(metadata.Incarnation{Engine: "prefill-1", Generation: 8})
	})
}

// rightsOf lets List through and refuses to read, counting how often it was asked.
type rightsOf struct{ reads atomic.Int64 }

func (a *rightsOf) Authorize(_ *http.Request, want routes.Access) (routes.Caller, error) {
	if want.Action == routes.List {
		return routes.Caller{}, nil
	}
	a.reads.Add(1)
	return routes.Caller{}, routestest.Refusal(http.StatusForbidden)
}

func TestDirectoryStopsAskingForWhatIsRefused(t *testing.T) {
	s := store.NewMemory()
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	metadatatest.Put(t, s, rec, nil)
	g := routestest.New(t, routes.Config{}, s)
	g.Auth = &rightsOf{}
	d := follow(t, g, "token")
	for range 10 {
		var status *StatusError
		if _, err := d.Engine(t.Context(), rec.Incarnation); !errors.As(err, &status) || status.Status != http.StatusForbidden {
			t.Fatalf("got %v; want 403", err)
		}
	}
	if n := g.Asked(enginesPath + "prefill-0"); n != 1 {
		t.Errorf("a refused engine was asked for %d times; want once", n)
	}
}

func TestDirectoryAsksOnceForAll(t *testing.T) {
	s := store.NewMemory()
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	metadatatest.Put(t, s, rec, nil)
	g := routestest.New(t, routes.Config{}, s)
	hold := make(chan struct{})
	g.Auth = routes.AuthorizerFunc(func(*http.Request, routes.Access) (routes.Caller, error) { <-hold; return routes.Caller{}, nil })
	d := newClient(t, g.URL(), "all", nil).Directory()
	found := make(chan error, 20)
	for range cap(found) {
		go func() {
			_, err := d.Engine(context.Background(), rec.Incarnation)
			found <- err
		}()
	}
	metadatatest.Eventually(t, "all wait", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		f := d.flights[rec.Engine]
		return f != nil && f.waiters == cap(found)
	})
	close(hold)
	for range cap(found) {
		if err := <-found; err != nil {
			t.Error(err)
		}
	}
	if n := g.Asked(enginesPath); n != 1 {
		t.Errorf("%d requests for %d who asked at once; want 1", n, cap(found))
	}
	if d.knows(rec.Incarnation) {
		t.Error("a directory that does not follow counts an answer as known")
	}
}

func TestDirectoryKeepsNoMoreThanItMay(t *testing.T) {
	c, err := New(Config{URL: "http://h", Watch: WatchConfig{Engines: 2}}, func() (string, error) { return "", nil }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := c.Directory()
	keep := func(engine string, generation uint64, lease time.Duration) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.keepLocked(engine, &heldPeer{generation: generation, until: time.Now().Add(lease)})
	}
	keep("a", 1, -time.Second)
	keep("b", 2, time.Hour)
	keep("c", 1, time.Hour) // in a's place
	keep("d", 1, time.Hour) // no room
	keep("b", 1, time.Hour) // older than what is known
	var names []string
	for name := range d.peers {
		names = append(names, name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"b", "c"}) || d.peers["b"].generation != 2 {
		t.Errorf("kept %v; want b of generation 2 and c", names)
	}
}

func TestDirectoryWaitsForAllRanks(t *testing.T) {
	s := store.NewMemory()
	d := newClient(t, routestest.Serve(t, s, nil, routestest.Tokens{}), "all", nil).Directory()
	r0, r1 := metadatatest.Record("prefill-0", 7, 2, 0), metadatatest.Record("prefill-0", 7, 2, 1)
	metadatatest.Put(t, s, r0, nil)
	found := make(chan error, 1)
	go func() {
		recs, err := d.Engine(context.Background(), r0.Incarnation)
		if err == nil && len(recs) != 2 {
			err = errors.New("not all ranks")
		}
		found <- err
	}()
	metadatatest.Put(t, s, r1, nil)
	if err := <-found; err != nil {
		t.Error(err)
	}
	if _, err := d.Engine(t.Context(), metadata.Incarnation{Engine: "prefill-0", Generation: 6}); !errors.Is(err, metadata.ErrStale) {
		t.Errorf("older generation: got %v; want ErrStale", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.Engine(ctx, metadata.Incarnation{Engine: "prefill-0", Generation: 8}); err == nil || errors.Is(err, metadata.ErrStale) {
		t.Errorf("generation not published yet: got %v; want an error at the deadline", err)
	}
}
