package auth

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"testing"
)

func TestEnrolment(t *testing.T) {
	newKey := func() *Key {
		k, err := GenerateKey(EdDSA)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	a, b := newKey(), newKey()
	trusted, err := NewKeys(a, b)
	if err != nil {
		t.Fatal(err)
	}
	enrolment := func(id string, own *Key, overlap ...*Key) [][]byte {
		t.Helper()
		r, err := NewRecords(own, trusted, overlap...)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := r.Enrolment(id)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	const id = "decode-0@1f"
	want, err := hkdf.Key(sha256.New, a.private.(ed25519.PrivateKey).Seed(), nil, "pdrouter enrolment v1\x00"+id, 32)
	if err != nil {
		t.Fatal(err)
	}
	one := enrolment(id, a)
	if len(one) != 1 || !bytes.Equal(one[0], want) {
		t.Errorf("keys are %x; want %x", one, want)
	}
	if again := enrolment(id, a); !bytes.Equal(again[0], one[0]) {
		t.Error("two gateways with one key derive different ones")
	}
	if next := enrolment("decode-0@20", a); bytes.Equal(next[0], one[0]) {
		t.Error("two generations of an engine have one key")
	}
	other := enrolment(id, b)
	if bytes.Equal(other[0], one[0]) {
		t.Error("two signing keys give one enrolment key")
	}
	both := enrolment(id, b, a)
	if len(both) != 2 || !bytes.Equal(both[0], other[0]) || !bytes.Equal(both[1], one[0]) {
		t.Errorf("keys are %x; want the own one and the other gateway's", both)
	}
	if none := enrolment(id, nil); len(none) != 0 {
		t.Errorf("a reader derives %x", none)
	}
	if _, err := NewRecords(a, trusted, b.Public()); err == nil {
		t.Error("a public key is taken to overlap with")
	}
	if _, err := NewRecords(nil, trusted, b); err == nil {
		t.Error("keys to overlap with are taken without one to sign with")
	}
}
