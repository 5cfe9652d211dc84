package metadata

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
)

var quick = CacheConfig{Refresh: 50 * time.Millisecond, Retry: 20 * time.Millisecond, Read: time.Second}

// sees returns whether the local copy has this very record.
func sees(c *Cache, rec Record) func() bool {
	return func() bool {
		got, ok := c.Engine(rec.Engine)
		return ok && got[0].Generation == rec.Generation && got[0].Published.Equal(rec.Published)
	}
}

// Somebody empties Redis: what is known stays until its lease ends, and the next renewal brings it back.
func TestFault42RedisFlushed(t *testing.T) {
	t.Parallel() // it waits for a lease to end, most of its time
	server := redistest.Start(t)
	s := store(t, server, nil, "pdrouter")
	c := newCache(t, s, quick, nil)
	running(t, c.Run)
	long, short := record("prefill-0", 7, 1, 0), record("decode-0", 7, 1, 0)
	short.Expires = short.Published.Add(10 * time.Second) // seconds for a machine that is busy
	put(t, s, long, nil)
	put(t, s, short, nil)
	eventually(t, "both are known", func() bool { return sees(c, long)() && sees(c, short)() })
	server.Do("FLUSHALL")
	eventually(t, "the short lease ends", func() bool { return !sees(c, short)() })
	if !sees(c, long)() || c.Stats().Behind {
		t.Errorf("the long lease is gone, or the copy is behind: %+v", c.Stats())
	}
	held(t, s, "prefill-0")
	again := anew(long, time.Second)
	put(t, s, again, nil)
	eventually(t, "what is published next is known", sees(c, again))
}

// A subscription that was cut is made again at once, and what was missed meanwhile is read.
func TestFault42SubscriptionCut(t *testing.T) {
	server := redistest.Start(t)
	s := store(t, server, nil, "pdrouter")
	c := newCache(t, s, CacheConfig{Refresh: time.Hour, Retry: 20 * time.Millisecond}, nil)
	running(t, c.Run)
	rec := record("prefill-0", 7, 1, 0)
	for n := range uint64(3) {
		eventually(t, "a subscription", func() bool { return c.Stats().Watches >= n+1 })
		rec = anew(rec, time.Second)
		put(t, s, rec, nil)
		eventually(t, "the record is known", sees(c, rec))
		server.Do("CLIENT", "KILL", "TYPE", "pubsub")
	}
}

// The master dies right after a write that no replica has. Whoever saw the write keeps it, the new master knows nothing
// of it, and takes both the old run's word and the new run's; no gateway goes back.
func TestFault42FailoverLosesWrites(t *testing.T) {
	sentinels := redistest.StartSentinel(t)
	s := storeOf(t, redisdb.Config{Sentinel: redisdb.Sentinel{Master: redistest.MasterName, Addresses: sentinels.Addresses()}}, nil, "pdrouter")
	c := newCache(t, s, CacheConfig{Refresh: time.Hour, Retry: 20 * time.Millisecond, Read: 10 * time.Second}, nil)
	running(t, c.Run)
	old, next := record("prefill-0", 7, 1, 0), record("prefill-0", 8, 1, 0)
	put(t, s, old, nil)
	eventually(t, "the old run is known", sees(c, old))
	master, replicas := sentinels.Master(), sentinels.Replicas()
	master.Do("WAIT", "2", "10000")
	for _, r := range replicas {
		r.Pause(true)
	}
	master.Do("CLIENT", "KILL", "TYPE", "replica") // else the kernel takes in for them what they will read later
	put(t, s, next, nil)
	eventually(t, "the new run is known", sees(c, next))
	master.Kill()
	for _, r := range replicas {
		r.Pause(false)
	}
	sentinels.Replaced(master)
	eventually(t, "a subscription at the new master", func() bool { return c.Stats().Watches > 1 && !c.Stats().Behind })
	held(t, s, "prefill-0", old) // the write is lost
	if !sees(c, next)() {
		t.Fatal("the local copy lost the new run")
	}
	put(t, s, later(old, time.Second), nil) // the store knows nothing newer
	other := record("decode-0", 7, 1, 0)
	put(t, s, other, nil)
	eventually(t, "an announcement at the new master is heard", sees(c, other))
	if !sees(c, next)() {
		t.Fatal("the local copy went back a run")
	}
	renewed := anew(next, time.Second)
	put(t, s, renewed, nil)
	eventually(t, "the renewal is known", sees(c, renewed))
	put(t, s, later(old, 2*time.Second), ErrStale)
}

// What is too large to be a record, or an engine's hash, is never read whole.
func TestFault43RedisOversize(t *testing.T) {
	server := redistest.Start(t)
	s := store(t, server, newFakeVoucher("gateway"), "pdrouter")
	inc := Incarnation{"prefill-0", 7}
	server.Do("HSET", s.engineKey("prefill-0"), "generation", fmt.Sprintf("%020d", 7), "0/0/0", fmt.Sprintf("%020d", 1))
	server.Do("SETRANGE", s.rankKey(inc, "0/0/0"), "100000000", "x")
	server.Do("SETRANGE", "large", "100000000", "x")
	server.Do("EVAL", "redis.call('HSET', KEYS[2], 'generation', redis.call('GET', KEYS[1]))", "2", "large", s.engineKey("prefill-1"))
	for _, engine := range []string{"prefill-0", "prefill-1"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		quarantined := s.Quarantined()
		held(t, s, engine)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 20<<20 || s.Quarantined() != quarantined+1 {
			t.Errorf("%s: %d bytes were allocated for 100 MB, %d values quarantined", engine, got, s.Quarantined()-quarantined)
		}
	}
}

// The lease is what the store's clock says is left, and never more than the record's: whatever the clocks of day say.
func TestFault69RedisLease(t *testing.T) {
	s := store(t, redistest.Start(t), nil, "pdrouter")
	for name, c := range map[string]struct {
		published time.Duration // from now
		ttl       time.Duration // in Redis
		min, max  time.Duration // what is left
	}{
		"whole":                   {0, time.Minute, 30 * time.Second, time.Minute},
		"publisher an hour ahead": {time.Hour, time.Minute, 30 * time.Second, time.Minute},
		"publisher an hour late":  {-time.Hour, time.Minute, 30 * time.Second, time.Minute},
		"read late":               {0, 20 * time.Second, time.Second, 20 * time.Second},
		"Redis put back an hour":  {0, time.Hour, 30 * time.Second, time.Minute},
	} {
		engine := "prefill-" + strings.ReplaceAll(name, " ", "-")
		rec := later(record(engine, 7, 1, 0), c.published)
		put(t, s, rec, nil)
		if err := s.db.PExpire(t.Context(), s.rankKey(rec.Incarnation, "0/0/0"), c.ttl).Err(); err != nil {
			t.Fatal(err)
		}
		got := s.Read(t.Context(), []string{engine}, func(string) Known { return (*copied)(nil) })[0]
		if len(got.Found) != 1 {
			t.Fatalf("%s: %+v", name, got)
		}
		if left := time.Until(got.Found[0].Until); left < c.min || left > c.max {
			t.Errorf("%s: %v are left; want %v to %v", name, left, c.min, c.max)
		}
	}
}

// One of a cluster's masters dies, the one that all announcements go through or another: its replica takes over.
func TestFault42ClusterFailover(t *testing.T) {
	cluster := redistest.StartCluster(t, 1)
	s := storeOf(t, redisdb.Config{Cluster: cluster.Addresses()}, nil, "pdrouter")
	c := newCache(t, s, CacheConfig{Refresh: 200 * time.Millisecond, Retry: 20 * time.Millisecond, Read: 10 * time.Second}, nil)
	running(t, c.Run)
	var recs []Record
	for _, name := range []string{"prefill-0", "prefill-1", "prefill-2", "prefill-3", "prefill-4"} { // in slots of all three
		recs = append(recs, record(name, 7, 1, 0))
		put(t, s, recs[len(recs)-1], nil)
	}
	all := func(recs []Record) func() bool {
		return func() bool {
			for _, r := range recs {
				if !sees(c, r)() {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "all are known", all(recs))
	cluster.Servers()[0].Kill()
	for i := range recs {
		recs[i] = anew(recs[i], time.Second)
		eventually(t, "a renewal is taken", func() bool {
			recs[i] = anew(recs[i], time.Millisecond)
			return s.Put(t.Context(), recs[i]) == nil
		})
	}
	eventually(t, "all renewals are known", all(recs))
	eventually(t, "the copy is up to date", func() bool { return !c.Stats().Behind })
}
