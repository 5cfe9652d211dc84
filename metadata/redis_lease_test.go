package metadata

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/redistest"
)

// look reads everything once.
func look(t *testing.T, c *Cache) {
	t.Helper()
	c.note(Change{})
	if err := c.follow(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// splitHook calls between before each PTTL: what is asked for together is answered apart.
type splitHook struct{ between func() }

func (h splitHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h splitHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h splitHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			if c.Name() == "pttl" {
				h.between()
			}
			if err := next(ctx, []redis.Cmder{c}); err != nil {
				return err
			}
		}
		return nil
	}
}

// A lease that has ended does not begin again, and a value without one is nothing that a gateway wrote.
func TestFault69RedisLeaseEnded(t *testing.T) {
	server := redistest.Start(t)
	s := store(t, server, nil, "pdrouter")
	rec := record("prefill-0", 7, 1, 0)
	key := s.rankKey(rec.Incarnation, "0/0/0")
	put(t, s, rec, nil)
	server.Do("PERSIST", key)
	held(t, s, "prefill-0")
	if s.Quarantined() != 1 {
		t.Errorf("%d values quarantined; want 1: it has no lease", s.Quarantined())
	}
	put(t, s, later(rec, time.Second), nil)
	s.db.(*redis.Client).AddHook(splitHook{func() { server.Do("PEXPIRE", key, "0") }})
	held(t, s, "prefill-0")
	if s.Quarantined() != 1 {
		t.Errorf("%d values quarantined; want 1", s.Quarantined())
	}
}

// A record lives no longer than a gateway's word that its agent may vouch for it.
func TestFault69RedisLeaseOfABinding(t *testing.T) {
	v, own := newFakeVoucher("gateway"), agentKey("prefill-0")
	s := store(t, redistest.Start(t), v, "pdrouter")
	rec, err := signAs(t, record("prefill-0", 7, 1, 0), own).Bind(v, public(own), time.Now().Add(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, rec, nil)
	got := s.Read(t.Context(), []string{"prefill-0"}, func(string) Known { return (*copied)(nil) })[0]
	if len(got.Found) != 1 || time.Until(got.Found[0].Until) > 20*time.Second {
		t.Errorf("got %+v; want one record for 20 s at most", got)
	}
}

// A withdrawal that nobody heard of is found by the next look; an empty Redis takes nothing away.
func TestFault42WithdrawalMissed(t *testing.T) {
	server := redistest.Start(t)
	s := store(t, server, nil, "pdrouter")
	c := newCache(t, s, CacheConfig{}, nil)
	gone, stays := record("prefill-0", 7, 2, 0), record("prefill-0", 7, 2, 1)
	put(t, s, gone, nil)
	put(t, s, stays, nil)
	look(t, c)
	cached(t, c, "prefill-0", gone, stays)
	put(t, s, later(gone, time.Second), nil) // a renewal, not fetched
	if err := s.Delete(t.Context(), gone.Incarnation, gone.Rank); err != nil {
		t.Fatal(err)
	}
	look(t, c)
	cached(t, c, "prefill-0", stays)
	put(t, s, later(gone, time.Second), ErrStale)
	again := later(gone, 2*time.Second)
	put(t, s, again, nil)
	look(t, c)
	cached(t, c, "prefill-0", again, stays)
	server.Do("FLUSHALL")
	look(t, c)
	cached(t, c, "prefill-0", again, stays)
}

// An announcement of a withdrawal that comes after its rank was published again takes nothing away.
func TestFault42WithdrawalLate(t *testing.T) {
	s := store(t, redistest.Start(t), nil, "pdrouter")
	c := newCache(t, s, CacheConfig{}, nil)
	heard := make(chan Change, 10)
	running(t, func(ctx context.Context) error { return s.Watch(ctx, func(ch Change) { heard <- ch }) })
	<-heard
	rec := record("prefill-0", 7, 1, 0)
	put(t, s, rec, nil)
	look(t, c)
	if err := s.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Fatal(err)
	}
	next := anew(rec, time.Second)
	put(t, s, next, nil)
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
			s := store(t, server, nil, "pdrouter")
			c := newCache(t, s, CacheConfig{}, nil)
			good, bad := record("prefill-0", 7, 1, 0), record("prefill-1", 7, 1, 0)
			put(t, s, good, nil)
			put(t, s, bad, nil)
			key := map[string]string{"hash": s.engineKey("prefill-1"), "value": s.rankKey(bad.Incarnation, "0/0/0"), "index": s.indexKey()}[which]
			server.Do("DEL", key)
			server.Do("LPUSH", key, "x")
			look(t, c)
			next := anew(good, time.Second)
			put(t, s, next, nil)
			c.note(Change{Incarnation: next.Incarnation, Rank: next.Rank})
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
	s := store(t, server, nil, "pdrouter")
	rec := record("prefill-0", 7, 1, 0)
	put(t, s, rec, nil)
	server.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	c := newCache(t, s, CacheConfig{}, nil)
	look(t, c)
	cached(t, c, "prefill-0", rec)
	if err := s.Put(t.Context(), later(rec, time.Second)); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("put: got %v; want the server's error", err)
	}
	server.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	if names, err := s.Names(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("names are %q, %v; want prefill-0 alone", names, err)
	}
}
