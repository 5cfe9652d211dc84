package metadata

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// keyed returns the record with a key of its own, and what opens what is sealed to it.
func keyed(t *testing.T, rec Record) (Record, func(Record, []byte) ([]byte, error)) {
	t.Helper()
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rec.Key = private.PublicKey().Bytes()
	return rec, func(of Record, public []byte) ([]byte, error) {
		if !bytes.Equal(of.Key, rec.Key) {
			return nil, errors.New("another record")
		}
		peer, err := ecdh.X25519().NewPublicKey(public)
		if err != nil {
			return nil, err
		}
		return private.ECDH(peer)
	}
}

// TestFault41ReplayedRecordTellsNoKeys: somebody who has stolen an engine's bound token, and read its signed record with it,
// sends that record to a gateway that has forgotten it. It is taken, being the engine's, but the keys in the answer are
// sealed to the engine.
func TestFault41ReplayedRecordTellsNoKeys(t *testing.T) {
	own := agentKey("prefill-0")
	v := fakeEnroller{newFakeVoucher("gateway")}
	callers := fakeCallers{"bound": {Engine: "prefill-0", Role: Prefill, Key: public(own)}}
	at := "/metadata/v1/engines/prefill-0/ranks/0/0/0"
	rec, agree := keyed(t, record("prefill-0", 7, 1, 0))
	rec.Published = time.Now().UTC().Add(-119 * time.Minute)
	rec.Expires = rec.Published.Add(time.Minute)

	first := gatewayOf(t, NewMemory(), v, callers)
	c := newClient(t, first, "bound", nil)
	c.SignWith(own)
	var keys [][]byte
	c.Enrolled(func(_ Incarnation, e Enrolment) { keys = e.Keys }, agree)
	if err := c.Put(t.Context(), rec); err != nil || len(keys) != 2 || string(keys[0]) != "secret key of prefill-0@7" {
		t.Fatalf("the engine itself: %v, %d keys", err, len(keys))
	}
	stolen := send(t, "GET", first+at, "bound", nil, "Accept", contentType).body

	got := send(t, "PUT", gatewayOf(t, NewMemory(), v, callers)+at, "bound", stolen)
	if got.status != http.StatusOK || bytes.Contains(got.body, []byte("secret")) {
		t.Errorf("replayed: got %d %q; want it taken, and no key told", got.status, got.body)
	}
	thief, open := keyed(t, rec)
	thief.Signature = nil
	for name, agree := range map[string]func(Record, []byte) ([]byte, error){
		"without a key": nil, "with a key of the thief's": func(_ Record, public []byte) ([]byte, error) { return open(thief, public) },
	} {
		if e, err := unmarshalEnrolment(got.body, rec, agree); err == nil || len(e.Keys) > 0 {
			t.Errorf("%s: it is opened, %v", name, e)
		}
	}
	if e, err := unmarshalEnrolment(got.body, rec, agree); err != nil || len(e.Keys) != 2 {
		t.Errorf("by the engine: %v, %v", e, err)
	}
	other := rec
	other.Rank.TP = 1
	if _, err := unmarshalEnrolment(got.body, other, agree); err == nil {
		t.Error("what is sealed to one rank is opened for another")
	}

	// An agent that is bound to a key and names none to seal to is told nothing, and where that would open the engine, refused.
	base := gatewayOf(t, NewMemory(), v, callers)
	keyless := signAs(t, record("prefill-0", 8, 1, 0), own)
	wantError(t, "kvplane without a key", send(t, "PUT", base+at, "bound", marshal(t, keyless)), http.StatusBadRequest, "no_key")
	keyless.Connector = "vllm-nixl-push"
	if got := send(t, "PUT", base+at, "bound", marshal(t, signAs(t, keyless, own))); got.status != http.StatusNoContent || len(got.body) != 0 {
		t.Errorf("another connector without a key: got %d %q", got.status, got.body)
	}
	low, _ := keyed(t, record("prefill-0", 9, 1, 0))
	low.Key = make([]byte, keyBytes) // every secret with it is zero
	wantError(t, "a key of low order", send(t, "PUT", base+at, "bound", marshal(t, signAs(t, low, own))), http.StatusBadRequest, "bad_record")
}

// TestSealedEnrolmentIsNotTouched: a changed box, and one in which nothing is, are errors, not an enrolment without keys.
func TestSealedEnrolmentIsNotTouched(t *testing.T) {
	rec, agree := keyed(t, record("prefill-0", 7, 1, 0))
	answer := func(plain []byte, change func(*sealedBody)) []byte {
		body, err := seal(rec, plain)
		if err != nil {
			t.Fatal(err)
		}
		change(&body)
		b, err := msgpack.Marshal(&enrolmentBody{Seal: &body})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good, _ := msgpack.Marshal(&enrolmentBody{Keys: [][]byte{[]byte("key")}, Now: 1})
	empty, _ := msgpack.Marshal(&enrolmentBody{Now: 1})
	if e, err := unmarshalEnrolment(answer(good, func(*sealedBody) {}), rec, agree); err != nil || len(e.Keys) != 1 {
		t.Fatalf("untouched: %v, %v", e, err)
	}
	for name, b := range map[string][]byte{
		"a bit of the box":   answer(good, func(s *sealedBody) { s.Box[3] ^= 1 }),
		"half the box":       answer(good, func(s *sealedBody) { s.Box = s.Box[:8] }),
		"no box":             answer(good, func(s *sealedBody) { s.Box = nil }),
		"another key":        answer(good, func(s *sealedBody) { s.Ephemeral = slices.Clone(rec.Key) }),
		"half a key":         answer(good, func(s *sealedBody) { s.Ephemeral = s.Ephemeral[:16] }),
		"nothing in the box": answer(empty, func(*sealedBody) {}),
	} {
		if e, err := unmarshalEnrolment(b, rec, agree); err == nil {
			t.Errorf("%s: got %v", name, e)
		}
	}
}
