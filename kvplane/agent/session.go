package agent

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

// codeBytes is the length of the code that every message ends in.
const codeBytes = 16

// sessionContext begins what a session's keys are derived from, so that they are keys of nothing else.
const sessionContext = "pdrouter kvplane session v1\x00"

// session is what two agents have in common: a key for each direction that only the two can compute. The keys hang on
// the names, the generations and the public keys of both, so that nothing said in another session, by another
// generation or in the other direction passes for a message of this one.
type session struct {
	out, in hash.Hash // HMAC-SHA256; used again for each message
	sum     [sha256.Size]byte
}

func newSession(agree transport.Agreement, self, peer metadata.Record) (*session, error) {
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
	s := &session{}
	for _, d := range []struct {
		code     *hash.Hash
		from, to metadata.Record
	}{{&s.out, self, peer}, {&s.in, peer, self}} {
		key, err := hkdf.Key(sha256.New, secret, nil, direction(d.from, d.to), sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("kvplane: agent %s: %w", peer.Agent, err)
		}
		*d.code = hmac.New(sha256.New, key)
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

// sign appends the code of a message to it.
func (s *session) sign(message []byte) []byte {
	return append(message, s.code(s.out, message)...)
}

// verify says whether a message ends in the code that only the peer could make.
func (s *session) verify(message []byte) bool {
	n := len(message) - codeBytes
	return n >= 0 && hmac.Equal(s.code(s.in, message[:n]), message[n:])
}

// code is valid until the next call.
func (s *session) code(h hash.Hash, message []byte) []byte {
	h.Reset()
	h.Write(message) // never fails
	return h.Sum(s.sum[:0])[:codeBytes]
}

// session returns what this agent has in common with a peer. It is computed once for each peer.
func (w *writer) session(p *peer) (*session, error) {
	if p.session == nil && p.keyless == nil {
		p.session, p.keyless = newSession(w.host.agree, w.self, p.record)
	}
	return p.session, p.keyless
}

// verified says whether a peer's message is its own.
func (w *writer) verified(p *peer, message []byte) bool {
	s, err := w.session(p)
	return err == nil && s.verify(message)
}
