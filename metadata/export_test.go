package metadata

import (
	"bytes"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

// What the tests of signatures and bindings forge with.
const (
	AgentContext = agentContext
	FewKeys      = fewKeys
	MaxBinding   = maxBinding
	PairReasons  = pairReasons
)

// They are functions of this package.
var (
	BoundKey     = boundKey
	NewBinding   = newBinding
	ParseBinding = parseBinding
)

// Sealed returns an envelope of that payload.
func Sealed(t testing.TB, payload []byte, kid string, sig, binding []byte) []byte {
	t.Helper()
	b, err := msgpack.Marshal(&envelope{Payload: payload, KeyID: kid, Signature: sig, Binding: binding})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ChangePayload changes the payload of an envelope and leaves who vouches for it.
func ChangePayload(t testing.TB, b []byte, change func([]byte) []byte) []byte {
	t.Helper()
	e, err := unseal(b, MaxRecordBytes)
	if err != nil {
		t.Fatal(err)
	}
	return Sealed(t, change(bytes.Clone(e.Payload)), e.KeyID, e.Signature, e.Binding)
}

// ReplaceField replaces the value of one field of an encoded map and leaves all other bytes as they are.
func ReplaceField(t testing.TB, b []byte, name string, value any) []byte {
	t.Helper()
	s := scanner{b: b}
	n, err := s.mapHead()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		key, err := s.text()
		if err != nil {
			t.Fatal(err)
		}
		start := s.pos
		if err := s.value(1); err != nil {
			t.Fatal(err)
		}
		if key == name {
			enc, err := msgpack.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			return bytes.Join([][]byte{b[:start], enc, b[s.pos:]}, nil)
		}
	}
	t.Fatalf("no field %s", name)
	return nil
}
