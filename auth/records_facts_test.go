package auth

import "testing"

// TestFactsAreNoRecords has a signature of the one offered for the other.
func TestFactsAreNoRecords(t *testing.T) {
	key, err := GenerateKey(EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := NewKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	records, err := NewRecords(key, trusted)
	if err != nil {
		t.Fatal(err)
	}
	facts := records.Facts()
	id, ofFact, err := facts.Sign([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	_, ofRecord, err := records.Sign([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := facts.Verify(id, []byte("x"), ofFact); err != nil {
		t.Errorf("own: %v", err)
	}
	if facts.Verify(id, []byte("x"), ofRecord) == nil || records.Verify(id, []byte("x"), ofFact) == nil || facts.Verify("other", []byte("x"), ofFact) == nil {
		t.Error("a signature of something else is taken")
	}
}
