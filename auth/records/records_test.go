package records

import (
	"crypto/ed25519"
	"testing"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func TestRecordsSignature(t *testing.T) {
	a, b := keytest.New(t, "a"), keytest.New(t, "b")
	trusted, err := keys.Trust(a)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(a, trusted)
	if err != nil {
		t.Fatal(err)
	}
	kid, sig, err := r.Sign([]byte("payload"))
	if err != nil || kid != "a" {
		t.Fatalf("got key %s, %v; want a", kid, err)
	}
	if err := r.Verify(kid, []byte("payload"), sig); err != nil {
		t.Error(err)
	}
	private, err := a.Ed25519()
	if err != nil {
		t.Fatal(err)
	}
	bare := ed25519.Sign(private, []byte("payload")) // a signature of the same key over something that is no record
	for name, err := range map[string]error{
		"other payload":     r.Verify(kid, []byte("Payload"), sig),
		"untrusted key":     r.Verify("b", []byte("payload"), sig),
		"no signature":      r.Verify(kid, []byte("payload"), nil),
		"signature of else": r.Verify(kid, []byte("payload"), bare),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(b, trusted); err == nil {
		t.Error("an own key that nobody trusts was accepted")
	}
	reader, err := New(nil, trusted)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := reader.Sign([]byte("payload")); err == nil {
		t.Error("a reader signed")
	}
}
