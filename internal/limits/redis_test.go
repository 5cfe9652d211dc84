package limits

import (
	"context"
	"testing"
	"time"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
)

// openRedis returns a real server and an exchange through it.
func openRedis(t *testing.T) (*redistest.Server, *redisExchange) {
	t.Helper()
	server := redistest.Start(t)
	db, err := redisdb.Open(redisdb.Config{Address: server.Address()}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return server, &redisExchange{db: db, prefix: "test:limits:"}
}

func TestRedisConforms(t *testing.T) {
	_, x := openRedis(t)
	conform(t, x, time.Sleep) // its clock is the server's own
}

// TestRedisForgetsScripts restarts the server, which then knows neither the script nor the counts.
func TestRedisForgetsScripts(t *testing.T) {
	server, x := openRedis(t)
	ask := func() report {
		t.Helper()
		one := []report{{key: "k", from: "a", limits: Limits{Requests: 60}, sum: [buckets]int64{30}, seen: [buckets]float64{30}}}
		if err := x.swap(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		return one[0]
	}
	ask()
	server.Kill()
	one := []report{{key: "k", from: "a"}}
	if err := x.swap(t.Context(), one); err == nil || one[0].known {
		t.Errorf("without a server: %v, known %t", err, one[0].known)
	}
	server.Start()
	if got := ask(); got.spent[requests] != 30 {
		t.Errorf("got %g; want 30", got.spent[requests])
	}
}

// TestRedisKeysEnd shows that nothing stays in Redis of a tenant that was refilled.
func TestRedisKeysEnd(t *testing.T) {
	_, x := openRedis(t)
	for name, c := range map[string]struct {
		spent    float64
		min, max time.Duration
	}{"drained": {0, keep - 2*time.Second, keep}, "half": {30, 28 * time.Second, 30*time.Second + keep}} {
		one := []report{{key: name, from: "a", limits: Limits{Requests: 60}, seen: [buckets]float64{c.spent}}}
		if err := x.swap(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		ttl, err := x.db.PTTL(context.Background(), "test:limits:"+name).Result()
		if err != nil || ttl < c.min || ttl > c.max {
			t.Errorf("%s: it ends in %v (%v); want %v to %v", name, ttl, err, c.min, c.max)
		}
	}
}
