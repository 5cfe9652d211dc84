package wire

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"

	"pdrouter/kvplane/internal/varint"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// MACBytes is the length of the MAC at the end of every message.
const MACBytes = 16

// sessionContext begins what a session's keys are derived from, so that they are keys of nothing else.
const sessionContext = "pdrouter kvplane session v1\x00"

// Session is what two agents have in common: a key for each direction that only the two can compute. The keys depend on
// the names, the generations and the public keys of both, so that nothing said in another session, by another
// generation or in the other direction passes for a message of this one.
type Session struct {
	out, in hash.Hash // HMAC-SHA256; used again for each message
	sum     [sha256.Size]byte
}

// NewSession computes the keys of both directions from the own secret and the records of both. It fails if one of them has no key.
func NewSession(agree transport.Agreement, self, peer metadata.Record) (*Session, error) {
	if len(self.Key) == 0 || agree == nil {
		return nil, fmt.Errorf("kvplane: agent %s: %w", self.Agent, transport.ErrNoKey)
	}
	if len(peer.Key) == 0 {
		return nil, fmt.Errorf("kvplane: agent %s: %w", peer.Agent, transport.ErrNoKey)
	}
	secret, err := agree(peer.Key)
	if err != nil {
		return nil, fmt.Errorf("kvplane: agent %s: %w: %w", peer.Agent, transport.ErrNoKey, err)
	}
	s := &Session{}
	for _, d := range []struct {
		mac      *hash.Hash
		from, to metadata.Record
	}{{&s.out, self, peer}, {&s.in, peer, self}} {
		key, err := hkdf.Key(sha256.New, secret, nil, direction(d.from, d.to), sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("kvplane: agent %s: %w", peer.Agent, err)
		}
		*d.mac = hmac.New(sha256.New, key)
	}
	return s, nil
}

// direction names one direction of a session.
func direction(from, to metadata.Record) string {
	b := []byte(sessionContext)
	for _, r := range [...]metadata.Record{from, to} {
		b = varint.AppendText(b, r.Engine)
		b = binary.AppendUvarint(b, r.Generation)
		b = varint.AppendText(b, r.Agent)
		b = append(b, r.Key...)
	}
	return string(b)
}

// AppendMAC appends the MAC of a message to it.
func (s *Session) AppendMAC(message []byte) []byte {
	return append(message, s.mac(s.out, message)...)
}

// Verify says whether a message ends in the MAC that only the peer can compute.
func (s *Session) Verify(message []byte) bool {
	n := len(message) - MACBytes
	return n >= 0 && hmac.Equal(s.mac(s.in, message[:n]), message[n:])
}

// mac is valid until the next call.
func (s *Session) mac(h hash.Hash, message []byte) []byte {
	h.Reset()
	h.Write(message) // never fails
	return h.Sum(s.sum[:0])[:MACBytes]
}
