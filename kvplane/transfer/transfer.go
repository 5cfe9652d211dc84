// Package transfer has the types of one KV transfer that gateway, control routes and plane share: its id, its block lists, and the ranges of
// memory that are copied. It imports none of the packages that use it.
package transfer

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// ID names the hand-off of one request's KV from one engine to another. It is unguessable, new at every dispatch and
// serves once. The zero value names nothing.
type ID [16]byte

// NewID draws a new id.
func NewID() ID {
	var id ID
	rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	return id
}

// String returns 32 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Compare orders ids, as slices.SortFunc wants it.
func (id ID) Compare(other ID) int { return bytes.Compare(id[:], other[:]) }

// ParseID is the inverse of String. Capital digits and the zero id are refused.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*len(id) {
		return ID{}, fmt.Errorf("transfer id has %d characters; want %d hexadecimal digits", len(s), 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil || id.String() != s || id == (ID{}) {
		return ID{}, fmt.Errorf("transfer id %q is not %d lower-case hexadecimal digits", s, 2*len(id))
	}
	return id, nil
}
