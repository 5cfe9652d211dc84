package limits

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
)

// open connects an exchange.
func open(t *testing.T, cfg redisdb.Config) *redisExchange {
	t.Helper()
	db, err := redisdb.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &redisExchange{db: db, prefix: "test:limits:"}
}

// eventually waits long for what real servers do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestClusterConforms holds a cluster to the same as one server. One of its servers then forgets the script, and another
// one dies: the tenants of those that answer are told of, each once.
func TestClusterConforms(t *testing.T) {
	cluster := redistest.StartCluster(t, 0)
	x := open(t, redisdb.Config{Cluster: cluster.Addresses()})
	conform(t, x, func(by time.Duration) {
		for _, s := range cluster.Servers() {
			stepRedis(t, x, by, s.Do)
		}
	})

	reports := func(sum time.Duration) []report {
		all := make([]report, 60)
		for i := range all {
			all[i] = report{key: fmt.Sprint("many-", i), from: "a", sum: [buckets]time.Duration{sum}}
		}
		return all
	}
	if err := x.swap(t.Context(), reports(0)); err != nil {
		t.Fatal(err)
	}
	cluster.Servers()[0].Do("SCRIPT", "FLUSH")
	cluster.Servers()[2].Kill()
	all := reports(30 * time.Second)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	err := x.swap(ctx, all)
	if n := count(all); err == nil || n < 20 || n >= 60 { // two thirds, as slots go; even if the cluster is soon found to be down
		t.Errorf("%d of 60 were told of (%v); want those of the two servers that answer", n, err)
	}
	for _, r := range all {
		if r.known && (r.owed[requests] > 30*time.Second || r.owed[requests] < 15*time.Second) {
			t.Errorf("%s owes %v; want 30 s", r.key, r.owed[requests])
		}
	}
}

// TestOneBadCountStopsNoOther has a hash that is no hash: its tenant is counted alone, and all others are shared, in this
// batch and in those behind it.
func TestOneBadCountStopsNoOther(t *testing.T) {
	_, x := openRedis(t)
	l := newLimiter(x, quiet())
	name := func(i int) string { return fmt.Sprint("tenant-", i) }
	for i := range 2 * batch {
		if _, no := l.Admit(time.Now(), name(i), Limits{Requests: 60}, 0); no != nil {
			t.Fatal(no)
		}
	}
	for i := range l.shards { // of the first that is told of
		if s := &l.shards[i]; len(s.dirty) > 0 {
			if err := x.db.Set(t.Context(), x.prefix+s.dirty[0].key, "no hash", 0).Err(); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if told, err := l.swapAll(t.Context()); err == nil || told != 2*batch-1 {
		t.Errorf("%d of %d were told of (%v); want all but one", told, 2*batch, err)
	}
	if told, _ := l.swapAll(t.Context()); told != 0 {
		t.Errorf("%d were told of again", told)
	}
}

// TestPausedRedisHoldsNobodyUp stops the server's process: requests are admitted and refused by what is known here, and
// counts are shared again when it goes on.
func TestPausedRedisHoldsNobodyUp(t *testing.T) {
	server, x := openRedis(t)
	l := newLimiter(x, quiet())
	run(t, l)
	limits := Limits{Requests: 600}
	ask := func() bool {
		e, no := l.Admit(time.Now(), "t", limits, 0)
		e.Done(time.Now(), 0)
		return no == nil
	}
	key := func() int64 { return x.db.Exists(t.Context(), x.prefix+l.newTenant(&l.shards[0], "t", 0).key).Val() }
	_ = ask()
	eventually(t, "the count is in Redis", func() bool { return key() == 1 })
	server.Pause(true)
	defer server.Pause(false)
	admitted := 1
	eventually(t, "it counts alone", func() bool {
		if ask() {
			admitted++
		}
		return l.Stats().Behind
	})
	for ask() {
		if admitted++; admitted > 2000 {
			t.Fatal("no limit holds")
		}
	}
	if admitted < 600 {
		t.Errorf("%d were admitted while it was stopped; want the whole limit", admitted)
	}
	server.Pause(false)
	eventually(t, "counts are shared again", func() bool { _ = ask(); return !l.Stats().Behind })
}

// TestRedisRights has a user that may do what the exchange needs and nothing else.
func TestRedisRights(t *testing.T) {
	const rights = "on >a-password resetkeys ~test:* -@all +ping +client|setname +evalsha +eval +time +hgetall +hset +hdel +pexpire"
	server := redistest.Start(t)
	server.Do(append([]string{"ACL", "SETUSER", "limits"}, strings.Fields(rights)...)...)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("a-password"), 0o600); err != nil {
		t.Fatal(err)
	}
	x := open(t, redisdb.Config{Address: server.Address(), Username: "limits", PasswordFile: file})
	admin := open(t, redisdb.Config{Address: server.Address()})
	conform(t, x, func(by time.Duration) { stepRedis(t, admin, by, server.Do) })
}
