package limits

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
)

// openRedis returns a real server and an exchange through it.
func openRedis(t *testing.T) (*redistest.Server, *redisExchange) {
	t.Helper()
	server := redistest.Start(t)
	return server, open(t, redisdb.Config{Address: server.Address()})
}

func TestRedisConforms(t *testing.T) {
	server, x := openRedis(t)
	conform(t, x, func(by time.Duration) { stepRedis(t, x, by, server.Do) })
}

// stepRedis sets a server's clock, as far as can be seen: all times that it has noted move the other way.
func stepRedis(t *testing.T, x *redisExchange, by time.Duration, do func(args ...string) string) {
	t.Helper()
	for _, key := range strings.Fields(do("KEYS", x.prefix+"*")) {
		fields, err := x.db.HGetAll(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range fields {
			first, rest, _ := strings.Cut(value, " ")
			if name == "requests" || name == "tokens" {
				continue
			}
			us, err := strconv.ParseInt(first, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			moved := strings.TrimSpace(strconv.FormatInt(us-by.Microseconds(), 10) + " " + rest)
			if err := x.db.HSet(t.Context(), key, name, moved).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRedisForgetsScripts restarts the server, which then knows neither the script nor the counts.
func TestRedisForgetsScripts(t *testing.T) {
	server, x := openRedis(t)
	ask := func() report {
		t.Helper()
		one := []report{{key: "k", from: "a", sum: [buckets]time.Duration{30 * time.Second}, seen: [buckets]time.Duration{30 * time.Second}}}
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
	if got := ask(); got.owed[requests] != 30*time.Second {
		t.Errorf("got %v; want 30 s", got.owed[requests])
	}
}

// TestRedisKeysEnd shows that nothing stays in Redis of a tenant that was refilled.
func TestRedisKeysEnd(t *testing.T) {
	_, x := openRedis(t)
	for name, c := range map[string]struct {
		owed     time.Duration
		min, max time.Duration
	}{"drained": {0, keep - 2*time.Second, keep}, "half": {30 * time.Second, 28 * time.Second, 30*time.Second + keep}} {
		one := []report{{key: name, from: "a", seen: [buckets]time.Duration{c.owed}}}
		if err := x.swap(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		ttl, err := x.db.PTTL(context.Background(), "test:limits:"+name).Result()
		if err != nil || ttl < c.min || ttl > c.max {
			t.Errorf("%s: it ends in %v (%v); want %v to %v", name, ttl, err, c.min, c.max)
		}
	}
}
