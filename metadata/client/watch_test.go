package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// When its token ends, a client comes again with a fresh one, and is told to look at everything.
func TestClientWatchGoesOnWithAFreshToken(t *testing.T) {
	s := store.NewMemory()
	var good atomic.Int64
	good.Store(1)
	g := routestest.New(t, routes.Config{Watch: routes.WatchConfig{KeepAlive: 10 * time.Millisecond}}, s)
	g.Auth = routes.AuthorizerFunc(func(r *http.Request, _ routes.Access) (routes.Caller, error) {
		if r.Header.Get("Authorization") != "Bearer "+strconv.FormatInt(good.Load(), 10) {
			return routes.Caller{}, routestest.Refusal(http.StatusUnauthorized)
		}
		return routes.Caller{}, nil
	})
	c, err := New(Config{URL: g.URL()}, func() (string, error) { return strconv.FormatInt(good.Load(), 10), nil }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan metadata.WatchEvent, 16)
	metadatatest.Background(t, func(ctx context.Context) error {
		return c.watch(ctx, func(ev metadata.WatchEvent) {
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
	metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	want("prefill-0")
	good.Store(2)
	want("")
	metadatatest.Put(t, s, metadatatest.Record("prefill-1", 7, 1, 0), nil)
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
	c, err := New(Config{URL: srv.URL, Watch: WatchConfig{Silence: 20 * time.Millisecond, Retry: time.Millisecond}}, func() (string, error) { return "t", nil }, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	metadatatest.Background(t, func(ctx context.Context) error { return c.watch(ctx, func(metadata.WatchEvent) {}, func(error) {}) })
	metadatatest.Eventually(t, "it tries again", func() bool { return streams.Load() >= 3 })
}

// Over one Redis, a change at one gateway is told by the other, and can be read there when it is told.
func TestWatchAcrossGatewaysOverRedis(t *testing.T) {
	server := redistest.Start(t)
	v := metadatatest.NewVoucher("gateway")
	here, there := routestest.New(t, routes.Config{}, metadatatest.RedisAt(t, server, v, "pdr")), routestest.New(t, routes.Config{}, metadatatest.RedisAt(t, server, v, "pdr"))
	w := routestest.OpenWatch(t, there.URL()+routestest.WatchPath, "all")
	w.Want("sync {}")
	c := newClient(t, there.URL(), "all", v)
	for i := range 20 {
		rec, err := metadatatest.Record(fmt.Sprintf("prefill-%d", i), 7, 1, 0).Sign(v)
		if err != nil {
			t.Fatal(err)
		}
		metadatatest.Put(t, here.Store, rec, nil)
		w.Want(fmt.Sprintf(`put {"engine":"prefill-%d","generation":7}`, i))
		if _, err := c.Engine(t.Context(), rec.Engine); err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	server.Start()
	w.Want("sync {}")
	rec, err := metadatatest.Record("prefill-x", 7, 1, 0).Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	metadatatest.Eventually(t, "redis takes it", func() bool { return here.Store.Put(t.Context(), rec) == nil })
	w.Want(`put {"engine":"prefill-x","generation":7}`)
}

// 1,000 watches and 100 changes: everybody ends with the last state, and nothing is left running.
func TestWatchByAThousand(t *testing.T) {
	watchers, changes := 1000, 100
	if testing.Short() {
		watchers = 50
	}
	s := store.NewMemory()
	metadatatest.Put(t, s, metadatatest.Record("decode-0", 7, 1, 0), nil)
	g := routestest.New(t, routes.Config{Watch: routes.WatchConfig{PerCaller: watchers}}, s)
	g.Auth = routestest.Callers{"all": {Engine: "decode-0", Role: metadata.Decode}}
	before := runtime.NumGoroutine()
	transport := &http.Transport{MaxIdleConnsPerHost: watchers}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	var synced, told atomic.Int64
	for range watchers {
		c, err := New(Config{URL: g.URL(), Timeout: time.Minute}, func() (string, error) { return "all", nil }, nil, transport)
		if err != nil {
			t.Fatal(err)
		}
		first := true
		running.Go(func() {
			err := c.watch(ctx, func(ev metadata.WatchEvent) {
				if ev.Kind == metadata.WatchSync && first {
					first = false
					synced.Add(1)
				}
				if ev.Generation == uint64(changes) {
					told.Add(1)
				}
			}, func(error) {})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		})
	}
	metadatatest.Eventually(t, "everybody watches", func() bool { return synced.Load() == int64(watchers) })
	spent := metadatatest.ProcessorTime()
	for i := 1; i <= changes; i++ {
		metadatatest.Put(t, s, metadatatest.Record(fmt.Sprint("prefill-", i), uint64(i), 1, 0), nil)
	}
	metadatatest.Eventually(t, "everybody knows the last state", func() bool { return told.Load() == int64(watchers) })
	t.Logf("%d changes told to %d watchers: %v of processor time, readers included", changes, watchers, metadatatest.ProcessorTime()-spent)
	cancel()
	running.Wait()
	transport.CloseIdleConnections()
	metadatatest.Eventually(t, "goroutines are back to what they were", func() bool { return runtime.NumGoroutine() <= before+2 })
}

func TestWatchConfigOfAClientIsChecked(t *testing.T) {
	for _, c := range []WatchConfig{{Silence: -1}, {Retry: -1}, {Longest: -1}, {Ahead: -1}, {Spread: -1}, {Engines: -1}} {
		if (Config{URL: "http://h", Watch: c}).Validate() == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}
