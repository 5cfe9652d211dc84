package metadata

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/internal/redistest"
	"pdrouter/internal/refusal"
)

// agentKey returns the key of the agent of that name.
func agentKey(name string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%-32.32s", "agent of "+name)))
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// signAs returns the record as its agent signs it.
func signAs(t testing.TB, rec Record, key crypto.Signer) Record {
	t.Helper()
	rec, err := rec.SignAs(key)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// bound returns the record as a gateway keeps it that has checked its agent's signature.
func bound(t testing.TB, v Voucher, rec Record, key ed25519.PrivateKey) Record {
	t.Helper()
	rec, err := signAs(t, rec, key).Bind(v, public(key), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// fakeCallers takes tokens that are keys of this map, and lets each write and read as package auth would.
type fakeCallers map[string]Caller

func (f fakeCallers) Authorize(r *http.Request, a Access) (Caller, error) {
	c, ok := f[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	switch {
	case !ok:
		return Caller{}, fakeRefusal{http.StatusUnauthorized}
	case a.Action == Write && a.Engine != c.Engine, a.Apart != "":
		return c, fakeRefusal{http.StatusForbidden}
	}
	return c, nil
}

// gatewayOf returns the routes over a store, for these callers, and the address they are at.
func gatewayOf(t *testing.T, s Store, v Voucher, callers fakeCallers) string {
	t.Helper()
	return gatewayLogs(t, s, v, callers, quiet())
}

// gatewayLogs is gatewayOf with a log.
func gatewayLogs(t *testing.T, s Store, v Voucher, callers fakeCallers, log *slog.Logger) string {
	t.Helper()
	h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Authorizer: callers, Voucher: v, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// A token that is bound to a key writes nothing without this key.
func TestBoundTokenNeedsItsKey(t *testing.T) {
	s := NewMemory()
	v := newFakeVoucher("gateway")
	own, other := agentKey("prefill-0"), agentKey("prefill-1")
	var log bytes.Buffer
	base := gatewayLogs(t, s, v, fakeCallers{
		"bound":   {Subject: "agent", Engine: "prefill-0", Role: Prefill, Key: public(own)},
		"unbound": {Subject: "agent", Engine: "prefill-0", Role: Prefill},
	}, slog.New(slog.NewTextHandler(&log, nil)))
	url := base + "/metadata/v1/engines/prefill-0/ranks/0/0/0"
	rec := record("prefill-0", 7, 1, 0)
	whole, err := rec.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(*Record)) Record {
		r := signAs(t, rec, own)
		f(&r)
		return r
	}
	decode := rec
	decode.Role = Decode
	for _, c := range []struct {
		name, token string
		rec         Record
		reason      string
	}{
		{"not signed", "bound", rec, "bad_signature"},
		{"signed by another key", "bound", signAs(t, rec, other), "bad_signature"},
		{"signed by the gateway", "bound", whole, "bad_signature"},
		{"another key's id", "bound", change(func(r *Record) { r.KeyID = thumbprint(public(other)) }), "bad_signature"},
		{"changed", "bound", change(func(r *Record) { r.Blob = []byte("other") }), "bad_signature"},
		{"a key that no token names", "unbound", signAs(t, rec, own), "bad_signature"},
		{"another role", "bound", signAs(t, decode, own), "wrong_role"},
	} {
		log.Reset()
		wantError(t, c.name, send(t, "PUT", url, c.token, marshal(t, c.rec)), 403, refusal.Insufficient)
		if !strings.Contains(log.String(), "subject=agent status=403 reason="+c.reason+" ") {
			t.Errorf("%s: the log says %q; want the reason %s", c.name, log.String(), c.reason)
		}
	}
	if _, err := s.Engine(t.Context(), "prefill-0"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("the store: got %v; want nothing in it", err)
	}

	c := newClient(t, base, "bound", v)
	c.SignWith(own)
	if err := c.Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	got, err := c.Engine(t.Context(), "prefill-0")
	if err != nil || len(got) != 1 || got[0].KeyID != thumbprint(public(own)) || len(got[0].Binding) == 0 {
		t.Fatalf("read %+v, %v; want one record that its agent signed and a gateway bound", got, err)
	}
	if _, err := newClient(t, base, "bound", newFakeVoucher("stranger")).Engine(t.Context(), "prefill-0"); err == nil {
		t.Error("a reader that does not trust the gateway took the record")
	}
	if err := newClient(t, base, "bound", nil).Put(t.Context(), later(rec, time.Second)); err == nil {
		t.Error("a client without the key wrote")
	}

	target := url + "?generation=7"
	proof := func(key ed25519.PrivateKey, inc Incarnation, rank Rank) string {
		return base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, Withdrawal(inc, rank)))
	}
	for name, p := range map[string]string{
		"none": "", "garbage": "!", "another key's": proof(other, rec.Incarnation, rec.Rank),
		"another run's": proof(own, Incarnation{"prefill-0", 6}, rec.Rank), "another rank's": proof(own, rec.Incarnation, Rank{TP: 1}),
		"the record's": base64.RawURLEncoding.EncodeToString(got[0].Signature),
	} {
		wantError(t, "proof: "+name, send(t, "DELETE", target, "bound", nil, ProofHeader, p), 403, refusal.Insufficient)
	}
	if err := c.Delete(t.Context(), rec.Incarnation, rec.Rank); err != nil {
		t.Errorf("withdraw: %v", err)
	}
}

// A gateway without a key of its own still wants the proof; there is no word that it could add.
func TestBoundTokenAtAGatewayWithoutKeys(t *testing.T) {
	s := NewMemory()
	own := agentKey("prefill-0")
	base := gatewayOf(t, s, nil, fakeCallers{"bound": {Engine: "prefill-0", Key: public(own)}})
	rec := record("prefill-0", 7, 1, 0)
	wantError(t, "not signed", send(t, "PUT", base+"/metadata/v1/engines/prefill-0/ranks/0/0/0", "bound", marshal(t, rec)), 403, refusal.Insufficient)
	c := newClient(t, base, "bound", nil)
	c.SignWith(own)
	if err := c.Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Engine(t.Context(), "prefill-0"); err != nil || len(got) != 1 || len(got[0].Binding) != 0 {
		t.Errorf("got %+v, %v; want the record as its agent signed it", got, err)
	}
}

// An agent may encode as its library does and write fields that gateways do not know: what it signed reaches whoever
// reads, byte for byte.
func TestWhatAnAgentSignedIsKept(t *testing.T) {
	v := newFakeVoucher("gateway")
	own := agentKey("prefill-0")
	var m map[string]any
	if err := msgpack.Unmarshal(marshal(t, record("prefill-0", 7, 1, 0)), &m); err != nil {
		t.Fatal(err)
	}
	m["future"] = map[string]any{"x": 1}
	m["kid"] = thumbprint(public(own))
	var b bytes.Buffer
	enc := msgpack.NewEncoder(&b)
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(m); err != nil {
		t.Fatal(err)
	}
	payload, err := signedPart(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	body := replaceField(t, b.Bytes(), "sig", ed25519.Sign(own, append([]byte(agentContext), payload...)))

	s := redistest.Start(t)
	shared := store(t, s, v, "kept")
	base := gatewayOf(t, shared, v, fakeCallers{"bound": {Engine: "prefill-0", Key: public(own)}})
	if got := send(t, "PUT", base+"/metadata/v1/engines/prefill-0/ranks/0/0/0", "bound", body); got.status != http.StatusNoContent {
		t.Fatalf("got %d %s; want 204", got.status, got.body)
	}
	recs, err := newClient(t, base, "bound", v).Engine(t.Context(), "prefill-0")
	if err != nil || len(recs) != 1 {
		t.Fatalf("read %d records, %v; want one", len(recs), err)
	}
	if again, err := signedPart(recs[0].Encoded); err != nil || !bytes.Equal(again, payload) {
		t.Errorf("what was signed has changed, %v", err)
	}
	if err := recs[0].Verify(v); err != nil {
		t.Error(err)
	}
	other := bytes.Replace(recs[0].Encoded, []byte("future"), []byte("suture"), 1)
	if _, err := UnmarshalSigned(other, v); err == nil {
		t.Error("a changed unknown field verifies")
	}
}

// A binding is made anew at each renewal, so that no record outlives its own.
func TestBindingOutlivesItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewMemory()
		v := newFakeVoucher("gateway")
		own := agentKey("prefill-0")
		h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Authorizer: fakeCallers{"bound": {Engine: "prefill-0", Key: public(own)}}, Voucher: v, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewClient(ClientConfig{URL: "http://gateway"}, func() (string, error) { return "bound", nil }, v, handlerTransport{h})
		if err != nil {
			t.Fatal(err)
		}
		c.SignWith(own)
		var log bytes.Buffer
		p, err := NewPublisher(c, PublisherConfig{TTL: 5 * time.Minute}, slog.New(slog.NewTextHandler(&log, nil)), record("prefill-0", 7, 1, 0))
		if err != nil {
			t.Fatal(err)
		}
		stop := running(t, p.Run)
		<-p.Ready()
		for range 20 { // seven hours, more than any binding
			time.Sleep(21*time.Minute + 33*time.Second)
			recs, err := c.Engine(t.Context(), "prefill-0")
			if err != nil || len(recs) != 1 {
				t.Fatalf("got %d records, %v; want one", len(recs), err)
			}
			b, _, err := parseBinding(recs[0].Binding)
			if err != nil {
				t.Fatal(err)
			}
			if until := time.UnixMilli(b.Until); until.Before(recs[0].Expires) || until.After(recs[0].Expires.Add(3*time.Hour)) {
				t.Fatalf("bound until %v; the record ends at %v", until, recs[0].Expires)
			}
		}
		stop()
		if _, err := s.Engine(t.Context(), "prefill-0"); !errors.Is(err, ErrNotFound) {
			t.Errorf("after the end: got %v; want the record withdrawn", err)
		}
		if log.Len() > 0 {
			t.Errorf("the publisher says: %s", log.Bytes())
		}
	})
}

// handlerTransport carries requests to a handler without a network.
type handlerTransport struct{ h http.Handler }

func (t handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	t.h.ServeHTTP(w, r)
	return w.Result(), nil
}

// The largest record that an agent may send is still within bounds with its binding, or refused as too large.
func TestBoundRecordIsBounded(t *testing.T) {
	v := newFakeVoucher("gateway")
	own := agentKey("prefill-0")
	rec := record("prefill-0", 7, 1, 0)
	rec.Engine = strings.Repeat("e", MaxName)
	rec.Generation = 1<<64 - 1
	b, err := newBinding(v, rec, public(own), time.Now().Add(time.Hour))
	if err != nil || len(b) > maxBinding/2 {
		t.Fatalf("binding has %d bytes, %v; want at most %d", len(b), err, maxBinding/2)
	}
	url := gatewayOf(t, NewMemory(), v, fakeCallers{"bound": {Engine: "prefill-0", Key: public(own)}}) + "/metadata/v1/engines/prefill-0/ranks/0/0/0"
	rec = record("prefill-0", 7, 1, 0)
	unsigned := marshal(t, rec)
	pairs, n, err := pairsWithout(unsigned, "kid")
	if err != nil {
		t.Fatal(err)
	}
	pairs = append(pairs, append([]byte("\xa3kid\xd9\x2b"), thumbprint(public(own))...)...)
	room := MaxRecordBytes - len(mapLen(n+2)) - len(pairs) - 64 - 1 - len("\xa6future\xc6....") - 8 // all but a few bytes
	fill := append([]byte("\xa6future\xc6"), byte(room>>24), byte(room>>16), byte(room>>8), byte(room))
	body := bytes.Join([][]byte{mapLen(n + 2), pairs, fill, make([]byte, room)}, nil)
	payload, err := signedPart(body)
	if err != nil {
		t.Fatal(err)
	}
	body = replaceField(t, body, "sig", ed25519.Sign(own, append([]byte(agentContext), payload...)))
	if len(body) > MaxRecordBytes {
		t.Fatalf("body has %d bytes", len(body))
	}
	wantError(t, "no room for the binding", send(t, "PUT", url, "bound", body), 413, "too_large")
}

func FuzzBinding(f *testing.F) {
	v := newFakeVoucher("gateway")
	own := agentKey("prefill-0")
	rec := record("prefill-0", 7, 2, 1)
	good, err := newBinding(v, rec, public(own), time.UnixMilli(1<<42)) // the same in every process that fuzzes
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:50])
	f.Add([]byte{0x80})
	f.Add([]byte("\x81\xa3key\xc4\x20" + strings.Repeat("k", 32)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := rec
		r.Binding = b
		key, err := boundKey(v, r, time.Now())
		if err != nil {
			return
		}
		if !bytes.Equal(key, public(own)) {
			t.Fatalf("the key %x was bound by nobody", key)
		}
		got, _, err := parseBinding(b)
		want, _, _ := parseBinding(good)
		if diff := cmp.Diff(got, want); err != nil || diff != "" {
			t.Fatalf("(-got +want) %v:\n%s", err, diff)
		}
	})
}
