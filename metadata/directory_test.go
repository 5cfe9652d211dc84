package metadata

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// follow runs a directory over a gateway until the test ends, and waits until it follows.
func follow(t *testing.T, g *gatewayUnderTest, token string) *Directory {
	t.Helper()
	c, err := NewClient(ClientConfig{URL: g.url(), Timeout: 10 * time.Second, Watch: ClientWatchConfig{Longest: 100 * time.Millisecond}},
		func() (string, error) { return token, nil }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := c.Directory()
	running(t, func(ctx context.Context) error {
		return d.Run(ctx, func(engine string) bool { return engine != "self" }, quiet())
	})
	t.Cleanup(func() { g.handler.Close() })
	eventually(t, "it follows", d.follows)
	return d
}

func (d *Directory) follows() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.following
}

// knows reports whether the directory answers for the incarnation without asking.
func (d *Directory) knows(inc Incarnation) bool {
	recs, err, ok := d.held(inc, true)
	return ok && err == nil && len(recs) > 0
}

const enginesPath = "GET /metadata/v1/engines/"

func TestDirectoryKnowsPeersInAdvance(t *testing.T) {
	s := NewMemory()
	before := record("prefill-0", 7, 1, 0)
	put(t, s, before, nil)
	g := newGateway(t, HandlerConfig{}, s)
	d := follow(t, g, "all")
	eventually(t, "what was there is known", func() bool { return d.knows(before.Incarnation) })
	r0, r1 := record("decode-0", 7, 2, 0), record("decode-0", 7, 2, 1)
	put(t, s, r0, nil)
	put(t, s, r1, nil)
	put(t, s, record("self", 7, 1, 0), nil)
	eventually(t, "what is new is known", func() bool { return d.knows(r0.Incarnation) })
	asked := g.asked(enginesPath)
	for range 100 {
		for inc, n := range map[Incarnation]int{before.Incarnation: 1, r0.Incarnation: 2} {
			if recs, err := d.Engine(t.Context(), inc); err != nil || len(recs) != n {
				t.Fatalf("%v: got %d records, %v; want %d", inc, len(recs), err, n)
			}
		}
	}
	if now := g.asked(enginesPath); now != asked {
		t.Errorf("known peers cost %d requests", now-asked)
	}
	if g.asked(enginesPath+"self") > 0 {
		t.Error("an engine that is not wanted was fetched")
	}

	// Another generation takes the place of the old one, which is then known to be old without a request.
	next := record("prefill-0", 8, 1, 0)
	put(t, s, next, nil)
	eventually(t, "the next generation is known", func() bool { return d.knows(next.Incarnation) })
	asked = g.asked(enginesPath)
	if _, err := d.Engine(t.Context(), before.Incarnation); !errors.Is(err, ErrStale) || g.asked(enginesPath) != asked {
		t.Errorf("got %v after %d requests; want ErrStale after none", err, g.asked(enginesPath)-asked)
	}

	// A rank that is rebuilt is fetched again.
	rebuilt := later(next, time.Second)
	rebuilt.Agent += "#2"
	put(t, s, rebuilt, nil)
	eventually(t, "the rebuilt rank is known", func() bool {
		recs, _, ok := d.held(next.Incarnation, true)
		return ok && recs[0].Agent == rebuilt.Agent
	})
	if err := s.Delete(t.Context(), next.Incarnation, next.Rank); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the withdrawn engine is forgotten", func() bool {
		_, _, ok := d.held(next.Incarnation, false)
		return !ok
	})
}

func TestDirectoryOverARestartOfTheGateway(t *testing.T) {
	s := NewMemory()
	stays, goes := record("prefill-0", 7, 1, 0), record("prefill-1", 7, 1, 0)
	put(t, s, stays, nil)
	put(t, s, goes, nil)
	g := newGateway(t, HandlerConfig{}, s)
	d := follow(t, g, "all")
	eventually(t, "both are known", func() bool { return d.knows(stays.Incarnation) && d.knows(goes.Incarnation) })
	g.stop()
	eventually(t, "the loss is noticed", func() bool { return !d.follows() })
	if d.knows(stays.Incarnation) {
		t.Error("what may have changed unheard counts as known")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if recs, err := d.Engine(ctx, stays.Incarnation); err != nil || len(recs) != 1 {
		t.Errorf("without a gateway: got %d records, %v; want the last good copy", len(recs), err)
	}
	put(t, s, record("prefill-1", 8, 1, 0), nil) // nobody hears it
	news := record("decode-0", 7, 1, 0)
	put(t, s, news, nil)
	g.start()
	eventually(t, "it follows again", func() bool {
		return d.knows(stays.Incarnation) && d.knows(news.Incarnation) && d.knows(Incarnation{"prefill-1", 8})
	})
}

// rightsOf lets List through and refuses to read, counting how often it was asked.
type rightsOf struct{ reads atomic.Int64 }

func (a *rightsOf) Authorize(_ *http.Request, want Access) (Caller, error) {
	if want.Action == List {
		return Caller{}, nil
	}
	a.reads.Add(1)
	return Caller{}, fakeRefusal{http.StatusForbidden}
}

func TestDirectoryStopsAskingForWhatIsRefused(t *testing.T) {
	s := NewMemory()
	rec := record("prefill-0", 7, 1, 0)
	put(t, s, rec, nil)
	g := newGateway(t, HandlerConfig{}, s)
	g.auth = &rightsOf{}
	d := follow(t, g, "token")
	for range 10 {
		var status *StatusError
		if _, err := d.Engine(t.Context(), rec.Incarnation); !errors.As(err, &status) || status.Status != http.StatusForbidden {
			t.Fatalf("got %v; want 403", err)
		}
	}
	if n := g.asked(enginesPath + "prefill-0"); n != 1 {
		t.Errorf("a refused engine was asked for %d times; want once", n)
	}
}

func TestDirectoryAsksOnceForAll(t *testing.T) {
	s := NewMemory()
	rec := record("prefill-0", 7, 1, 0)
	put(t, s, rec, nil)
	g := newGateway(t, HandlerConfig{}, s)
	hold := make(chan struct{})
	g.auth = AuthorizerFunc(func(*http.Request, Access) (Caller, error) { <-hold; return Caller{}, nil })
	d := newClient(t, g.url(), "all", nil).Directory()
	found := make(chan error, 20)
	for range cap(found) {
		go func() {
			_, err := d.Engine(context.Background(), rec.Incarnation)
			found <- err
		}()
	}
	eventually(t, "all wait", func() bool {
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
	if n := g.asked(enginesPath); n != 1 {
		t.Errorf("%d requests for %d who asked at once; want 1", n, cap(found))
	}
	if d.knows(rec.Incarnation) {
		t.Error("a directory that does not follow counts an answer as known")
	}
}

func TestDirectoryKeepsNoMoreThanItMay(t *testing.T) {
	c, err := NewClient(ClientConfig{URL: "http://h", Watch: ClientWatchConfig{Engines: 2}}, func() (string, error) { return "", nil }, nil, nil)
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
