package tcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The handshake. The accepting side sends magic and a nonce; the dialling side answers with a nonce of its own, the
// session's number, its agent name, a proof that the name is its own, and one that it knows the
// secret of the other's blob; the accepting side proves the latter too. The secret itself is never sent, and a stranger
// who reaches the port gets a nonce and nothing else. A session ends those of the same agent with a lower number: what
// they had not landed yet never lands.
//
// The proof of the name needs both agents' keys, and so the accepting side believes it once it knows the dialling
// agent's record, which it does before it asks for a write. Until then the connection brings messages, which have codes
// of their own, lands nothing, and neither ends another session nor is ended by one.
const (
	magic        = "pdrk\x00\x04\x00\x00"
	nonceBytes   = 32
	helloBytes   = nonceBytes + 8 // the dialling side's nonce and session
	claimBytes   = sha256.Size
	secretBytes  = 32
	maxAgentName = 256 // bytes
)

// errName is the cause when a peer is not the agent that it says it is.
var errName = errors.New("peer does not prove its name")

// errSecret is the cause when a peer does not know the secret of the blob.
var errSecret = errors.New("peer does not know the blob's secret")

// greeting is what the dialling side says of a connection.
type greeting struct {
	agent   string // its own name
	session uint64 // grows with each Connect
	key     []byte // dialling side: under which it proves its name; nil: it has none
}

// tokens are what comes of one handshake. All but the claim only its two ends can compute.
type tokens struct {
	confirm []byte // proves the accepting side
	claim   claim  // to its name, of the dialling side
	word    []byte // what the writer keeps in its memory for the receiver to read: see memoryOffer
}

// proof is what only a holder of the secret can compute for this connection.
func proof(secret []byte, side, accepting, dialling string, a, d []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	for _, part := range [][]byte{[]byte(magic), []byte(side), []byte(accepting), []byte(dialling), a, d} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		mac.Write(n[:])
		mac.Write(part)
	}
	return mac.Sum(nil)
}

func tokensOf(secret []byte, accepting, dialling string, a, d []byte) tokens {
	return tokens{
		confirm: proof(secret, "accept", accepting, dialling, a, d),
		word:    proof(secret, "memory", accepting, dialling, a, d),
	}
}

// greet runs the dialling side of the handshake and returns the word of this connection.
func greet(conn io.ReadWriter, g greeting, peer string, secret []byte) ([]byte, error) {
	var hello [len(magic) + nonceBytes]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return nil, err
	}
	if string(hello[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: the other side speaks another protocol", errFrame)
	}
	accepted := hello[len(magic):]
	own := make([]byte, nonceBytes, helloBytes)
	if _, err := rand.Read(own); err != nil {
		return nil, err
	}
	own = binary.LittleEndian.AppendUint64(own, g.session)
	b := append([]byte(nil), own...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(g.agent)))
	b = append(b, g.agent...)
	name := make([]byte, claimBytes)
	if g.key != nil {
		name = proof(g.key, "name", peer, g.agent, accepted, own)
	}
	b = append(b, name...)
	b = append(b, proof(secret, "dial", peer, g.agent, accepted, own)...)
	if _, err := conn.Write(b); err != nil {
		return nil, err
	}
	answer := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, err
	}
	both := tokensOf(secret, peer, g.agent, accepted, own)
	if !hmac.Equal(answer, both.confirm) {
		return nil, errSecret
	}
	return both.word, nil
}

// admit runs the accepting side of the handshake up to its own proof (tokens.confirm), which the caller sends when the
// connection has its place.
func admit(conn io.ReadWriter, self string, secret []byte) (greeting, tokens, error) {
	fail := func(err error) (greeting, tokens, error) { return greeting{}, tokens{}, err }
	own := make([]byte, nonceBytes)
	if _, err := rand.Read(own); err != nil {
		return fail(err)
	}
	if _, err := conn.Write(append([]byte(magic), own...)); err != nil {
		return fail(err)
	}
	var head [helloBytes + 2]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return fail(err)
	}
	n := int(binary.LittleEndian.Uint16(head[helloBytes:]))
	if n == 0 || n > maxAgentName {
		return fail(fmt.Errorf("%w: agent name of %d bytes", errFrame, n))
	}
	rest := make([]byte, n+claimBytes+sha256.Size)
	if _, err := io.ReadFull(conn, rest); err != nil {
		return fail(err)
	}
	peer, theirs := string(rest[:n]), head[:helloBytes]
	if !hmac.Equal(rest[n+claimBytes:], proof(secret, "dial", self, peer, own, theirs)) {
		return fail(errSecret)
	}
	g := greeting{agent: peer, session: binary.LittleEndian.Uint64(theirs[nonceBytes:])}
	keys := tokensOf(secret, self, peer, own, theirs)
	keys.claim = claim{accepted: own, dialled: theirs, proof: rest[n : n+claimBytes]}
	return g, keys, nil
}
