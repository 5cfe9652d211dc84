package cache

import (
	"context"
	"errors"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
)

// Somebody who may write to Redis can bring back an older record of the same run. A gateway that has seen the newer one
// keeps it, and the agent's next renewal is there for all.
func TestFault43OlderRecordBroughtBack(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	own := metadatatest.AgentKey("prefill-0")
	s := metadatatest.RedisAt(t, redistest.Start(t), v, "back")
	old := metadatatest.Record("prefill-0", 7, 1, 0)
	newer := metadatatest.Later(old, time.Second)
	newer.Doorbell = "127.0.0.1:2"
	first := metadatatest.Marshal(t, metadatatest.Bound(t, v, old, own))
	c, err := New(s, Config{}, metadatatest.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	read := func() metadata.Record {
		t.Helper()
		c.note(metadata.Change{})
		if err := c.follow(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, ok := c.Engine("prefill-0")
		if !ok || len(got) != 1 {
			t.Fatalf("got %+v; want one record", got)
		}
		return got[0]
	}
	metadatatest.Put(t, s, metadatatest.Bound(t, v, newer, own), nil)
	if got := read(); got.Doorbell != newer.Doorbell {
		t.Fatalf("got the doorbell %q; want the newer one", got.Doorbell)
	}
	if err := s.DB.Set(t.Context(), s.RankKey(old.Incarnation, "0/0/0"), first, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if got := read(); got.Doorbell != newer.Doorbell {
		t.Errorf("got the doorbell %q; want the newer one", got.Doorbell)
	}
	if err := s.Put(t.Context(), metadatatest.Bound(t, v, old, own)); !errors.Is(err, metadata.ErrStale) {
		t.Errorf("older record over the store: got %v; want ErrStale", err)
	}
	metadatatest.Put(t, s, metadatatest.Bound(t, v, metadatatest.Later(newer, time.Second), own), nil)
	if got := read(); got.Doorbell != newer.Doorbell {
		t.Errorf("after a renewal: got the doorbell %q; want the newer one", got.Doorbell)
	}
}

// look reads everything once.
func look(t *testing.T, c *Cache) {
	t.Helper()
	c.note(metadata.Change{})
	if err := c.follow(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A withdrawal that nobody heard of is found by the next look; an empty Redis takes nothing away.
func TestFault42WithdrawalMissed(t *testing.T) {
	server := redistest.Start(t)
	s := metadatatest.RedisAt(t, server, nil, "pdrouter")
	c := newCache(t, s, Config{})
	gone, stays := metadatatest.Record("prefill-0", 7, 2, 0), metadatatest.Record("prefill-0", 7, 2, 1)
	metadatatest.Put(t, s, gone, nil)
	metadatatest.Put(t, s, stays, nil)
	look(t, c)
	cached(t, c, "prefill-0", gone, stays)
	metadatatest.Put(t, s, metadatatest.Later(gone, time.Second), nil) // a renewal, not fetched
	if err := s.Delete(t.Context(), gone.Incarnation, gone.Rank); err != nil {
		t.Fatal(err)
	}
	look(t, c)
	cached(t, c, "prefill-0", stays)
	metadatatest.Put(t, s, metadatatest.Later(gone, time.Second), metadata.ErrStale)
	again := metadatatest.Later(gone, 2*time.Second)
	metadatatest.Put(t, s, again, nil)
	look(t, c)
	cached(t, c, "prefill-0", again, stays)
	server.Do("FLUSHALL")
	look(t, c)
	cached(t, c, "prefill-0", again, stays)
}

// An announcement of a withdrawal that comes after its rank was published again takes nothing away.
func TestFault42WithdrawalLate(t *testing.T) {
	s := metadatatest.RedisAt(t, redistest.Start(t), nil, "pdrouter")
	c := newCache(t, s, Config{})
	heard := make(chan metadata.Change, 10)
	metadatatest.Background(t, func(ctx context.Context) error { return s.Watch(ctx, func(ch metadata.Change) { heard <- ch }) })
	<-heard
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	metadatatest.Put(t, s, rec, nil)
	look(t, c)
	if err := s.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Fatal(err)
	}
	next := metadatatest.Anew(rec, time.Second)
	metadatatest.Put(t, s, next, nil)
	look(t, c)
	for range 3 {
		c.note(<-heard)
	}
	cached(t, c, "prefill-0", next)
}

// A key of another type is one engine's loss: the others are read, and nothing is behind.
func TestFault43RedisWrongType(t *testing.T) {
	for _, which := range []string{"hash", "value", "index"} {
		t.Run(which, func(t *testing.T) {
			server := redistest.Start(t)
			s := metadatatest.RedisAt(t, server, nil, "pdrouter")
			c := newCache(t, s, Config{})
			good, bad := metadatatest.Record("prefill-0", 7, 1, 0), metadatatest.Record("prefill-1", 7, 1, 0)
			metadatatest.Put(t, s, good, nil)
			metadatatest.Put(t, s, bad, nil)
			key := map[string]string{"hash": s.EngineKey("prefill-1"), "value": s.RankKey(bad.Incarnation, "0/0/0"), "index": s.IndexKey()}[which]
			server.Do("DEL", key)
			server.Do("LPUSH", key, "x")
			look(t, c)
			next := metadatatest.Anew(good, time.Second)
			metadatatest.Put(t, s, next, nil)
			c.note(metadata.Change{Incarnation: next.Incarnation, Rank: next.Rank})
			if err := c.follow(t.Context()); err != nil {
				t.Fatal(err)
			}
			cached(t, c, "prefill-0", next)
			if st := c.Stats(); st.Behind || st.Failures != 0 || s.Quarantined() == 0 {
				t.Errorf("stats are %+v, %d quarantined; want no failure, and one", st, s.Quarantined())
			}
		})
	}
}

// Looking writes nothing: it goes on where nothing may be written.
func TestRedisReadsWriteNothing(t *testing.T) {
	server := redistest.Start(t)
	s := metadatatest.RedisAt(t, server, nil, "pdrouter")
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	metadatatest.Put(t, s, rec, nil)
	server.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	c := newCache(t, s, Config{})
	look(t, c)
	cached(t, c, "prefill-0", rec)
	if err := s.Put(t.Context(), metadatatest.Later(rec, time.Second)); err == nil || errors.Is(err, metadata.ErrStale) {
		t.Errorf("put: got %v; want the server's error", err)
	}
	server.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	if names, err := s.Names(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("names are %q, %v; want prefill-0 alone", names, err)
	}
}
