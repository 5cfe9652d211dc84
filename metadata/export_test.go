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
	CheckMaps    = checkMaps
	MapLen       = mapLen
	NewBinding   = newBinding
	PairsWithout = pairsWithout
	ParseBinding = parseBinding
	SignedPart   = signedPart
)

// WithBinding returns the record with this binding instead of its own.
func (r Record) WithBinding(b []byte) Record { return r.withBinding(b) }

// ReplaceField replaces the value of one field and leaves all other bytes as they are.
func ReplaceField(t *testing.T, b []byte, name string, value any) []byte {
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
