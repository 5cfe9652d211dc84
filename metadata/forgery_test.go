package metadata

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/redistest"
)

// TestFault43WriteAccessToRedisIsNotEnough does what somebody could who may write to Redis but has neither a gateway's
// key nor the agent's: nothing of it is used, and each try is counted.
func TestFault43WriteAccessToRedisIsNotEnough(t *testing.T) {
	server := redistest.Start(t)
	v := newFakeVoucher("gateway")
	own, thief := agentKey("prefill-0"), agentKey("thief")
	rec := record("prefill-0", 7, 1, 0)
	good := bound(t, v, rec, own)
	signed := func(rec Record, key ed25519.PrivateKey, binding []byte) []byte {
		r := signAs(t, rec, key)
		r.Binding = binding
		return marshal(t, r)
	}
	change := func(f func(*Record)) []byte {
		r := good
		f(&r)
		return marshal(t, r)
	}
	whole, err := rec.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := newBinding(v, rec, public(own), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := newBinding(newFakeVoucher("stranger"), rec, public(thief), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	asGateway, err := newBinding(newFakeVoucher("stranger"), rec, public(thief), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	asGateway = replaceField(t, asGateway, "kid", "gateway")
	theirs := bound(t, v, record("thief", 7, 1, 0), thief)
	long := rec
	long.Published, long.Expires = rec.Published.Add(-25*time.Hour), rec.Expires.Add(-25*time.Hour)
	longSigned, err := long.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	evil := rec
	evil.Blob, evil.Doorbell = []byte("mine"), "192.0.2.1:1"
	for name, value := range map[string][]byte{
		"not signed":                          marshal(t, evil),
		"signed by the thief alone":           signed(evil, thief, nil),
		"blob replaced":                       change(func(r *Record) { r.Blob = []byte("mine") }),
		"blob replaced under a gateway's":     marshal(t, func() Record { r := whole; r.Blob = []byte("mine"); return r }()),
		"lease made longer":                   change(func(r *Record) { r.Expires = r.Expires.Add(time.Hour) }),
		"signed anew, the agent's binding":    signed(evil, thief, good.Binding),
		"binding of the thief's engine":       signed(evil, thief, theirs.Binding),
		"binding of another generation":       signed(rec, own, bound(t, v, record("prefill-0", 6, 1, 0), own).Binding),
		"binding of another rank":             signed(rec, own, bound(t, v, record("prefill-0", 7, 2, 1), own).Binding),
		"binding of another key":              signed(rec, own, bound(t, v, rec, thief).Binding),
		"binding by a stranger":               signed(evil, thief, stranger),
		"binding under the gateway's name":    signed(evil, thief, asGateway),
		"binding that has ended":              signed(rec, own, ended),
		"binding made longer":                 signed(rec, own, replaceField(t, good.Binding, "until_ms", time.Now().Add(1000*time.Hour).UnixMilli())),
		"binding with the thief's key":        signed(evil, thief, replaceField(t, good.Binding, "key", []byte(public(thief)))),
		"binding truncated":                   signed(rec, own, good.Binding[:len(good.Binding)-1]),
		"binding too large":                   fields(t, marshal(t, good), func(m map[string]any) { m["binding"] = make([]byte, maxBinding+1) }),
		"binding taken away":                  signed(rec, own, nil),
		"gateway's signature for the agent's": change(func(r *Record) { r.Signature = whole.Signature }),
		"gateway's signature and binding":     marshal(t, func() Record { r := whole; r.Binding = good.Binding; return r }()),
		"signature of the binding": change(func(r *Record) {
			b, _, _ := parseBinding(r.Binding)
			r.KeyID, r.Signature, r.Binding = b.KeyID, b.Signature, nil
		}),
		"key id changed":              change(func(r *Record) { r.KeyID = "gateway" }),
		"no signature":                change(func(r *Record) { r.Signature = nil }),
		"another engine's record":     marshal(t, theirs),
		"another generation's record": marshal(t, bound(t, v, record("prefill-0", 6, 1, 0), own)),
		"another rank's record":       marshal(t, bound(t, v, record("prefill-0", 7, 2, 1), own)),
		"record of the day before":    marshal(t, longSigned),
		"truncated":                   marshal(t, good)[:100],
		"too large":                   make([]byte, MaxRecordBytes+1),
		"doubled field": func() []byte {
			p, n, _ := pairsWithout(marshal(t, good), "")
			return bytes.Join([][]byte{mapLen(n + 1), p, []byte("\xa3kid\xa0")}, nil)
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t, server, v, strings.ReplaceAll(name, " ", "-"))
			put(t, s, good, nil)
			if got, err := s.Engine(t.Context(), "prefill-0"); err != nil || len(got) != 1 {
				t.Fatalf("the true record: got %+v, %v; want it", got, err)
			}
			if err := s.db.Set(t.Context(), s.rankKey(rec.Incarnation, "0/0/0"), value, time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			before := s.Quarantined()
			if got, err := s.Engine(t.Context(), "prefill-0"); !errors.Is(err, ErrNotFound) {
				t.Fatalf("got %+v, %v; want ErrNotFound: an engine without a record is paired with nobody", got, err)
			}
			if n := s.Quarantined() - before; n != 1 {
				t.Errorf("%d values quarantined; want 1", n)
			}
			c, err := NewCache(s, CacheConfig{}, nil, quiet())
			if err != nil {
				t.Fatal(err)
			}
			c.note(Change{})
			if err := c.follow(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, ok := c.Engine("prefill-0"); ok {
				t.Errorf("a gateway's copy holds %+v", got)
			}
		})
	}
}

// Somebody who may write to Redis can bring back an older record of the same run. A gateway that has seen the newer one
// keeps it, and the agent's next renewal is there for all.
func TestFault43OlderRecordBroughtBack(t *testing.T) {
	v := newFakeVoucher("gateway")
	own := agentKey("prefill-0")
	s := store(t, redistest.Start(t), v, "back")
	old := record("prefill-0", 7, 1, 0)
	newer := later(old, time.Second)
	newer.Doorbell = "127.0.0.1:2"
	first := marshal(t, bound(t, v, old, own))
	c, err := NewCache(s, CacheConfig{}, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	read := func() Record {
		t.Helper()
		c.note(Change{})
		if err := c.follow(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, ok := c.Engine("prefill-0")
		if !ok || len(got) != 1 {
			t.Fatalf("got %+v; want one record", got)
		}
		return got[0]
	}
	put(t, s, bound(t, v, newer, own), nil)
	if got := read(); got.Doorbell != newer.Doorbell {
		t.Fatalf("got the doorbell %q; want the newer one", got.Doorbell)
	}
	if err := s.db.Set(t.Context(), s.rankKey(old.Incarnation, "0/0/0"), first, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if got := read(); got.Doorbell != newer.Doorbell {
		t.Errorf("got the doorbell %q; want the newer one", got.Doorbell)
	}
	if err := s.Put(t.Context(), bound(t, v, old, own)); !errors.Is(err, ErrStale) {
		t.Errorf("older record over the store: got %v; want ErrStale", err)
	}
	put(t, s, bound(t, v, later(newer, time.Second), own), nil)
	if got := read(); got.Doorbell != newer.Doorbell {
		t.Errorf("after a renewal: got the doorbell %q; want the newer one", got.Doorbell)
	}
}
