package metadata

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// agentsOnly takes the name of an engine as its agent's token, and lets it read what pairs with its engine.
func agentsOnly(r *http.Request, a Access) (Caller, error) {
	own := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if a.Action == Read && a.Apart != "" {
		return Caller{}, fakeRefusal{http.StatusForbidden}
	}
	return Caller{Engine: own}, nil
}

// An agent is told of the engines that pair with its own, and that it may read more once its own engine is known.
func TestWatchOfAnAgentFollowsItsRights(t *testing.T) {
	s := NewMemory()
	put(t, s, record("prefill-0", 7, 1, 0), nil)
	g := newGateway(t, HandlerConfig{}, s)
	g.auth = AuthorizerFunc(agentsOnly)
	w := openWatch(t, g.url()+watchPath, "decode-0")
	w.want("sync {}")
	put(t, s, record("decode-0", 7, 1, 0), nil)
	w.want("sync {}")
	stranger := record("prefill-2", 7, 1, 0)
	stranger.Compatibility = "another digest"
	put(t, s, stranger, nil)
	put(t, s, record("decode-1", 7, 1, 0), nil)
	peer := record("prefill-3", 7, 2, 0)
	put(t, s, peer, nil) // half of it pairs with nobody
	put(t, s, record("prefill-3", 7, 2, 1), nil)
	w.want(`put {"engine":"prefill-3","generation":7}`)
	if err := s.Delete(t.Context(), stranger.Incarnation, stranger.Rank); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), peer.Incarnation, peer.Rank); err != nil {
		t.Fatal(err)
	}
	w.want(`delete {"engine":"prefill-3","generation":7}`)
}

// When its token ends, a client comes again with a fresh one, and is told to look at everything.
func TestClientWatchGoesOnWithAFreshToken(t *testing.T) {
	s := NewMemory()
	var good atomic.Int64
	good.Store(1)
	g := newGateway(t, HandlerConfig{Watch: WatchConfig{KeepAlive: 10 * time.Millisecond}}, s)
	g.auth = AuthorizerFunc(func(r *http.Request, _ Access) (Caller, error) {
		if r.Header.Get("Authorization") != "Bearer "+strconv.FormatInt(good.Load(), 10) {
			return Caller{}, fakeRefusal{http.StatusUnauthorized}
		}
		return Caller{}, nil
	})
	c, err := NewClient(ClientConfig{URL: g.url()}, func() (string, error) { return strconv.FormatInt(good.Load(), 10), nil }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan WatchEvent, 16)
	running(t, func(ctx context.Context) error {
		return c.watch(ctx, func(ev WatchEvent) {
			if ev.Kind != "" {
				changes <- ev
			}
		}, func(error) {})
	})
	want := func(engine string) {
		t.Helper()
		if got := <-changes; got.Engine != engine {
			t.Fatalf("got %+v; want a change of %q", got, engine)
		}
	}
	want("")
	put(t, s, record("prefill-0", 7, 1, 0), nil)
	want("prefill-0")
	good.Store(2)
	want("")
	put(t, s, record("prefill-1", 7, 1, 0), nil)
	want("prefill-1")
}

// A stream on which nothing comes is given up: who sends no keep-alive is dead.
func TestClientWatchLeavesADeadGateway(t *testing.T) {
	var streams atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		streams.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // the client may be gone
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	c, err := NewClient(ClientConfig{URL: srv.URL, Watch: ClientWatchConfig{Silence: 20 * time.Millisecond, Retry: time.Millisecond}}, func() (string, error) { return "t", nil }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	running(t, func(ctx context.Context) error { return c.watch(ctx, func(WatchEvent) {}, func(error) {}) })
	eventually(t, "it tries again", func() bool { return streams.Load() >= 3 })
}
