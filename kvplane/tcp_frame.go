package kvplane

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame is a header of frameBytes, little-endian, and length bytes of body.
//
//	kind 1 | 3 zero bytes | length uint32 | seq uint64 | address uint64
//
// Writes of one connection are numbered from 1 and sent one after the other; messages may stand between their chunks.
type frame struct {
	kind    frameKind
	length  uint32
	seq     uint64 // chunk, end, answer: the write's number on this connection
	address uint64 // chunk: where the body goes; end: bytes of the whole write
}

type frameKind uint8

const (
	frameMessage frameKind = iota + 1 // body: the message
	frameChunk                        // body: bytes to land at address
	frameEnd                          // body: the write's notification, may be empty
	frameAnswer                       // from the receiver: every byte of write seq has landed
)

const (
	frameBytes = 24
	maxChunk   = 256 << 10 // bytes of a chunk; messages wait no longer than one chunk
)

// errFrame is the cause when a peer sent what this protocol does not allow.
var errFrame = errors.New("bad frame")

func (f frame) append(b []byte) []byte {
	b = append(b, byte(f.kind), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, f.length)
	b = binary.LittleEndian.AppendUint64(b, f.seq)
	return binary.LittleEndian.AppendUint64(b, f.address)
}

// readFrame reads one header into scratch, which has frameBytes bytes.
func readFrame(r io.Reader, scratch []byte) (frame, error) {
	if _, err := io.ReadFull(r, scratch); err != nil {
		return frame{}, err
	}
	if scratch[1]|scratch[2]|scratch[3] != 0 {
		return frame{}, fmt.Errorf("%w: padding is not zero", errFrame)
	}
	return frame{
		kind:    frameKind(scratch[0]),
		length:  binary.LittleEndian.Uint32(scratch[4:]),
		seq:     binary.LittleEndian.Uint64(scratch[8:]),
		address: binary.LittleEndian.Uint64(scratch[16:]),
	}, nil
}

// The handshake. Whoever accepts sends tcpMagic and a nonce; whoever dialled answers with a nonce of its own, the
// session's number, its agent name and a proof that it knows the secret of the other's blob; the accepting side proves
// the same. The secret itself is never sent, and a stranger who reaches the port gets a nonce and nothing else. A
// session ends those of the same agent with a lower number: what they had not landed yet never lands.
const (
	tcpMagic     = "pdrk\x00\x01\x00\x00"
	nonceBytes   = 32
	helloBytes   = nonceBytes + 8 // the dialling side's nonce and session
	secretBytes  = 32
	maxAgentName = 256 // bytes
)

// errSecret is the cause when a peer does not know the secret of the blob.
var errSecret = errors.New("peer does not know the blob's secret")

// proof is what only a holder of the secret can compute for this connection.
func proof(secret []byte, side, accepting, dialling string, a, d []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	for _, part := range [][]byte{[]byte(tcpMagic), []byte(side), []byte(accepting), []byte(dialling), a, d} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		mac.Write(n[:])
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// greet runs the dialling side of the handshake.
func greet(conn io.ReadWriter, self, peer string, secret []byte, session uint64) error {
	var hello [len(tcpMagic) + nonceBytes]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return err
	}
	if string(hello[:len(tcpMagic)]) != tcpMagic {
		return fmt.Errorf("%w: the other side speaks another protocol", errFrame)
	}
	accepted := hello[len(tcpMagic):]
	own := make([]byte, nonceBytes, helloBytes)
	if _, err := rand.Read(own); err != nil {
		return err
	}
	own = binary.LittleEndian.AppendUint64(own, session)
	b := append([]byte(nil), own...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(self)))
	b = append(b, self...)
	b = append(b, proof(secret, "dial", peer, self, accepted, own)...)
	if _, err := conn.Write(b); err != nil {
		return err
	}
	answer := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if !hmac.Equal(answer, proof(secret, "accept", peer, self, accepted, own)) {
		return errSecret
	}
	return nil
}

// admit runs the accepting side of the handshake and returns the name that the peer gave itself, and the session.
func admit(conn io.ReadWriter, self string, secret []byte) (string, uint64, error) {
	own := make([]byte, nonceBytes)
	if _, err := rand.Read(own); err != nil {
		return "", 0, err
	}
	if _, err := conn.Write(append([]byte(tcpMagic), own...)); err != nil {
		return "", 0, err
	}
	var head [helloBytes + 2]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return "", 0, err
	}
	n := int(binary.LittleEndian.Uint16(head[helloBytes:]))
	if n == 0 || n > maxAgentName {
		return "", 0, fmt.Errorf("%w: agent name of %d bytes", errFrame, n)
	}
	rest := make([]byte, n+sha256.Size)
	if _, err := io.ReadFull(conn, rest); err != nil {
		return "", 0, err
	}
	peer, theirs := string(rest[:n]), head[:helloBytes]
	if !hmac.Equal(rest[n:], proof(secret, "dial", self, peer, own, theirs)) {
		return "", 0, errSecret
	}
	_, err := conn.Write(proof(secret, "accept", self, peer, own, theirs))
	return peer, binary.LittleEndian.Uint64(theirs[nonceBytes:]), err
}
