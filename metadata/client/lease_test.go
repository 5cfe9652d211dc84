package client

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// TestFault69SkewedPublishers: a lease is a duration, which each store and each copy counts on its own monotonic clock.
// A publisher whose clock is an hour off is kept exactly as long as any other, and so is one whose clock is set.
func TestFault69SkewedPublishers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := metadatatest.NewVoucher("gateway")
		own := metadatatest.AgentKey("prefill-0")
		for _, off := range []time.Duration{-time.Hour, 0, time.Hour} {
			s := store.NewMemory()
			h := routestest.Handler(t, routestest.Parts(s, v, routestest.Callers{"bound": {Engine: "prefill-0", Key: metadatatest.Public(own)}}))
			c, err := New(Config{URL: "http://gateway"}, func() (string, error) { return "bound", nil }, v, routestest.Transport(h))
			if err != nil {
				t.Fatal(err)
			}
			c.SignWith(own)
			copies, err := cache.New(s, cache.Config{}, metadatatest.Quiet())
			if err != nil {
				t.Fatal(err)
			}
			stop := metadatatest.Background(t, copies.Run)
			if err := c.Put(t.Context(), metadatatest.Later(metadatatest.Record("prefill-0", 7, 1, 0), off)); err != nil { // for a minute
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
			if _, err := c.Engine(t.Context(), "prefill-0"); !errors.Is(err, metadata.ErrNotFound) || copied {
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
			s := store.NewMemory()
			p, err := NewPublisher(s, PublisherConfig{}, metadatatest.Quiet(), metadatatest.Record("prefill-0", 7, 1, 0))
			if err != nil {
				t.Fatal(err)
			}
			p.recs[0].Published = time.Now().UTC().Add(-off) // as the clock said before it was set
			stop := metadatatest.Background(t, p.Run)
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

// TestFault39ReplayAcrossGateways captures what an agent sends, and sends it again: to the gateway that had it and to another
// one over the same store, before and after the record was renewed, withdrawn, or published by a newer run.
func TestFault39ReplayAcrossGateways(t *testing.T) {
	server := redistest.Start(t)
	v := metadatatest.NewVoucher("gateway")
	own := metadatatest.AgentKey("prefill-0")
	callers := routestest.Callers{"bound": {Engine: "prefill-0", Key: metadatatest.Public(own)}, "unbound": {Engine: "prefill-0"}}
	for _, token := range []string{"bound", "unbound"} {
		at := func(rec metadata.Record) []byte {
			if token == "bound" {
				rec = metadatatest.SignAs(t, rec, own)
			}
			return metadatatest.Marshal(t, rec)
		}
		one, two := metadatatest.RedisAt(t, server, v, token), metadatatest.RedisAt(t, server, v, token)
		const path = "/metadata/v1/engines/prefill-0/ranks/0/0/0"
		first, second := routestest.Serve(t, one, v, callers)+path, routestest.Serve(t, two, v, callers)+path
		held := func() string {
			recs, err := two.Engine(t.Context(), "prefill-0")
			if errors.Is(err, metadata.ErrNotFound) {
				return "nothing"
			}
			if err != nil || len(recs) != 1 {
				t.Fatalf("%s: got %d records, %v", token, len(recs), err)
			}
			return string(metadatatest.Marshal(t, recs[0]))
		}
		rec := metadatatest.Record("prefill-0", 7, 1, 0)
		captured, older := at(rec), at(metadatatest.Later(metadatatest.Record("prefill-0", 6, 1, 0), time.Minute))
		replay := func(when string) {
			t.Helper()
			before := held()
			for name, url := range map[string]string{"the same gateway": first, "another gateway": second} {
				routestest.WantError(t, token+", "+when+", at "+name, routestest.Send(t, "PUT", url, token, captured), http.StatusConflict, "stale")
				routestest.WantError(t, token+", "+when+", older run at "+name, routestest.Send(t, "PUT", url, token, older), http.StatusConflict, "stale")
			}
			if held() != before {
				t.Errorf("%s, %s: the store has changed", token, when)
			}
		}
		accept := func(what string, got routestest.Exchange) {
			t.Helper()
			if got.Status != http.StatusNoContent {
				t.Fatalf("%s: %s: got %d %s; want 204", token, what, got.Status, got.Body)
			}
		}
		accept("put", routestest.Send(t, "PUT", first, token, captured))
		replay("at once")
		accept("renewal", routestest.Send(t, "PUT", second, token, at(metadatatest.Later(rec, time.Second))))
		replay("after a renewal")
		client := newClient(t, first[:len(first)-len(path)], token, v)
		if token == "bound" {
			client.SignWith(own)
		}
		if err := client.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
			t.Fatal(err)
		}
		replay("after it was withdrawn")
		accept("newer run", routestest.Send(t, "PUT", first, token, at(metadatatest.Record("prefill-0", 8, 1, 0))))
		replay("after a newer run")
	}
}
