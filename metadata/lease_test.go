package metadata

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/redistest"
)

// TestFault69SkewedPublishers: a lease is a duration, which each store and each copy counts on its own monotonic clock.
// A publisher whose clock is an hour off is kept exactly as long as any other, and so is one whose clock is set.
func TestFault69SkewedPublishers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVoucher("gateway")
		own := agentKey("prefill-0")
		for _, off := range []time.Duration{-time.Hour, 0, time.Hour} {
			s := NewMemory()
			h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Voucher: v, Log: quiet(), Authorizer: fakeCallers{"bound": {Engine: "prefill-0", Key: public(own)}}})
			if err != nil {
				t.Fatal(err)
			}
			c, err := NewClient(ClientConfig{URL: "http://gateway"}, func() (string, error) { return "bound", nil }, v, handlerTransport{h})
			if err != nil {
				t.Fatal(err)
			}
			c.SignWith(own)
			copies, err := NewCache(s, CacheConfig{}, nil, quiet())
			if err != nil {
				t.Fatal(err)
			}
			stop := running(t, copies.Run)
			if err := c.Put(t.Context(), later(record("prefill-0", 7, 1, 0), off)); err != nil { // for a minute
				t.Fatalf("clock off by %v: %v", off, err)
			}
			time.Sleep(59 * time.Second)
			recs, err := c.Engine(t.Context(), "prefill-0")
			_, copied := copies.Engine("prefill-0")
			if err != nil || len(recs) != 1 || !copied {
				t.Errorf("clock off by %v: after 59 s the store has %d records, %v; a gateway's copy has it: %v", off, len(recs), err, copied)
			}
			time.Sleep(2 * time.Second)
			_, copied = copies.Engine("prefill-0")
			if _, err := c.Engine(t.Context(), "prefill-0"); !errors.Is(err, ErrNotFound) || copied {
				t.Errorf("clock off by %v: after 61 s: %v; a gateway's copy has it: %v", off, err, copied)
			}
			stop()
		}
	})
}

// TestFault69ClockOfThePublisherIsSet: the wall clock goes back by an hour, or ahead, between two renewals. The newer record
// is the newer one.
func TestFault69ClockOfThePublisherIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, off := range []time.Duration{-time.Hour, time.Hour} {
			s := NewMemory()
			p, err := NewPublisher(s, PublisherConfig{}, quiet(), record("prefill-0", 7, 1, 0))
			if err != nil {
				t.Fatal(err)
			}
			p.recs[0].Published = time.Now().UTC().Add(-off) // as the clock said before it was set
			stop := running(t, p.Run)
			<-p.Ready()
			for range 10 {
				time.Sleep(time.Minute)
				recs, err := s.Engine(t.Context(), "prefill-0")
				if err != nil || len(recs) != 1 || recs[0].Lifetime() != 30*time.Second {
					t.Fatalf("clock set by %v: got %+v, %v; want one record for 30 s", off, recs, err)
				}
			}
			stop()
		}
	})
}

// TestFault69SkewedGateways: the gateway that binds a record and the one that reads it differ by two hours.
func TestFault69SkewedGateways(t *testing.T) {
	v := newFakeVoucher("gateway")
	own := agentKey("prefill-0")
	h := &Handler{voucher: v, cfg: HandlerConfig{}.withDefaults()}
	for _, off := range []time.Duration{-2 * time.Hour, -time.Hour, time.Hour, 2 * time.Hour} {
		rec := later(record("prefill-0", 7, 1, 0), off)
		rec, err := h.vouch(signAs(t, rec, own), Caller{Key: public(own)}, time.Now().Add(off))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := UnmarshalSigned(marshal(t, rec), v); err != nil {
			t.Errorf("clocks differ by %v: %v", off, err)
		}
	}
}

// monotonic says whether a time has a reading of the monotonic clock, which its string shows.
func monotonic(t time.Time) bool { return strings.Contains(t.String(), " m=") }

// TestFault69LeasesEndOnTheMonotonicClock: what a lease's end is compared with has the reading of the clock that nobody sets.
func TestFault69LeasesEndOnTheMonotonicClock(t *testing.T) {
	s := NewMemory()
	rec := later(record("prefill-0", 7, 1, 0), -time.Hour)
	put(t, s, rec, nil)
	until := s.engines["prefill-0"].ranks[rec.Rank].until
	if !monotonic(until) {
		t.Errorf("the store's lease ends at %v; want a monotonic reading in it", until)
	}
	c, err := NewCache(s, CacheConfig{}, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	c.note(Change{})
	if err := c.follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := (*c.copies.Load())["prefill-0"]; e == nil || !monotonic(e.until[0]) {
		t.Errorf("the copy's lease ends at %+v; want a monotonic reading in it", e)
	}
}

// TestFault39ReplayAcrossGateways captures what an agent sends, and sends it again: to the gateway that had it and to another
// one over the same store, before and after the record was renewed, withdrawn, or published by a newer run.
func TestFault39ReplayAcrossGateways(t *testing.T) {
	server := redistest.Start(t)
	v := newFakeVoucher("gateway")
	own := agentKey("prefill-0")
	callers := fakeCallers{"bound": {Engine: "prefill-0", Key: public(own)}, "unbound": {Engine: "prefill-0"}}
	for _, token := range []string{"bound", "unbound"} {
		at := func(rec Record) []byte {
			if token == "bound" {
				rec = signAs(t, rec, own)
			}
			return marshal(t, rec)
		}
		one, two := store(t, server, v, token), store(t, server, v, token)
		const path = "/metadata/v1/engines/prefill-0/ranks/0/0/0"
		first, second := gatewayOf(t, one, v, callers)+path, gatewayOf(t, two, v, callers)+path
		held := func() string {
			recs, err := two.Engine(t.Context(), "prefill-0")
			if errors.Is(err, ErrNotFound) {
				return "nothing"
			}
			if err != nil || len(recs) != 1 {
				t.Fatalf("%s: got %d records, %v", token, len(recs), err)
			}
			return string(marshal(t, recs[0]))
		}
		rec := record("prefill-0", 7, 1, 0)
		captured, older := at(rec), at(later(record("prefill-0", 6, 1, 0), time.Minute))
		replay := func(when string) {
			t.Helper()
			before := held()
			for name, url := range map[string]string{"the same gateway": first, "another gateway": second} {
				wantError(t, token+", "+when+", at "+name, send(t, "PUT", url, token, captured), http.StatusConflict, "stale")
				wantError(t, token+", "+when+", older run at "+name, send(t, "PUT", url, token, older), http.StatusConflict, "stale")
			}
			if held() != before {
				t.Errorf("%s, %s: the store has changed", token, when)
			}
		}
		accept := func(what string, got exchange) {
			t.Helper()
			if got.status != http.StatusNoContent {
				t.Fatalf("%s: %s: got %d %s; want 204", token, what, got.status, got.body)
			}
		}
		accept("put", send(t, "PUT", first, token, captured))
		replay("at once")
		accept("renewal", send(t, "PUT", second, token, at(later(rec, time.Second))))
		replay("after a renewal")
		client := newClient(t, first[:len(first)-len(path)], token, v)
		if token == "bound" {
			client.SignWith(own)
		}
		if err := client.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
			t.Fatal(err)
		}
		replay("after it was withdrawn")
		accept("newer run", send(t, "PUT", first, token, at(record("prefill-0", 8, 1, 0))))
		replay("after a newer run")
	}
}
