package cache

import (
	"errors"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
)

var quick = Config{Refresh: 50 * time.Millisecond, Retry: 20 * time.Millisecond, Read: time.Second}

// sees returns whether the local copy has this very record.
func sees(c *Cache, rec metadata.Record) func() bool {
	return func() bool {
		got, ok := c.Engine(rec.Engine)
		return ok && got[0].Generation == rec.Generation && got[0].Published.Equal(rec.Published)
	}
}

// Somebody empties Redis: what is known stays until its lease ends, and the next renewal brings it back.
func TestFault42RedisFlushed(t *testing.T) {
	t.Parallel() // it waits for a lease to end, most of its time
	server := redistest.Start(t)
	s := metadatatest.RedisAt(t, server, nil, "pdrouter")
	c := newCache(t, s, quick)
	metadatatest.Background(t, c.Run)
	long, short := metadatatest.Record("prefill-0", 7, 1, 0), metadatatest.Record("decode-0", 7, 1, 0)
	short.Expires = short.Published.Add(10 * time.Second) // seconds for a machine that is busy
	metadatatest.Put(t, s, long, nil)
	metadatatest.Put(t, s, short, nil)
	metadatatest.Eventually(t, "both are known", func() bool { return sees(c, long)() && sees(c, short)() })
	server.Do("FLUSHALL")
	metadatatest.Eventually(t, "the short lease ends", func() bool { return !sees(c, short)() })
	if !sees(c, long)() || c.Stats().Behind {
		t.Errorf("the long lease is gone, or the copy is behind: %+v", c.Stats())
	}
	metadatatest.Held(t, s, "prefill-0")
	again := metadatatest.Anew(long, time.Second)
	metadatatest.Put(t, s, again, nil)
	metadatatest.Eventually(t, "what is published next is known", sees(c, again))
}

// A subscription that was cut is made again at once, and what was missed meanwhile is read.
func TestFault42SubscriptionCut(t *testing.T) {
	server := redistest.Start(t)
	s := metadatatest.RedisAt(t, server, nil, "pdrouter")
	c := newCache(t, s, Config{Refresh: time.Hour, Retry: 20 * time.Millisecond})
	metadatatest.Background(t, c.Run)
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	for n := range uint64(3) {
		metadatatest.Eventually(t, "a subscription", func() bool { return c.Stats().Watches >= n+1 })
		rec = metadatatest.Anew(rec, time.Second)
		metadatatest.Put(t, s, rec, nil)
		metadatatest.Eventually(t, "the record is known", sees(c, rec))
		server.Do("CLIENT", "KILL", "TYPE", "pubsub")
	}
}

// The master dies right after a write that no replica has. Whoever saw the write keeps it, the new master knows nothing
// of it, and takes both the old run's word and the new run's; no gateway goes back.
func TestFault42FailoverLosesWrites(t *testing.T) {
	sentinels := redistest.StartSentinel(t)
	s := metadatatest.RedisOf(t, redisdb.Config{Sentinel: redisdb.Sentinel{Master: redistest.MasterName, Addresses: sentinels.Addresses()}}, nil, "pdrouter")
	c := newCache(t, s, Config{Refresh: time.Hour, Retry: 20 * time.Millisecond, Read: 10 * time.Second})
	metadatatest.Background(t, c.Run)
	old, next := metadatatest.Record("prefill-0", 7, 1, 0), metadatatest.Record("prefill-0", 8, 1, 0)
	metadatatest.Put(t, s, old, nil)
	metadatatest.Eventually(t, "the old run is known", sees(c, old))
	master, replicas := sentinels.Master(), sentinels.Replicas()
	master.Do("WAIT", "2", "10000")
	for _, r := range replicas {
		r.Pause(true)
	}
	master.Do("CLIENT", "KILL", "TYPE", "replica") // else the kernel takes in for them what they will read later
	metadatatest.Put(t, s, next, nil)
	metadatatest.Eventually(t, "the new run is known", sees(c, next))
	master.Kill()
	for _, r := range replicas {
		r.Pause(false)
	}
	sentinels.Replaced(master)
	metadatatest.Eventually(t, "a subscription at the new master", func() bool { return c.Stats().Watches > 1 && !c.Stats().Behind })
	metadatatest.Held(t, s, "prefill-0", old) // the write is lost
	if !sees(c, next)() {
		t.Fatal("the local copy lost the new run")
	}
	metadatatest.Put(t, s, metadatatest.Later(old, time.Second), nil) // the store knows nothing newer
	other := metadatatest.Record("decode-0", 7, 1, 0)
	metadatatest.Put(t, s, other, nil)
	metadatatest.Eventually(t, "an announcement at the new master is heard", sees(c, other))
	if !sees(c, next)() {
		t.Fatal("the local copy went back a run")
	}
	renewed := metadatatest.Anew(next, time.Second)
	metadatatest.Put(t, s, renewed, nil)
	metadatatest.Eventually(t, "the renewal is known", sees(c, renewed))
	metadatatest.Put(t, s, metadatatest.Later(old, 2*time.Second), metadata.ErrStale)
}

// One of a cluster's masters dies, the one that all announcements go through or another: its replica takes over.
func TestFault42ClusterFailover(t *testing.T) {
	cluster := redistest.StartCluster(t, 1)
	s := metadatatest.RedisOf(t, redisdb.Config{Cluster: cluster.Addresses()}, nil, "pdrouter")
	c := newCache(t, s, Config{Refresh: 200 * time.Millisecond, Retry: 20 * time.Millisecond, Read: 10 * time.Second})
	metadatatest.Background(t, c.Run)
	var recs []metadata.Record
	for _, name := range []string{"prefill-0", "prefill-1", "prefill-2", "prefill-3", "prefill-4"} { // in slots of all three
		recs = append(recs, metadatatest.Record(name, 7, 1, 0))
		metadatatest.Put(t, s, recs[len(recs)-1], nil)
	}
	all := func(recs []metadata.Record) func() bool {
		return func() bool {
			for _, r := range recs {
				if !sees(c, r)() {
					return false
				}
			}
			return true
		}
	}
	metadatatest.Eventually(t, "all are known", all(recs))
	cluster.Servers()[0].Kill()
	for i := range recs {
		recs[i] = metadatatest.Anew(recs[i], time.Second)
		metadatatest.Eventually(t, "a renewal is taken", func() bool {
			recs[i] = metadatatest.Anew(recs[i], time.Millisecond)
			return s.Put(t.Context(), recs[i]) == nil
		})
	}
	metadatatest.Eventually(t, "all renewals are known", all(recs))
	metadatatest.Eventually(t, "the copy is up to date", func() bool { return !c.Stats().Behind })
}

// The real server is killed, comes back empty, and is filled again.
func TestFault42RedisKilled(t *testing.T) {
	t.Parallel() // it waits for a lease to end, most of its time
	server := redistest.Start(t)
	v := metadatatest.NewVoucher("gateway")
	s := metadatatest.Signing{Redis: metadatatest.RedisAt(t, server, v, "pdrouter"), Voucher: v}
	c := newCache(t, s, Config{Refresh: 50 * time.Millisecond, Retry: 20 * time.Millisecond, Read: time.Second})
	metadatatest.Background(t, c.Run)
	long, short := metadatatest.Record("prefill-0", 7, 1, 0), metadatatest.Record("decode-0", 7, 1, 0)
	short.Expires = short.Published.Add(10 * time.Second) // seconds for a machine that is busy
	known := func(name string) func() bool {
		return func() bool { _, ok := c.Engine(name); return ok }
	}
	metadatatest.Put(t, s, long, nil)
	metadatatest.Eventually(t, "the long lease is known", known("prefill-0"))
	metadatatest.Put(t, s, short, nil)
	metadatatest.Eventually(t, "the short lease is known", known("decode-0"))

	server.Kill()
	metadatatest.Eventually(t, "the loss is noticed", func() bool { return c.Stats().Behind })
	if !known("prefill-0")() {
		t.Error("a record is lost with the server")
	}
	metadatatest.Eventually(t, "the short lease ends without the server", func() bool { return !known("decode-0")() })
	if !known("prefill-0")() {
		t.Error("the long lease ended with the short one")
	}
	if err := s.Put(t.Context(), metadatatest.Later(long, time.Second)); err == nil || errors.Is(err, metadata.ErrStale) {
		t.Errorf("put without a server: got %v; want the connection's error", err)
	}

	server.Start() // empty
	metadatatest.Eventually(t, "the server is followed again", func() bool { return !c.Stats().Behind })
	if !known("prefill-0")() {
		t.Error("an empty server took away a record whose lease runs")
	}
	metadatatest.Put(t, s, metadatatest.Later(short, time.Hour), nil)
	metadatatest.Eventually(t, "a new record arrives", known("decode-0"))
	if err := s.Delete(t.Context(), short.Incarnation, short.Rank); err != nil {
		t.Fatal(err)
	}
	metadatatest.Eventually(t, "announcements arrive again", func() bool { return !known("decode-0")() })
}

// A server that accepts and never answers must not hold up readers.
func TestFault42RedisHangs(t *testing.T) {
	server := redistest.Start(t)
	s := metadatatest.RedisAt(t, server, nil, "pdrouter")
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	metadatatest.Put(t, s, rec, nil)
	c := newCache(t, s, Config{Refresh: 50 * time.Millisecond, Retry: 20 * time.Millisecond, Read: 200 * time.Millisecond})
	metadatatest.Background(t, c.Run)
	known := func() bool { _, ok := c.Engine("prefill-0"); return ok }
	metadatatest.Eventually(t, "the record is known", known)
	server.Pause(true)
	metadatatest.Eventually(t, "the hang is noticed", func() bool { return c.Stats().Behind })
	if !known() {
		t.Error("a hanging server took away a record")
	}
	server.Pause(false)
	metadatatest.Eventually(t, "the server is followed again", func() bool { return !c.Stats().Behind })
}
