package metadata

import (
	"errors"
	"testing"
	"time"

	"pdrouter/internal/redistest"
)

// The real server is killed, comes back empty, and is filled again.
func TestFault42RedisKilled(t *testing.T) {
	t.Parallel() // it waits for a lease to end, most of its time
	server := redistest.Start(t)
	v := newFakeVoucher("gateway")
	s := signing{store(t, server, v, "pdrouter"), v}
	c := newCache(t, s, CacheConfig{Refresh: 50 * time.Millisecond, Retry: 20 * time.Millisecond, Read: time.Second}, nil)
	running(t, c.Run)
	long, short := record("prefill-0", 7, 1, 0), record("decode-0", 7, 1, 0)
	short.Expires = short.Published.Add(10 * time.Second) // seconds for a machine that is busy
	known := func(name string) func() bool {
		return func() bool { _, ok := c.Engine(name); return ok }
	}
	put(t, s, long, nil)
	eventually(t, "the long lease is known", known("prefill-0"))
	put(t, s, short, nil)
	eventually(t, "the short lease is known", known("decode-0"))

	server.Kill()
	eventually(t, "the loss is noticed", func() bool { return c.Stats().Behind })
	if !known("prefill-0")() {
		t.Error("a record is lost with the server")
	}
	eventually(t, "the short lease ends without the server", func() bool { return !known("decode-0")() })
	if !known("prefill-0")() {
		t.Error("the long lease ended with the short one")
	}
	if err := s.Put(t.Context(), later(long, time.Second)); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("put without a server: got %v; want the connection's error", err)
	}

	server.Start() // empty
	eventually(t, "the server is followed again", func() bool { return !c.Stats().Behind })
	if !known("prefill-0")() {
		t.Error("an empty server took away a record whose lease runs")
	}
	put(t, s, later(short, time.Hour), nil)
	eventually(t, "a new record arrives", known("decode-0"))
	if err := s.Delete(t.Context(), short.Incarnation, short.Rank); err != nil {
		t.Fatal(err)
	}
	eventually(t, "announcements arrive again", func() bool { return !known("decode-0")() })
}

// A server that accepts and never answers must not hold up readers.
func TestFault42RedisHangs(t *testing.T) {
	server := redistest.Start(t)
	s := store(t, server, nil, "pdrouter")
	rec := record("prefill-0", 7, 1, 0)
	put(t, s, rec, nil)
	c := newCache(t, s, CacheConfig{Refresh: 50 * time.Millisecond, Retry: 20 * time.Millisecond, Read: 200 * time.Millisecond}, nil)
	running(t, c.Run)
	known := func() bool { _, ok := c.Engine("prefill-0"); return ok }
	eventually(t, "the record is known", known)
	server.Pause(true)
	eventually(t, "the hang is noticed", func() bool { return c.Stats().Behind })
	if !known() {
		t.Error("a hanging server took away a record")
	}
	server.Pause(false)
	eventually(t, "the server is followed again", func() bool { return !c.Stats().Behind })
}

func TestFault43RedisQuarantine(t *testing.T) {
	server := redistest.Start(t)
	v, stranger := newFakeVoucher("gateway"), newFakeVoucher("stranger")
	s := store(t, server, v, "pdrouter")
	rec := record("prefill-0", 7, 2, 0)
	good, err := rec.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	other, err := record("prefill-1", 7, 2, 0).Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := rec.Sign(stranger)
	if err != nil {
		t.Fatal(err)
	}
	stolen := foreign
	stolen.KeyID = "gateway"
	sibling, err := record("prefill-0", 7, 2, 1).Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, sibling, nil)
	put(t, s, good, nil)
	key := s.rankKey(rec.Incarnation, rec.Rank.String())
	for name, value := range map[string][]byte{
		"unsigned":             marshal(t, rec),
		"signed by a stranger": marshal(t, foreign),
		"stranger, our key id": marshal(t, stolen),
		"truncated":            marshal(t, good)[:100],
		"oversize":             make([]byte, 10<<20),
		"other engine":         marshal(t, other),
		"other rank":           marshal(t, sibling),
		"not msgpack":          []byte("hello"),
	} {
		if err := s.db.Set(t.Context(), key, value, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		before := s.Quarantined()
		recs, err := s.Engine(t.Context(), "prefill-0")
		if err != nil || len(recs) != 1 || recs[0].Rank != sibling.Rank || s.Quarantined() != before+1 {
			t.Errorf("%s: got %d records, %v, %d quarantined; want the sibling alone", name, len(recs), err, s.Quarantined()-before)
		}
		var u *Unpairable
		if err := Pairable(recs, engine("decode-0", 1)); !errors.As(err, &u) || u.Reason != IncompleteRanks {
			t.Errorf("%s: got %v; want %s", name, err, IncompleteRanks)
		}
	}
	if err := s.db.HSet(t.Context(), s.engineKey("prefill-0"), "generation", "8").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Engine(t.Context(), "prefill-0"); !errors.Is(err, ErrNotFound) {
		t.Errorf("broken generation: got %v; want ErrNotFound", err)
	}
}
