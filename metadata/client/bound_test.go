package client

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/refusal"
	"pdrouter/metadata"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// A token that is bound to a key writes nothing without this key.
func TestBoundTokenNeedsItsKey(t *testing.T) {
	s := store.NewMemory()
	v := metadatatest.NewVoucher("gateway")
	own, other := metadatatest.AgentKey("prefill-0"), metadatatest.AgentKey("prefill-1")
	var log bytes.Buffer
	parts := routestest.Parts(s, v, routestest.Callers{
		"bound":   {Subject: "agent", Engine: "prefill-0", Role: metadata.Prefill, Key: metadatatest.Public(own)},
		"unbound": {Subject: "agent", Engine: "prefill-0", Role: metadata.Prefill},
	})
	parts.Log = slog.New(slog.NewTextHandler(&log, nil))
	base := routestest.ServeParts(t, parts)
	url := base + "/metadata/v1/engines/prefill-0/ranks/0/0/0"
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	whole, err := rec.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(*metadata.Record)) metadata.Record {
		r := metadatatest.SignAs(t, rec, own)
		r.Payload = nil
		f(&r)
		return r
	}
	decode := rec
	decode.Role = metadata.Decode
	for _, c := range []struct {
		name, token string
		rec         metadata.Record
		reason      string
	}{
		{"not signed", "bound", rec, "bad_signature"},
		{"signed by another key", "bound", metadatatest.SignAs(t, rec, other), "bad_signature"},
		{"signed by the gateway", "bound", whole, "bad_signature"},
		{"another key's id", "bound", change(func(r *metadata.Record) { r.KeyID = metadatatest.KeyID(t, other) }), "bad_signature"},
		{"changed", "bound", change(func(r *metadata.Record) { r.Blob = []byte("other") }), "bad_signature"},
		{"a key that no token names", "unbound", metadatatest.SignAs(t, rec, own), "bad_signature"},
		{"another role", "bound", metadatatest.SignAs(t, decode, own), "wrong_role"},
	} {
		log.Reset()
		routestest.WantError(t, c.name, routestest.Send(t, "PUT", url, c.token, metadatatest.Marshal(t, c.rec)), 403, refusal.Insufficient)
		if !strings.Contains(log.String(), "subject=agent status=403 reason="+c.reason+" ") {
			t.Errorf("%s: the log says %q; want the reason %s", c.name, log.String(), c.reason)
		}
	}
	if _, err := s.Engine(t.Context(), "prefill-0"); !errors.Is(err, metadata.ErrNotFound) {
		t.Fatalf("the store: got %v; want nothing in it", err)
	}

	c := newClient(t, base, "bound", v)
	c.SignWith(own)
	if err := c.Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	got, err := c.Engine(t.Context(), "prefill-0")
	if err != nil || len(got) != 1 || got[0].KeyID != metadatatest.KeyID(t, own) || len(got[0].Binding) == 0 {
		t.Fatalf("read %+v, %v; want one record that its agent signed and a gateway bound", got, err)
	}
	if _, err := newClient(t, base, "bound", metadatatest.NewVoucher("stranger")).Engine(t.Context(), "prefill-0"); err == nil {
		t.Error("a reader that does not trust the gateway took the record")
	}
	if err := newClient(t, base, "bound", nil).Put(t.Context(), metadatatest.Later(rec, time.Second)); err == nil {
		t.Error("a client without the key wrote")
	}

	target := url + "?generation=7"
	proof := func(key ed25519.PrivateKey, inc metadata.Incarnation, rank metadata.Rank) string {
		return base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, metadata.Withdrawal(inc, rank)))
	}
	for name, p := range map[string]string{
		"none": "", "garbage": "!", "another key's": proof(other, rec.Incarnation, rec.Rank),
		"another run's": proof(own, metadata.Incarnation{Engine: "prefill-0", Generation: 6}, rec.Rank), "another rank's": proof(own, rec.Incarnation, metadata.Rank{TP: 1}),
		"the record's": base64.RawURLEncoding.EncodeToString(got[0].Signature),
	} {
		routestest.WantError(t, "proof: "+name, routestest.Send(t, "DELETE", target, "bound", nil, metadata.ProofHeader, p), 403, refusal.Insufficient)
	}
	if err := c.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Errorf("withdraw: %v", err)
	}
}

// A gateway without a key of its own still wants the proof; there is no word that it could add.
func TestBoundTokenAtAGatewayWithoutKeys(t *testing.T) {
	s := store.NewMemory()
	own := metadatatest.AgentKey("prefill-0")
	base := routestest.Serve(t, s, nil, routestest.Callers{"bound": {Engine: "prefill-0", Key: metadatatest.Public(own)}})
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	routestest.WantError(t, "not signed", routestest.Send(t, "PUT", base+"/metadata/v1/engines/prefill-0/ranks/0/0/0", "bound", metadatatest.Marshal(t, rec)), 403, refusal.Insufficient)
	c := newClient(t, base, "bound", nil)
	c.SignWith(own)
	if err := c.Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Engine(t.Context(), "prefill-0"); err != nil || len(got) != 1 || len(got[0].Binding) != 0 {
		t.Errorf("got %+v, %v; want the record as its agent signed it", got, err)
	}
}

// A binding is made anew at each renewal, so that no record outlives its own.
func TestBindingOutlivesItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		v := metadatatest.NewVoucher("gateway")
		own := metadatatest.AgentKey("prefill-0")
		h := routestest.Handler(t, routestest.Parts(s, v, routestest.Callers{"bound": {Engine: "prefill-0", Key: metadatatest.Public(own)}}))
		c, err := New(Config{URL: "http://gateway"}, func() (string, error) { return "bound", nil }, v, routestest.Transport(h))
		if err != nil {
			t.Fatal(err)
		}
		c.SignWith(own)
		var log bytes.Buffer
		p, err := NewPublisher(c, PublisherConfig{TTL: 5 * time.Minute}, slog.New(slog.NewTextHandler(&log, nil)), metadatatest.Record("prefill-0", 7, 1, 0))
		if err != nil {
			t.Fatal(err)
		}
		stop := metadatatest.Background(t, p.Run)
		<-p.Ready()
		for range 20 { // seven hours, more than any binding
			time.Sleep(21*time.Minute + 33*time.Second)
			recs, err := c.Engine(t.Context(), "prefill-0")
			if err != nil || len(recs) != 1 {
				t.Fatalf("got %d records, %v; want one", len(recs), err)
			}
			// Far in the future, it is the end of the binding that ends belief.
			if until := recs[0].Believed(time.Unix(1<<40, 0)); until.Before(recs[0].Expires) || until.After(recs[0].Expires.Add(3*time.Hour)) {
				t.Fatalf("bound until %v; the record ends at %v", until, recs[0].Expires)
			}
		}
		stop()
		if _, err := s.Engine(t.Context(), "prefill-0"); !errors.Is(err, metadata.ErrNotFound) {
			t.Errorf("after the end: got %v; want the record withdrawn", err)
		}
		if log.Len() > 0 {
			t.Errorf("the publisher says: %s", log.Bytes())
		}
	})
}
