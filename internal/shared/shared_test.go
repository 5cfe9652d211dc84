package shared

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
)

// longEnough is how long a test waits for what must come. It is no assertion of time.
const longEnough = 20 * time.Second

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(longEnough); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t *testing.T, s *redistest.Server) redisdb.Client {
	t.Helper()
	db, err := redisdb.Open(redisdb.Config{Address: s.Address()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// run runs f until the test ends, or stop is called.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = f(ctx) })
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// TestCacheAloneEndsWithItsLeases has entries without Redis.
func TestCacheAloneEndsWithItsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewCache(nil, "p", "n", nil, quiet())
		f.Put("a", []byte("1"), time.Minute)
		time.Sleep(time.Minute - 1)
		if v, ok, err := f.Get(t.Context(), "a"); !ok || string(v) != "1" || err != nil {
			t.Errorf("got %q, %v, %v before the lease ends", v, ok, err)
		}
		time.Sleep(time.Nanosecond)
		if v, ok, err := f.Get(t.Context(), "a"); ok || err != nil {
			t.Errorf("got %q, %v behind the lease's end", v, err)
		}
		if n := f.Stats().Known; n != 0 {
			t.Errorf("%d are kept", n)
		}
	})
}

// TestLeasedAgainstAnOracle walks at random and compares with all that was ever put.
func TestLeasedAgainstAnOracle(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	l, now := newLeased(8), time.Unix(0, 0)
	all, order := map[string]entry{}, []string{} // order: the last used at the end
	use := func(key string) {
		for i, k := range order {
			if k == key {
				order = append(order[:i], order[i+1:]...)
				break
			}
		}
		order = append(order, key)
	}
	forget := func(key string) {
		use(key)
		order = order[:len(order)-1]
		delete(all, key)
	}
	for range 20_000 {
		key := fmt.Sprint(random.IntN(20))
		now = now.Add(time.Duration(random.IntN(3)) * time.Second)
		if random.IntN(2) == 0 {
			it := entry{value: []byte(key), until: now.Add(time.Duration(random.IntN(60)) * time.Second)}
			l.put(key, it)
			all[key] = it
			if use(key); len(order) > 8 {
				forget(order[0])
			}
			continue
		}
		got, ok := l.get(key, now)
		want, there := all[key]
		if there && !now.Before(want.until) {
			forget(key)
			there = false
		}
		if ok != there || ok && string(got.value) != string(want.value) {
			t.Fatalf("%s: got %v; want %v", key, ok, there)
		}
		if there {
			use(key)
		}
		if l.len() != len(all) {
			t.Fatalf("%d are kept; want %d", l.len(), len(all))
		}
	}
}

// TestCacheAreShared has one gateway know what another was told, for as long as its lease.
func TestCacheAreShared(t *testing.T) {
	server := redistest.Start(t)
	a, b := NewCache(open(t, server), "p", "n", nil, quiet()), NewCache(open(t, server), "p", "n", nil, quiet())
	other := NewCache(open(t, server), "p", "m", nil, quiet())
	run(t, a.Run)
	for i := range 3 * batch {
		a.Put(fmt.Sprint(i), []byte("v"+fmt.Sprint(i)), time.Hour)
	}
	a.Put("7", []byte("again"), time.Hour)
	eventually(t, "all is written", func() bool { return a.Stats().Waiting == 0 })
	for key, want := range map[string]string{"0": "v0", "7": "again", "767": "v767"} {
		if v, ok, err := b.Get(t.Context(), key); !ok || string(v) != want || err != nil {
			t.Errorf("%s: got %q, %v, %v; want %s", key, v, ok, err, want)
		}
	}
	if _, ok, err := b.Get(t.Context(), "none"); ok || err != nil {
		t.Errorf("got %v, %v of a key that nobody put", ok, err)
	}
	if _, ok, _ := other.Get(t.Context(), "7"); ok {
		t.Error("entries of another name are the same")
	}
	if n := server.Do("PTTL", "p:n:7"); n == "-1" || n == "-2" {
		t.Errorf("the entry has no lease: %s", n)
	}
	a.Put("short", []byte("v"), 50*time.Millisecond)
	eventually(t, "the lease is over for everybody", func() bool {
		_, here, _ := a.Get(t.Context(), "short")
		_, there, _ := b.Get(t.Context(), "short")
		return !here && !there
	})
}

// TestCacheOutlastAnOutage kills the server and starts it anew: what was put meanwhile is told then, and asking for what is
// not known here says so and does not hang.
func TestCacheOutlastAnOutage(t *testing.T) {
	server := redistest.Start(t)
	a, b := NewCache(open(t, server), "p", "n", nil, quiet()), NewCache(open(t, server), "p", "n", nil, quiet())
	run(t, a.Run)
	server.Kill()
	a.Put("k", []byte("v"), time.Hour)
	if v, ok, err := a.Get(t.Context(), "k"); !ok || string(v) != "v" || err != nil {
		t.Errorf("got %q, %v, %v of what was put here", v, ok, err)
	}
	if _, ok, err := b.Get(t.Context(), "k"); ok || !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, %v; want that nobody knows", ok, err)
	}
	eventually(t, "it is seen", func() bool { return a.Stats().Behind })
	server.Start()
	eventually(t, "the others know", func() bool { _, ok, _ := b.Get(t.Context(), "k"); return ok })
	if s := a.Stats(); s.Failures == 0 {
		t.Errorf("got %+v", s)
	}
}

// TestCacheAreWrittenAtTheEnd ends a gateway right behind a Put.
func TestCacheAreWrittenAtTheEnd(t *testing.T) {
	server := redistest.Start(t)
	a, b := NewCache(open(t, server), "p", "n", nil, quiet()), NewCache(open(t, server), "p", "n", nil, quiet())
	stop := run(t, a.Run)
	a.Put("k", []byte("v"), time.Hour)
	stop()
	if _, ok, err := b.Get(t.Context(), "k"); !ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
}

// TestCacheWaitingAreBounded puts more than a server that is away will ever be told.
func TestCacheWaitingAreBounded(t *testing.T) {
	db, err := redisdb.Open(redisdb.Config{Address: "unix:///nobody/is/here"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	f := newCache(db, "p:", nil, quiet(), 10)
	for i := range maxWaiting + 5 {
		f.Put(fmt.Sprint(i), nil, time.Hour)
	}
	if s := f.Stats(); s.Waiting != maxWaiting || s.Dropped != 5 || s.Known != 10 {
		t.Errorf("got %+v", s)
	}
}

// TestMapIsShared has two gateways see each other's entries come, change and go.
func TestMapIsShared(t *testing.T) {
	server := redistest.Start(t)
	a, b := NewMap(open(t, server), "p", "drains", nil, quiet()), NewMap(open(t, server), "p", "drains", nil, quiet())
	var mu sync.Mutex
	var seen []map[string]string
	run(t, func(ctx context.Context) error { return a.Watch(ctx, func(map[string]string) {}) })
	run(t, func(ctx context.Context) error {
		return b.Watch(ctx, func(all map[string]string) {
			mu.Lock()
			seen = append(seen, all)
			mu.Unlock()
		})
	})
	last := func() map[string]string {
		mu.Lock()
		defer mu.Unlock()
		if len(seen) == 0 {
			return nil
		}
		return seen[len(seen)-1]
	}
	a.Put("decode-0", "with a space", time.Hour)
	eventually(t, "the other sees it", func() bool { return last()["decode-0"] == "with a space" })
	server.Kill()
	a.Put("decode-1", "x", time.Hour)
	a.Put("decode-0", "y", time.Millisecond)
	eventually(t, "its lease is over", func() bool { return len(a.All()) == 1 })
	if all := a.All(); all["decode-1"] != "x" {
		t.Errorf("here: got %v", all)
	}
	server.Start()
	eventually(t, "the other sees it", func() bool { return last()["decode-1"] == "x" })
	b.Put("decode-0", "z", time.Millisecond)
	b.Put("decode-1", "z", time.Millisecond)
	b.Put("short", "x", 20*time.Millisecond)
	eventually(t, "all is over", func() bool { return len(a.All()) == 0 && len(b.All()) == 0 && len(last()) == 0 })
}

// TestMapAlone has one without Redis.
func TestMapAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewMap(nil, "p", "drains", nil, quiet())
		calls := make(chan map[string]string, 10)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.Watch(ctx, func(all map[string]string) { calls <- all }) })
		if all := <-calls; len(all) != 0 {
			t.Errorf("got %v", all)
		}
		b.Put("a", "1", time.Minute)
		if all := <-calls; all["a"] != "1" {
			t.Errorf("got %v", all)
		}
		if all := <-calls; len(all) != 0 { // its lease is over
			t.Errorf("got %v", all)
		}
		cancel()
		wg.Wait()
	})
}

// TestMapKeepsTheNewer has a gateway that was cut off write what it had wanted before another one wanted something else.
func TestMapKeepsTheNewer(t *testing.T) {
	server := redistest.Start(t)
	db, err := redisdb.Open(redisdb.Config{Address: server.Address()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	b := NewMap(db, "p", "engines", nil, slog.New(slog.DiscardHandler))
	now := time.Now()
	for i, row := range []struct {
		value string
		at    int64
		want  string
	}{{"b", now.UnixNano(), "b"}, {"a", now.UnixNano() - 1, "b"}, {"c", now.UnixNano() + 1, "c"}, {"d", 9, "c"}, {"far", 1<<63 - 1, "far"}, {"e", now.UnixNano(), "e"}} {
		all, err := b.exchange(t.Context(), map[string]entry{"k": {value: []byte(row.value), at: row.at, until: now.Add(time.Hour)}})
		if err != nil || all["k"].value != row.want {
			t.Errorf("%d: %v %v; want %s", i, all, err, row.want)
		}
	}
}

// TestMapSaysThatRedisHangs: the log tells of an exchange that its caller gave up as it took too long, and not of one that ended with its caller.
func TestMapSaysThatRedisHangs(t *testing.T) {
	s := redistest.Start(t)
	var log bytes.Buffer
	m := NewMap(open(t, s), "p", "n", nil, slog.New(slog.NewTextHandler(&log, nil)))
	if err := m.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Sync(over); err == nil || log.Len() > 0 {
		t.Fatalf("%v, log %q", err, &log)
	}
	s.Pause(true)
	defer s.Pause(false)
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.Sync(soon); err == nil || !strings.Contains(log.String(), "gateways do not exchange entries") {
		t.Errorf("%v, log %q", err, &log)
	}
}
