package shared

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/redistest"
)

// fakeKey signs with a key of its own, and trusts no other.
type fakeKey struct{ private ed25519.PrivateKey }

func newFakeKey(t *testing.T) fakeKey {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return fakeKey{private}
}

func (k fakeKey) Sign(payload []byte) (string, []byte, error) {
	return "k", ed25519.Sign(k.private, payload), nil
}

func (k fakeKey) Verify(id string, payload, signature []byte) error {
	if id != "k" || !ed25519.Verify(k.private.Public().(ed25519.PublicKey), payload, signature) {
		return errors.New("not signed so")
	}
	return nil
}

// unable can check nothing and sign nothing.
type unable struct{ fakeKey }

func (unable) Sign([]byte) (string, []byte, error) { return "", nil, errors.New("no key") }

// lines is a log that counts.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), word)
}

// TestSealsBind has an entry offered under another name, with another lease, time, value or key.
func TestSealsBind(t *testing.T) {
	now := time.Now()
	s := signing{signer: newFakeKey(t)}
	it := entry{value: []byte("value"), until: now.Add(time.Hour), at: 5}
	b, err := s.sign("name", it)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.check("name", b, now, 2*time.Hour); err != nil || string(got.value) != "value" || got.at != 5 || got.until.UnixMilli() != it.until.UnixMilli() {
		t.Errorf("got %v, %v; want no longer lease than was signed", got, err)
	}
	if got, err := s.check("name", b, now, time.Second); err != nil || !got.until.Equal(now.Add(time.Second)) {
		t.Errorf("got %v, %v; want no longer lease than Redis says", got, err)
	}
	if _, err := s.check("name", b, it.until.Add(pastLease/2), time.Hour); err != nil {
		t.Errorf("clocks that differ: %v", err)
	}
	for what, row := range map[string]struct {
		name string
		b    []byte
		now  time.Time
		by   Signer
	}{
		"another name":   {"nam", b, now, s.signer},
		"another key":    {"name", b, now, newFakeKey(t)},
		"its lease over": {"name", b, it.until.Add(2 * pastLease), s.signer},
		"another time":   {"name", bytes.Replace(b, []byte(`"at":5`), []byte(`"at":6`), 1), now, s.signer},
		"another lease":  {"name", bytes.Replace(b, []byte(`"until":`), []byte(`"until":1`), 1), now, s.signer},
		"another value":  {"name", bytes.Replace(b, []byte(`"value":"dm`), []byte(`"value":"dn`), 1), now, s.signer},
		"no signature":   {"name", []byte("value"), now, s.signer},
		"an empty one":   {"name", []byte("{}"), now, s.signer},
	} {
		if got, err := (&signing{signer: row.by}).check(row.name, row.b, row.now, time.Hour); err == nil {
			t.Errorf("%s: got %+v", what, got)
		}
	}
}

// TestCacheSigned has somebody write to Redis who is no gateway.
func TestCacheSigned(t *testing.T) {
	server, key, log := redistest.Start(t), newFakeKey(t), &lines{}
	db := open(t, server)
	a := NewCache(db, "p", "n", key, quiet())
	b := NewCache(open(t, server), "p", "n", key, slog.New(slog.NewTextHandler(log, nil)))
	run(t, a.Run)
	a.Put("k", []byte("v"), time.Hour)
	a.Await("k")
	if v, ok, err := b.Get(t.Context(), "k"); !ok || err != nil || string(v) != "v" {
		t.Fatalf("got %q, %v, %v", v, ok, err)
	}
	signed, err := db.Get(t.Context(), "p:n:k").Result()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"unsigned": "v", "moved": signed} {
		if err := db.Set(t.Context(), "p:n:"+name, value, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		if v, ok, err := b.Get(t.Context(), name); ok || err != nil {
			t.Errorf("%s: got %q, %v, %v", name, v, ok, err)
		}
	}
	if s := b.Stats(); s.Refused != 2 || log.count("ignored") != 1 {
		t.Errorf("%d are counted, and it is said %d times", s.Refused, log.count("ignored"))
	}
	mute := NewCache(db, "p", "n", unable{key}, quiet())
	run(t, mute.Run)
	mute.Put("m", nil, time.Hour)
	mute.Await("m")
	if n := db.Exists(t.Context(), "p:n:m").Val(); n != 0 || mute.Stats().Dropped != 1 {
		t.Errorf("%d written, %+v", n, mute.Stats())
	}
}

// TestMapSigned has somebody write to Redis who is no gateway: an entry of his own, one that was signed for another key, and
// one that was true before.
func TestMapSigned(t *testing.T) {
	server, key, log := redistest.Start(t), newFakeKey(t), &lines{}
	db := open(t, server)
	a := NewMap(open(t, server), "p", "engines", key, quiet())
	b := NewMap(open(t, server), "p", "engines", key, slog.New(slog.NewTextHandler(log, nil)))
	for _, x := range []*Map{a, b} {
		run(t, func(ctx context.Context) error { return x.Watch(ctx, func(map[string]string) {}) })
	}
	in := func(key string) string { return db.HGet(t.Context(), "p:engines", key).Val() }
	write := func(key, value string) {
		t.Helper()
		if err := db.HSet(t.Context(), "p:engines", key, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	a.Put("d", "old", time.Hour)
	eventually(t, "the other sees it", func() bool { return b.All()["d"] == "old" })
	old := in("d")
	a.Put("d", "new", time.Hour)
	eventually(t, "the other sees it", func() bool { return b.All()["d"] == "new" })
	now := in("d")
	ends, _, _ := strings.Cut(now, " ")
	write("forged", ends+` {"engine":"forged"}`)
	write("moved", now)
	before := b.Refused()
	eventually(t, "they are seen", func() bool { return b.Refused() >= before+2 })
	if all := b.All(); len(all) != 1 || all["d"] != "new" {
		t.Errorf("got %v", all)
	}
	for what, value := range map[string]string{"older": old, "forged": ends + " x"} {
		write("d", value)
		eventually(t, what+": it is set right", func() bool { got := in("d"); return got != value && strings.Contains(got, `"key_id"`) })
		if a.All()["d"] != "new" || b.All()["d"] != "new" {
			t.Errorf("%s: got %v and %v", what, a.All(), b.All())
		}
	}
	eventually(t, "it is lost", func() bool { // an entry may be lost, and an older one is still none; what was to be set right may come once more
		return db.HDel(t.Context(), "p:engines", "d").Err() == nil && len(b.All()) == 0
	})
	write("d", old)
	eventually(t, "it is written over", func() bool { got := in("d"); return got != old && got != "" })
	eventually(t, "the newer one is known again", func() bool { return a.All()["d"] == "new" && b.All()["d"] == "new" })
	if log.count("ignored") != 1 {
		t.Errorf("it is said %d times", log.count("ignored"))
	}
}

// TestAwaitIsBounded has nobody write what is awaited, and then everybody know that Redis takes nothing.
func TestAwaitIsBounded(t *testing.T) {
	server := redistest.Start(t)
	f := NewCache(open(t, server), "p", "n", nil, quiet())
	f.Await("other")
	f.Put("k", nil, time.Hour)
	f.Await("k")
	if s := f.Stats(); s.Late != 1 || s.Waiting != 1 {
		t.Errorf("got %+v", s)
	}
	server.Kill()
	run(t, f.Run)
	eventually(t, "it fails", func() bool { return f.Stats().Behind })
	f.Await("k")
	if s := f.Stats(); s.Late != 2 {
		t.Errorf("got %+v", s)
	}
	server.Start()
	eventually(t, "it is written", func() bool { return f.Stats().Waiting == 0 })
	f.Put("k", nil, time.Hour)
	f.Await("k")
	if s := f.Stats(); s.Late != 2 || s.Waiting != 0 {
		t.Errorf("got %+v", s)
	}
}

// TestMapWritesOverTheOlder has somebody take an entry out of Redis, and then put back an older one that a gateway had signed:
// a gateway that runs writes over it, or one that starts would believe it.
func TestMapWritesOverTheOlder(t *testing.T) {
	now, key := time.Now(), newFakeKey(t)
	b := NewMap(nil, "p", "n", key, quiet())
	signed := func(it entry) map[string]left {
		text, err := b.signing.sign(b.name("d"), it)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]left{"d": {string(text), time.Hour}}
	}
	older := entry{value: []byte("old"), until: now.Add(time.Hour), at: now.UnixNano() - 2}
	newer := entry{value: []byte("new"), until: now.Add(time.Hour), at: now.UnixNano() - 1}
	b.learnLocked(signed(newer), now)
	b.learnLocked(nil, now)
	if all := b.All(); len(all) != 0 {
		t.Fatalf("Redis has lost it, and the map has %v", all)
	}
	b.learnLocked(signed(older), now)
	if got := b.waiting["d"]; string(got.value) != "new" || got.at != newer.at || b.All()["d"] != "new" {
		t.Errorf("%q is to be written over the older one, and the map has %v; want the newer one", got.value, b.All())
	}
	b.waiting = map[string]entry{}
	b.learnLocked(nil, now)
	if b.learnLocked(signed(older), now.Add(2*time.Hour)); len(b.waiting) != 0 {
		t.Errorf("its lease is over, and %v is to be written", b.waiting)
	}
}

// TestMapPutWhileAnOlderOneComes has a gateway put an entry while Redis answers with the one before it, which a gateway has signed as well.
func TestMapPutWhileAnOlderOneComes(t *testing.T) {
	now, log := time.Now(), &lines{}
	m := NewMap(nil, "p", "n", newFakeKey(t), slog.New(slog.NewTextHandler(log, nil)))
	text, err := m.signing.sign(m.name("d"), entry{value: []byte("old"), until: now.Add(time.Hour), at: now.UnixNano() - 1})
	if err != nil {
		t.Fatal(err)
	}
	m.Put("d", "new", time.Hour)
	m.learnLocked(map[string]left{"d": {string(text), time.Hour}}, now)
	if got := m.waiting["d"]; string(got.value) != "new" || m.All()["d"] != "new" {
		t.Errorf("%q is to be written, and the map has %v; want the newer one", got.value, m.All())
	}
	if n := m.Refused(); n != 0 || log.count("ignored") != 0 {
		t.Errorf("%d entries are ignored as not signed, and it is said %d times; want none", n, log.count("ignored"))
	}
}

// checked calls before with each check.
type checked struct {
	fakeKey
	before func()
}

func (c checked) Verify(id string, payload, signature []byte) error {
	c.before()
	return c.fakeKey.Verify(id, payload, signature)
}

// TestCachePutWhileAnOlderOneComes is the same with a Cache that is asked for an entry.
func TestCachePutWhileAnOlderOneComes(t *testing.T) {
	server, key := redistest.Start(t), newFakeKey(t)
	a := NewCache(open(t, server), "p", "n", key, quiet())
	stop := run(t, a.Run)
	a.Put("k", []byte("old"), time.Hour)
	stop()
	var b *Cache
	b = NewCache(open(t, server), "p", "n", checked{key, func() { b.Put("k", []byte("new"), time.Hour) }}, quiet())
	for range 2 {
		if v, ok, err := b.Get(t.Context(), "k"); !ok || err != nil || string(v) != "new" {
			t.Errorf("got %q, %v, %v; want what was put here", v, ok, err)
		}
	}
}
