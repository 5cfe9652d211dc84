package redisstore_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
)

// What is too large to be a record, or an engine's hash, is never read whole.
func TestFault43RedisOversize(t *testing.T) {
	server := redistest.Start(t)
	s := metadatatest.RedisAt(t, server, metadatatest.NewVoucher("gateway"), "pdrouter")
	inc := metadata.Incarnation{Engine: "prefill-0", Generation: 7}
	server.Do("HSET", s.EngineKey("prefill-0"), "generation", fmt.Sprintf("%020d", 7), "0/0/0", fmt.Sprintf("%020d", 1))
	server.Do("SETRANGE", s.RankKey(inc, "0/0/0"), "100000000", "x")
	server.Do("SETRANGE", "large", "100000000", "x")
	server.Do("EVAL", "redis.call('HSET', KEYS[2], 'generation', redis.call('GET', KEYS[1]))", "2", "large", s.EngineKey("prefill-1"))
	for _, engine := range []string{"prefill-0", "prefill-1"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		quarantined := s.Quarantined()
		metadatatest.Held(t, s, engine)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 20<<20 || s.Quarantined() != quarantined+1 {
			t.Errorf("%s: %d bytes were allocated for 100 MB, %d values quarantined", engine, got, s.Quarantined()-quarantined)
		}
	}
}

// The lease is what the store's clock says is left, and never more than the record's: whatever the clocks of day say.
func TestFault69RedisLease(t *testing.T) {
	s := metadatatest.RedisAt(t, redistest.Start(t), nil, "pdrouter")
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
		rec := metadatatest.Later(metadatatest.Record(engine, 7, 1, 0), c.published)
		metadatatest.Put(t, s, rec, nil)
		if err := s.DB.PExpire(t.Context(), s.RankKey(rec.Incarnation, "0/0/0"), c.ttl).Err(); err != nil {
			t.Fatal(err)
		}
		got := s.Read(t.Context(), []string{engine}, func(string) metadata.Known { return nothing{} })[0]
		if len(got.Found) != 1 {
			t.Fatalf("%s: %+v", name, got)
		}
		if left := time.Until(got.Found[0].Until); left < c.min || left > c.max {
			t.Errorf("%s: %v are left; want %v to %v", name, left, c.min, c.max)
		}
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
	s := metadatatest.RedisAt(t, server, nil, "pdrouter")
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	key := s.RankKey(rec.Incarnation, "0/0/0")
	metadatatest.Put(t, s, rec, nil)
	server.Do("PERSIST", key)
	metadatatest.Held(t, s, "prefill-0")
	if s.Quarantined() != 1 {
		t.Errorf("%d values quarantined; want 1: it has no lease", s.Quarantined())
	}
	metadatatest.Put(t, s, metadatatest.Later(rec, time.Second), nil)
	s.DB.(*redis.Client).AddHook(splitHook{func() { server.Do("PEXPIRE", key, "0") }})
	metadatatest.Held(t, s, "prefill-0")
	if s.Quarantined() != 1 {
		t.Errorf("%d values quarantined; want 1", s.Quarantined())
	}
}

// A record lives no longer than a gateway's word that its agent may vouch for it.
func TestFault69RedisLeaseOfABinding(t *testing.T) {
	v, own := metadatatest.NewVoucher("gateway"), metadatatest.AgentKey("prefill-0")
	s := metadatatest.RedisAt(t, redistest.Start(t), v, "pdrouter")
	rec, err := metadatatest.SignAs(t, metadatatest.Record("prefill-0", 7, 1, 0), own).Bind(v, metadatatest.Public(own), time.Now().Add(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	metadatatest.Put(t, s, rec, nil)
	got := s.Read(t.Context(), []string{"prefill-0"}, func(string) metadata.Known { return nothing{} })[0]
	if len(got.Found) != 1 || time.Until(got.Found[0].Until) > 20*time.Second {
		t.Errorf("got %+v; want one record for 20 s at most", got)
	}
}

// nothing is what a reader knows that has read nothing yet.
type nothing struct{}

func (nothing) Knows(uint64, metadata.Rank, time.Time, string, time.Time) bool { return false }
func (nothing) Holds(metadata.Change) bool                                     { return false }
