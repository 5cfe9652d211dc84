package records

import (
	"testing"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

// TestDomainsAreSeparate offers the signature of each domain for the same payload in every other: no record passes for a ticket, and
// no ticket for a record. The keys are the same in all.
func TestDomainsAreSeparate(t *testing.T) {
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := keys.Trust(key)
	if err != nil {
		t.Fatal(err)
	}
	records, err := New(key, trusted)
	if err != nil {
		t.Fatal(err)
	}
	type domain interface {
		Sign(payload []byte) (keyID string, signature []byte, err error)
		Verify(keyID string, payload, signature []byte) error
	}
	domains := map[string]domain{"record": records, "fact": records.Shared(), "ticket": records.Tickets()}
	payload := []byte("x")
	for of, d := range domains {
		id, signature, err := d.Sign(payload)
		if err != nil {
			t.Fatal(err)
		}
		for as, other := range domains {
			if err := other.Verify(id, payload, signature); (err == nil) != (of == as) {
				t.Errorf("the signature of a %s as that of a %s: %v", of, as, err)
			}
		}
		if d.Verify("other", payload, signature) == nil {
			t.Errorf("%s: the signature of another key is taken", of)
		}
	}
	// The context of one domain, put into the payload of another, does not make up for it.
	id, signature, err := records.Sign(append([]byte(ticketContext), payload...))
	if err != nil {
		t.Fatal(err)
	}
	if records.Tickets().Verify(id, payload, signature) == nil {
		t.Error("a record whose payload begins as that of a ticket passes for one")
	}
}

// TestWithdrawnKeyChecksNothing: a domain goes by the keys that are trusted now.
func TestWithdrawnKeyChecksNothing(t *testing.T) {
	key, other := keytest.New(t, "k1"), keytest.New(t, "k2")
	dir := t.TempDir()
	for _, k := range []*keys.Key{key, other} {
		if _, _, err := keys.Write(dir, k); err != nil {
			t.Fatal(err)
		}
	}
	trusted, err := keys.LoadTrusted(dir)
	if err != nil {
		t.Fatal(err)
	}
	records, err := New(key, trusted)
	if err != nil {
		t.Fatal(err)
	}
	id, signature, err := records.Tickets().Sign([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := records.Tickets().Verify(id, []byte("x"), signature); err != nil {
		t.Error(err)
	}
	keytest.Remove(t, dir, key)
	if err := trusted.Reload(); err != nil {
		t.Fatal(err)
	}
	if records.Tickets().Verify(id, []byte("x"), signature) == nil {
		t.Error("a key that was withdrawn checks a ticket")
	}
}
