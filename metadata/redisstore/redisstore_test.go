package redisstore

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/redisdb"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
)

var quick = cache.Config{Refresh: 50 * time.Millisecond, Retry: 20 * time.Millisecond, Read: time.Second}

// record returns a record that says little and lives a minute.
func record(engine string, generation uint64) metadata.Record {
	inc := metadata.Incarnation{Engine: engine, Generation: generation}
	now := time.Now().UTC().Round(0)
	return metadata.Record{
		Version: metadata.RecordVersion, Incarnation: inc, Role: metadata.Prefill, Size: metadata.Rank{DP: 1, PP: 1, TP: 1},
		Published: now, Expires: now.Add(time.Minute),
	}
}

func later(rec metadata.Record, d time.Duration) metadata.Record {
	rec.Published, rec.Expires = rec.Published.Add(d), rec.Expires.Add(d)
	return rec
}

func marshal(t *testing.T, rec metadata.Record) []byte {
	t.Helper()
	b, err := metadata.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t *testing.T, server *redistest.Server) *Store {
	t.Helper()
	db, err := redisdb.Open(redisdb.Config{Address: server.Address()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return New(db, "pdrouter", nil, slog.New(slog.DiscardHandler))
}

func put(t *testing.T, s *Store, rec metadata.Record) {
	t.Helper()
	if err := s.Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
}

// follow returns a running copy of the store.
func follow(t *testing.T, s *Store, cfg cache.Config) *cache.Cache {
	t.Helper()
	c, err := cache.New(s, cfg, s.log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// sees returns whether the copy has the record of this publication.
func sees(c *cache.Cache, rec metadata.Record) func() bool {
	return func() bool {
		got, ok := c.Engine(rec.Engine)
		return ok && got[0].Generation == rec.Generation && got[0].Published.Equal(rec.Published)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// An announcement that nobody heard is made up for by the next look at everything.
func TestFault42AnnouncementLost(t *testing.T) {
	s := open(t, redistest.Start(t))
	c := follow(t, s, quick)
	first := record("prefill-0", 7)
	put(t, s, first)
	eventually(t, "the record is known", sees(c, first))
	next := later(first, time.Second)
	if err := s.eval(t.Context(), putScript, []string{s.engineKey(next.Engine), s.rankKey(next.Incarnation, "0/0/0")},
		padded(next.Generation), padded(uint64(next.Published.UnixNano()))+nonce(), "0/0/0", marshal(t, next), 60000, 60000, "nobody", "x").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the renewal is known", sees(c, next))
}

// A server that hangs leaves its subscription open and silent. That is noticed, though nothing else is asked.
func TestFault42SubscriptionDeaf(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	s.probing = 50 * time.Millisecond
	c := follow(t, s, cache.Config{Refresh: time.Hour, Retry: 20 * time.Millisecond, Read: time.Second})
	eventually(t, "a subscription", func() bool { return c.Stats().Watches == 1 })
	server.Pause(true)
	eventually(t, "the silence is noticed", func() bool { return c.Stats().Deaf > 0 })
	server.Pause(false)
	eventually(t, "another subscription", func() bool { return c.Stats().Watches > 1 })
}

// A put whose answer was lost is sent again by the driver, and must not be taken for somebody else's.
func TestRedisPutSentAgain(t *testing.T) {
	s := open(t, redistest.Start(t))
	rec := record("prefill-0", 7)
	value := marshal(t, rec)
	send := func(call string) any {
		got, err := s.eval(t.Context(), putScript, []string{s.engineKey(rec.Engine), s.rankKey(rec.Incarnation, "0/0/0")},
			padded(rec.Generation), padded(uint64(rec.Published.UnixNano()))+call, "0/0/0", value, 60000, 60000, s.channel(), "x").Slice()
		if err != nil {
			t.Fatal(err)
		}
		return got[0]
	}
	if first, again, other := send("aaaaaaaa"), send("aaaaaaaa"), send("bbbbbbbb"); first != int64(1) || again != int64(1) || other != int64(0) {
		t.Errorf("got %v, %v and %v; want 1, 1 and 0", first, again, other)
	}
}

// What cannot be used is told of once a minute for each engine, with how often, for as many engines as there may be.
func TestFault43QuarantineInTheLog(t *testing.T) {
	var q quarantine
	now := time.Now()
	var names []string
	for i := range 2 * quarantineNames {
		names = append(names, strings.Repeat("x", 1+i%7)+string(rune('a'+i%26))+time.Duration(i).String())
	}
	for minute := range 3 {
		lines, values := 0, 0
		for i := range 60 {
			for _, name := range names {
				if n := q.say(name, now.Add(time.Duration(60*minute+i)*time.Second)); n > 0 {
					lines, values = lines+1, values+n
				}
			}
		}
		if lines != quarantineNames+1 || minute > 0 && values != 60*len(names) {
			t.Errorf("minute %d: %d lines of %d values; want %d of %d", minute, lines, values, quarantineNames+1, 60*len(names))
		}
	}
	if q.count() != uint64(3*60*len(names)) {
		t.Errorf("%d were counted; want %d", q.count(), 3*60*len(names))
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(message(metadata.Change{Incarnation: metadata.Incarnation{Engine: "prefill-0", Generation: 7}, Rank: metadata.Rank{TP: 1}, Deleted: true}))
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := parseMessage(s); err == nil && message(c) != s {
			t.Fatalf("%q was read as %q", s, message(c))
		}
	})
}

// A put removes from the index the engines that nothing is remembered of.
func TestPutCleansUpTheIndex(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	rec := record("prefill-0", 7)
	put(t, s, rec)
	server.Do("ZADD", s.indexKey(), "1", "long-ago")
	if names, err := s.Names(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("names are %q, %v; want prefill-0 alone", names, err)
	}
	s.swept.Store(0)
	put(t, s, later(rec, time.Second))
	if got := server.Do("ZCARD", s.indexKey()); got != "1" {
		t.Errorf("the index has %s names; want 1", got)
	}
}
