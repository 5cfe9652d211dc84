package metadata

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/redistest"
	"pdrouter/internal/refusal"
)

func TestWatchTellsWhatTheCallerMayRead(t *testing.T) {
	s := NewMemory()
	old := record("decode-1", 7, 1, 0)
	put(t, s, old, nil)
	g := newGateway(t, HandlerConfig{}, s)
	decode := openWatch(t, g.url()+watchPath, "read:decode")
	all := openWatch(t, g.url()+watchPath, "all")
	decode.want("sync {}")
	all.want("sync {}")
	rec := record("prefill-0", 7, 1, 0)
	put(t, s, rec, nil)
	all.want(`put {"engine":"prefill-0","generation":7}`)
	put(t, s, later(rec, time.Second), nil) // a renewal is not told
	if err := s.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Fatal(err)
	}
	all.want(`delete {"engine":"prefill-0","generation":7}`)
	// Its deletion is told to whoever could read it, though nothing was told of it before.
	if err := s.Delete(t.Context(), old.Incarnation, old.Rank); err != nil {
		t.Fatal(err)
	}
	decode.want(`delete {"engine":"decode-1","generation":7}`)
	changed := record("decode-0", 8, 1, 0)
	put(t, s, changed, nil)
	decode.want(`put {"engine":"decode-0","generation":8}`)
	changed = later(changed, time.Second)
	changed.Blob = []byte("another agent's")
	put(t, s, changed, nil)
	decode.want(`put {"engine":"decode-0","generation":8}`)
	brief := record("decode-2", 7, 1, 0)
	brief.Expires = brief.Published.Add(200 * time.Millisecond)
	put(t, s, brief, nil)
	decode.want(`put {"engine":"decode-2","generation":7}`, `delete {"engine":"decode-2","generation":7}`) // its lease ends
}

func TestWatchRefusals(t *testing.T) {
	g := newGateway(t, HandlerConfig{Watch: WatchConfig{Watchers: 2}}, NewMemory())
	eventually(t, "the copy is whole", func() bool { return g.handler.Watches().Lost == 1 })
	url := g.url() + watchPath
	wantError(t, "no token", send(t, "GET", url, "", nil), 401, "refused")
	wantError(t, "no scope", send(t, "GET", url, "write:prefill-0", nil), 403, refusal.Insufficient)
	wantError(t, "method", send(t, "POST", url, "all", nil), 405, "method")
	if s := g.handler.Watches(); s != (WatchStats{Lost: 1}) {
		t.Errorf("without a watch: %+v", s)
	}
	if got := send(t, "HEAD", url, "all", nil); got.status != 200 || got.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("HEAD: got %d %v", got.status, got.header)
	}
	one := openWatch(t, url, "all")
	two := openWatch(t, url, "all")
	wantError(t, "too many", send(t, "GET", url, "all", nil), 503, "watchers")
	one.want("sync {}")
	one.end()
	eventually(t, "the watch that was left is noticed", func() bool { return g.watching() == 1 })
	three := openWatch(t, url, "all")
	two.want("sync {}")
	three.want("sync {}")
	if got, want := g.handler.Watches(), (WatchStats{Open: 2, Lost: 1}); got != want {
		t.Errorf("the watches: %+v; want %+v", got, want)
	}
	g.handler.Close()
	two.want("end")
	three.want("end")
	wantError(t, "closing", send(t, "GET", url, "all", nil), 503, "closing")
	if got := send(t, "GET", g.url()+"/metadata/v1/engines", "all", nil); got.status != 200 {
		t.Errorf("other routes after Close: got %d", got.status)
	}
}

// The server's ReadTimeout is over long before the last of these comments; the stream goes on.
func TestWatchOutlivesTheReadTimeout(t *testing.T) {
	s := NewMemory()
	g := newGateway(t, HandlerConfig{Watch: WatchConfig{KeepAlive: 20 * time.Millisecond}}, s)
	w := openWatch(t, g.url()+watchPath, "all")
	for comments := 0; comments < 50; {
		line, err := w.body.ReadString('\n')
		if err != nil {
			t.Fatalf("after %d comments: %v", comments, err)
		}
		if strings.HasPrefix(line, ":") {
			comments++
		}
	}
	put(t, s, record("prefill-0", 7, 1, 0), nil)
	w.want(`put {"engine":"prefill-0","generation":7}`)
}

// leashed takes any token until it is told not to.
type leashed struct{ over atomic.Bool }

func (l *leashed) Authorize(*http.Request, Access) (Caller, error) {
	if l.over.Load() {
		return Caller{}, fakeRefusal{http.StatusUnauthorized}
	}
	return Caller{}, nil
}

func TestWatchEndsWithItsToken(t *testing.T) {
	s := NewMemory()
	leash := &leashed{}
	g := newGateway(t, HandlerConfig{Watch: WatchConfig{KeepAlive: 10 * time.Millisecond}}, s)
	g.auth = leash
	quietOne := openWatch(t, g.url()+watchPath, "token")
	quietOne.want("sync {}")
	leash.over.Store(true)
	quietOne.want("end")
	leash.over.Store(false)

	g = newGateway(t, HandlerConfig{Watch: WatchConfig{KeepAlive: time.Hour}}, s)
	g.auth = leash
	busyOne := openWatch(t, g.url()+watchPath, "token")
	busyOne.want("sync {}")
	leash.over.Store(true)
	put(t, s, record("prefill-0", 7, 1, 0), nil)
	busyOne.want("end")
}

// A client that reads nothing costs one stretch of pending engines, and its connection when a write takes too long.
func TestWatchOfADeadReaderEnds(t *testing.T) {
	s := NewMemory()
	g := newGateway(t, HandlerConfig{Watch: WatchConfig{Write: 50 * time.Millisecond}}, s)
	conn, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all\r\n\r\n", watchPath)
	eventually(t, "it watches", func() bool { return g.watching() == 1 })
	engines := make([]Record, 200)
	for i := range engines {
		engines[i] = record(fmt.Sprintf("prefill-%0100d", i), 7, 1, 0)
	}
	eventually(t, "the dead reader is let go", func() bool {
		for i := range engines {
			engines[i] = later(engines[i], 1)
			engines[i].Blob = append(slices.Clone(engines[i].Blob[:3]), byte(engines[i].Published.Nanosecond()))
			put(t, s, engines[i], nil)
		}
		return g.watching() == 0
	})
}

func TestWatcherJoinsEventsOfOneEngine(t *testing.T) {
	for _, c := range []struct {
		name string
		told []string // engine@what it was; "" is «sync»
		want string
		slow int
	}{
		{"nothing", nil, "", 0},
		{"in order", []string{"b@1", "a@1"}, "b@1 a@1", 0},
		{"what it was at first stays", []string{"a@1", "a@2"}, "a@1", 0},
		{"too many", []string{"a@1", "b@1", "c@1"}, "sync", 1},
		{"after a sync", []string{"a@1", "", "b@1"}, "sync b@1", 0},
	} {
		w := newWatcher("somebody", 2)
		slow := 0
		for _, told := range c.told {
			engine, generation, _ := strings.Cut(told, "@")
			switch {
			case told == "":
				w.again()
			case w.tell(engine, seen{inc: Incarnation{engine, uint64(generation[0] - '0')}}):
				slow++
			}
		}
		if slow != c.slow {
			t.Errorf("%s: the reader was too slow %d times; want %d", c.name, slow, c.slow)
		}
		var got []string
		all, order, before := w.take()
		if all {
			got = append(got, "sync")
		}
		for _, engine := range order {
			got = append(got, before[engine].inc.ID())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v; want %s", c.name, got, c.want)
		}
		if all, order, _ := w.take(); all || len(order) > 0 {
			t.Errorf("%s: told twice: %v %v", c.name, all, order)
		}
	}
}

// Over one Redis, a change at one gateway is told by the other, and can be read there when it is told.
func TestWatchAcrossGatewaysOverRedis(t *testing.T) {
	server := redistest.Start(t)
	v := newFakeVoucher("gateway")
	here, there := newGateway(t, HandlerConfig{}, store(t, server, v, "pdr")), newGateway(t, HandlerConfig{}, store(t, server, v, "pdr"))
	w := openWatch(t, there.url()+watchPath, "all")
	w.want("sync {}")
	c := newClient(t, there.url(), "all", v)
	for i := range 20 {
		rec, err := record(fmt.Sprintf("prefill-%d", i), 7, 1, 0).Sign(v)
		if err != nil {
			t.Fatal(err)
		}
		put(t, here.store, rec, nil)
		w.want(fmt.Sprintf(`put {"engine":"prefill-%d","generation":7}`, i))
		if _, err := c.Engine(t.Context(), rec.Engine); err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	server.Start()
	w.want("sync {}")
	rec, err := record("prefill-x", 7, 1, 0).Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "redis takes it", func() bool { return here.store.Put(t.Context(), rec) == nil })
	w.want(`put {"engine":"prefill-x","generation":7}`)
}

// 1,000 watches and 100 changes: everybody ends with the last state, and nothing is left running.
func TestWatchByAThousand(t *testing.T) {
	watchers, changes := 1000, 100
	if testing.Short() {
		watchers = 50
	}
	s := NewMemory()
	put(t, s, record("decode-0", 7, 1, 0), nil)
	g := newGateway(t, HandlerConfig{Watch: WatchConfig{PerCaller: watchers}}, s)
	g.auth = fakeCallers{"all": {Engine: "decode-0", Role: Decode}}
	before := runtime.NumGoroutine()
	transport := &http.Transport{MaxIdleConnsPerHost: watchers}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	var synced, told atomic.Int64
	for range watchers {
		c, err := NewClient(ClientConfig{URL: g.url(), Timeout: time.Minute}, func() (string, error) { return "all", nil }, nil, transport)
		if err != nil {
			t.Fatal(err)
		}
		first := true
		running.Go(func() {
			err := c.watch(ctx, func(ev WatchEvent) {
				if ev.Kind == WatchSync && first {
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
	eventually(t, "everybody watches", func() bool { return synced.Load() == int64(watchers) })
	spent := burnt()
	for i := 1; i <= changes; i++ {
		put(t, s, record(fmt.Sprint("prefill-", i), uint64(i), 1, 0), nil)
	}
	eventually(t, "everybody knows the last state", func() bool { return told.Load() == int64(watchers) })
	t.Logf("%d changes told to %d watchers: %v of processor time, readers included", changes, watchers, burnt()-spent)
	cancel()
	running.Wait()
	transport.CloseIdleConnections()
	eventually(t, "goroutines are back to what they were", func() bool { return runtime.NumGoroutine() <= before+2 })
}

func TestWatchConfigIsChecked(t *testing.T) {
	for _, c := range []WatchConfig{{KeepAlive: -1}, {Write: -1}, {Watchers: -1}, {PerCaller: -1}, {Buffer: -1}} {
		if (HandlerConfig{Watch: c}).Validate() == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	for _, c := range []ClientWatchConfig{{Silence: -1}, {Retry: -1}, {Longest: -1}, {Ahead: -1}, {Spread: -1}, {Engines: -1}} {
		if (ClientConfig{URL: "http://h", Watch: c}).Validate() == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// FuzzEventParser: however a stream is cut, the same events come out of it, and nothing makes it keep more than its bounds.
func FuzzEventParser(f *testing.F) {
	for _, s := range []string{
		": open\n\nevent: sync\ndata: {}\n\n", "data: a\r\ndata: b\r\n\r\n", "event: put\rdata:x\r\r", "data\n\n", "id: 1\n\nevent: x\n\n",
		strings.Repeat("x", maxEventLine+1), strings.Repeat("data: "+strings.Repeat("x", 4000)+"\n", 4),
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		read := func(size int) (events []string, err error) {
			var p eventParser
			for part := range slices.Chunk(b, size) {
				if err = p.feed(part, func(kind string, data []byte) error {
					if len(data) > maxEventData {
						t.Fatalf("%d bytes of data", len(data))
					}
					_, _ = parseEvent(WatchKind(kind), data)
					events = append(events, kind+" "+string(data))
					return nil
				}); err != nil {
					return events, err
				}
			}
			return events, nil
		}
		whole, wholeErr := read(len(b) + 1)
		parts, partsErr := read(int(cut) + 1)
		if !slices.Equal(whole, parts) || (wholeErr == nil) != (partsErr == nil) {
			t.Fatalf("cut into %d: got %q, %v; want %q, %v", int(cut)+1, parts, partsErr, whole, wholeErr)
		}
	})
}
