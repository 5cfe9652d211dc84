package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/demo"
	"pdrouter/internal/redistest"
)

// sharedFleet is two gateways that share one Redis, with two pairs of engines, one of which publishes through each.
type sharedFleet struct {
	*demo.Fleet
	clients    [2]string // base URLs of the gateways
	operations [2]string
	asks       []demo.Ask
	want       []string // what one engine alone answers
}

// startShared starts everything and returns when both gateways know every pair. redis is the section of the
// configuration.
func startShared(t *testing.T, redis string) *sharedFleet {
	t.Helper()
	bare, take, must := bareFleet(t, 6+8+1)
	f := &sharedFleet{Fleet: bare}
	for _, e := range []demo.Engine{{Name: "prefill-0", Role: "prefill", TP: 2}, {Name: "prefill-1", Role: "prefill", TP: 2},
		{Name: "decode-0", Role: "decode", TP: 4}, {Name: "decode-1", Role: "decode", TP: 2}} {
		e.Address, e.Control = take(), take()
		f.Engines = append(f.Engines, e)
	}
	must(f.WriteKeys())
	var agents [2]string
	for i := range 2 {
		client, operations := take(), take()
		agents[i] = take()
		f.clients[i], f.operations[i] = "http://"+client, "http://"+operations
		path := f.Path(fmt.Sprintf("gateway-%d.yaml", i))
		must(os.WriteFile(path, []byte(f.Config(client, agents[i], operations)+"metadata: {store: redis, redis: {"+redis+"}}\nadvanced: {metadata_cache: {refresh: 1s}}\n"), 0o600))
		must(f.Start(fmt.Sprintf("gateway-%d", i), "serve", "-c", path))
	}
	for i, e := range f.Engines {
		must(f.StartEngine(e, agents[i%2], "--transport", "tcp"))
	}
	must(f.StartAlone(take()))
	f.known(t)
	f.asks = demo.Asks()
	for _, ask := range f.asks {
		a, err := demo.Send(t.Context(), f.Alone, ask)
		must(err)
		f.want = append(f.want, a.Text)
	}
	return f
}

// known waits until both gateways know every pair.
func (f *sharedFleet) known(t *testing.T) {
	t.Helper()
	for _, operations := range f.operations {
		f.Operations = operations
		if err := f.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// split returns how many requests each gateway has had served by two engines.
func (f *sharedFleet) split(t *testing.T) (n [2]float64) {
	t.Helper()
	for i, operations := range f.operations {
		var err error
		if n[i], err = f.Gauge(t.Context(), operations+"/metrics", fmt.Sprintf("pdrouter_routing_decisions_total{model=%q,reason=\"split\"}", demo.Model)); err != nil {
			t.Error(err)
		}
	}
	return n
}

// traffic asks both gateways without a pause until it is stopped, and compares every answer.
type traffic struct {
	fleet        *sharedFleet
	served, lost atomic.Int64
	stop         func()
}

func (f *sharedFleet) load(t *testing.T) *traffic {
	l := &traffic{fleet: f}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				i := (c + n) % len(f.asks)
				got, err := demo.Send(t.Context(), f.clients[(c+n/len(f.asks))%2], f.asks[i])
				switch {
				case err != nil:
					l.lost.Add(1)
					t.Errorf("client %d, request %d: %v", c, n, err)
				case got.Text != f.want[i]:
					l.lost.Add(1)
					t.Errorf("client %d, request %d: answer differs from one engine's alone", c, n)
				default:
					l.served.Add(1)
				}
			}
		})
	}
	l.stop = sync.OnceFunc(func() { cancel(); clients.Wait() })
	t.Cleanup(l.stop)
	return l
}

// during waits until some more requests have been served, at each gateway some by two engines, and until done says so.
func (l *traffic) during(t *testing.T, what string, done func() bool) {
	t.Helper()
	before := l.served.Load()
	var split [2]float64
	if before > 0 { // else nothing is counted yet
		split = l.fleet.split(t)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if l.served.Load() >= before+40 && done() {
			for i, n := range l.fleet.split(t) {
				if n <= split[i] {
					t.Errorf("%s: gateway %d had no request served by two engines", what, i)
				}
			}
			t.Logf("%s: %d requests served, %d lost", what, l.served.Load()-before, l.lost.Load())
			return
		}
	}
	t.Fatalf("%s: not within a minute", what)
}

// behind returns whether both gateways say that their copy is behind, or that none is.
func (f *sharedFleet) behind(t *testing.T, want bool) func() bool {
	return func() bool {
		for _, operations := range f.operations {
			got, err := f.Gauge(t.Context(), operations+"/metrics", "pdrouter_metadata_behind")
			if err != nil {
				t.Error(err)
			}
			if (got == 1) != want {
				return false
			}
		}
		return true
	}
}

// TestFault42RedisUnderLoad: clients keep asking two gateways while the Redis that they share is killed and comes back
// empty, hangs, and is emptied. No request is lost, and every answer is one engine's alone.
func TestFault42RedisUnderLoad(t *testing.T) {
	t.Parallel() // it waits for processes more than it works
	redis := redistest.StartTCP(t)
	f := startShared(t, fmt.Sprintf("address: %q", redis.Address()))
	l := f.load(t)
	l.during(t, "all is well", f.behind(t, false))
	redis.Kill()
	l.during(t, "Redis killed", f.behind(t, true))
	f.known(t) // still
	redis.Start()
	l.during(t, "Redis back and empty", func() bool { return f.behind(t, false)() && filled(redis) })
	redis.Pause(true)
	l.during(t, "Redis hangs", f.behind(t, true))
	f.known(t)
	redis.Pause(false)
	l.during(t, "Redis goes on", f.behind(t, false))
	redis.Do("FLUSHALL")
	l.during(t, "Redis emptied", func() bool { return f.behind(t, false)() && filled(redis) })
	f.known(t)
	l.stop()
	if err := f.Settled(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests served, %d lost", l.served.Load(), l.lost.Load())
}

// filled reports whether every engine's records are there.
func filled(redis *redistest.Server) bool {
	return strings.TrimSpace(redis.Do("ZCARD", "pdrouter:engines")) == "4"
}

// TestFault42FailoverUnderLoad: the same while Sentinels replace a master that was killed.
func TestFault42FailoverUnderLoad(t *testing.T) {
	t.Parallel() // it waits for processes more than it works
	sentinels := redistest.StartSentinel(t)
	f := startShared(t, fmt.Sprintf("sentinel: {master: %s, addresses: [%s]}", redistest.MasterName, strings.Join(sentinels.Addresses(), ", ")))
	l := f.load(t)
	l.during(t, "all is well", f.behind(t, false))
	master := sentinels.Master()
	master.Kill()
	var next *redistest.Server
	l.during(t, "master killed", func() bool {
		next = sentinels.Replaced(master)
		return f.behind(t, false)()
	})
	f.known(t)
	l.during(t, "a replica is the master", func() bool { return filled(next) })
	l.stop()
	if err := f.Settled(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests served, %d lost", l.served.Load(), l.lost.Load())
}
