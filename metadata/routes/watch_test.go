package routes_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/refusal"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// agentsOnly takes the name of an engine as its agent's token, and lets it read what pairs with its engine.
func agentsOnly(r *http.Request, a routes.Access) (routes.Caller, error) {
	own := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if a.Action == routes.Read && a.Apart != "" {
		return routes.Caller{}, routestest.Refusal(http.StatusForbidden)
	}
	return routes.Caller{Engine: own}, nil
}

// An agent is told of the engines that pair with its own, and that it may read more once its own engine is known.
func TestWatchOfAnAgentFollowsItsRights(t *testing.T) {
	s := store.NewMemory()
	metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	g := routestest.New(t, routes.Config{}, s)
	g.Auth = routes.AuthorizerFunc(agentsOnly)
	w := routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "decode-0")
	w.Want("sync {}")
	metadatatest.Put(t, s, metadatatest.Record("decode-0", 7, 1, 0), nil)
	w.Want("sync {}")
	stranger := metadatatest.Record("prefill-2", 7, 1, 0)
	stranger.Compatibility = "another digest"
	metadatatest.Put(t, s, stranger, nil)
	metadatatest.Put(t, s, metadatatest.Record("decode-1", 7, 1, 0), nil)
	peer := metadatatest.Record("prefill-3", 7, 2, 0)
	metadatatest.Put(t, s, peer, nil) // half of it pairs with nobody
	metadatatest.Put(t, s, metadatatest.Record("prefill-3", 7, 2, 1), nil)
	w.Want(`put {"engine":"prefill-3","generation":7}`)
	if err := s.Delete(t.Context(), stranger.Incarnation, stranger.Rank); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), peer.Incarnation, peer.Rank); err != nil {
		t.Fatal(err)
	}
	w.Want(`delete {"engine":"prefill-3","generation":7}`)
}

func TestWatchTellsWhatTheCallerMayRead(t *testing.T) {
	s := store.NewMemory()
	old := metadatatest.Record("decode-1", 7, 1, 0)
	metadatatest.Put(t, s, old, nil)
	g := routestest.New(t, routes.Config{}, s)
	decode := routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "read:decode")
	all := routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "all")
	decode.Want("sync {}")
	all.Want("sync {}")
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	metadatatest.Put(t, s, rec, nil)
	all.Want(`put {"engine":"prefill-0","generation":7}`)
	metadatatest.Put(t, s, metadatatest.Later(rec, time.Second), nil) // a renewal is not told
	if err := s.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Fatal(err)
	}
	all.Want(`delete {"engine":"prefill-0","generation":7}`)
	// Its deletion is told to whoever could read it, though nothing was told of it before.
	if err := s.Delete(t.Context(), old.Incarnation, old.Rank); err != nil {
		t.Fatal(err)
	}
	decode.Want(`delete {"engine":"decode-1","generation":7}`)
	changed := metadatatest.Record("decode-0", 8, 1, 0)
	metadatatest.Put(t, s, changed, nil)
	decode.Want(`put {"engine":"decode-0","generation":8}`)
	changed = metadatatest.Later(changed, time.Second)
	changed.Blob = []byte("another agent's")
	metadatatest.Put(t, s, changed, nil)
	decode.Want(`put {"engine":"decode-0","generation":8}`)
	brief := metadatatest.Record("decode-2", 7, 1, 0)
	brief.Expires = brief.Published.Add(200 * time.Millisecond)
	metadatatest.Put(t, s, brief, nil)
	decode.Want(`put {"engine":"decode-2","generation":7}`, `delete {"engine":"decode-2","generation":7}`) // its lease ends
}

func TestWatchRefusals(t *testing.T) {
	g := routestest.New(t, routes.Config{Watch: routes.WatchConfig{Watchers: 2}}, store.NewMemory())
	metadatatest.Eventually(t, "the copy is whole", func() bool { return g.Handler.Watches().Lost == 1 })
	url := g.URL() + routestest.WatchPath
	routestest.WantError(t, "no token", routestest.Send(t, "GET", url, "", nil), 401, "refused")
	routestest.WantError(t, "no scope", routestest.Send(t, "GET", url, "write:prefill-0", nil), 403, refusal.Insufficient)
	routestest.WantError(t, "method", routestest.Send(t, "POST", url, "all", nil), 405, "method")
	if s := g.Handler.Watches(); s != (routes.WatchStats{Lost: 1}) {
		t.Errorf("without a watch: %+v", s)
	}
	if got := routestest.Send(t, "HEAD", url, "all", nil); got.Status != 200 || got.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("HEAD: got %d %v", got.Status, got.Header)
	}
	one := routestest.OpenWatch(t, url, "all")
	two := routestest.OpenWatch(t, url, "all")
	routestest.WantError(t, "too many", routestest.Send(t, "GET", url, "all", nil), 503, "watchers")
	one.Want("sync {}")
	one.End()
	metadatatest.Eventually(t, "the watch that was left is noticed", func() bool { return g.Watching() == 1 })
	three := routestest.OpenWatch(t, url, "all")
	two.Want("sync {}")
	three.Want("sync {}")
	if got, want := g.Handler.Watches(), (routes.WatchStats{Open: 2, Lost: 1}); got != want {
		t.Errorf("the watches: %+v; want %+v", got, want)
	}
	g.Handler.Close()
	two.Want("end")
	three.Want("end")
	routestest.WantError(t, "closing", routestest.Send(t, "GET", url, "all", nil), 503, "closing")
	if got := routestest.Send(t, "GET", g.URL()+"/metadata/v1/engines", "all", nil); got.Status != 200 {
		t.Errorf("other routes after Close: got %d", got.Status)
	}
}

// The server's ReadTimeout is over long before the last of these comments; the stream goes on.
func TestWatchOutlivesTheReadTimeout(t *testing.T) {
	s := store.NewMemory()
	g := routestest.New(t, routes.Config{Watch: routes.WatchConfig{KeepAlive: 20 * time.Millisecond}}, s)
	w := routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "all")
	for comments := 0; comments < 50; {
		line, err := w.Body.ReadString('\n')
		if err != nil {
			t.Fatalf("after %d comments: %v", comments, err)
		}
		if strings.HasPrefix(line, ":") {
			comments++
		}
	}
	metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	w.Want(`put {"engine":"prefill-0","generation":7}`)
}

// leashed takes any token until it is told not to.
type leashed struct{ over atomic.Bool }

func (l *leashed) Authorize(*http.Request, routes.Access) (routes.Caller, error) {
	if l.over.Load() {
		return routes.Caller{}, routestest.Refusal(http.StatusUnauthorized)
	}
	return routes.Caller{}, nil
}

func TestWatchEndsWithItsToken(t *testing.T) {
	s := store.NewMemory()
	leash := &leashed{}
	g := routestest.New(t, routes.Config{Watch: routes.WatchConfig{KeepAlive: 10 * time.Millisecond}}, s)
	g.Auth = leash
	quietOne := routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "token")
	quietOne.Want("sync {}")
	leash.over.Store(true)
	quietOne.Want("end")
	leash.over.Store(false)

	g = routestest.New(t, routes.Config{Watch: routes.WatchConfig{KeepAlive: time.Hour}}, s)
	g.Auth = leash
	busyOne := routestest.OpenWatch(t, g.URL()+routestest.WatchPath, "token")
	busyOne.Want("sync {}")
	leash.over.Store(true)
	metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 1, 0), nil)
	busyOne.Want("end")
}

// A client that reads nothing costs one stretch of pending engines, and its connection when a write takes too long.
func TestWatchOfADeadReaderEnds(t *testing.T) {
	s := store.NewMemory()
	g := routestest.New(t, routes.Config{Watch: routes.WatchConfig{Write: 50 * time.Millisecond}}, s)
	conn, err := net.Dial("tcp", g.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all\r\n\r\n", routestest.WatchPath)
	metadatatest.Eventually(t, "it watches", func() bool { return g.Watching() == 1 })
	engines := make([]metadata.Record, 200)
	for i := range engines {
		engines[i] = metadatatest.Record(fmt.Sprintf("prefill-%0100d", i), 7, 1, 0)
	}
	metadatatest.Eventually(t, "the dead reader is let go", func() bool {
		for i := range engines {
			engines[i] = metadatatest.Later(engines[i], 1)
			engines[i].Blob = append(slices.Clone(engines[i].Blob[:3]), byte(engines[i].Published.Nanosecond()))
			metadatatest.Put(t, s, engines[i], nil)
		}
		return g.Watching() == 0
	})
}

func TestWatchConfigIsChecked(t *testing.T) {
	for _, c := range []routes.WatchConfig{{KeepAlive: -1}, {Write: -1}, {Watchers: -1}, {PerCaller: -1}, {Buffer: -1}} {
		if (routes.Config{Watch: c}).Validate() == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}
