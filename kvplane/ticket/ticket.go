// Package ticket is a gateway's permission for one KV transfer: a signed statement that both legs of the transfer carry. A gateway
// signs a Ticket with the key with which it signs metadata records. Each engine checks it, with the keys that it trusts for records,
// before it begins its leg (Admitter). The package owns the encoding and the rules. It holds no keys, and reads and sends nothing.
package ticket

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// Ticket is a gateway's statement that two engines are to serve one request together. Without it somebody who reaches an engine
// could have it compute for, or write to, an engine of his choice.
type Ticket struct {
	ID      transfer.ID
	Prefill metadata.Incarnation
	Decode  metadata.Incarnation
	Context [16]byte      // digest of what the KV depends on besides the tokens, as far as the gateway knows it
	Tokens  int           // of the prompt; 0: the gateway does not know
	Issued  time.Time     // on the gateway's clock, in whole milliseconds
	Valid   time.Duration // for how long from then; whole milliseconds
}

// Signer signs tickets and nothing else: it puts a context of its own before the payload. records.Records.Tickets returns one.
type Signer interface {
	Sign(payload []byte) (keyID string, signature []byte, err error)
}

// Verifier is the inverse of a Signer. It knows the keys that are trusted now. It must be safe for concurrent use.
type Verifier interface {
	Verify(keyID string, payload, signature []byte) error
}

const (
	version   = 2
	maxText   = 1 << 10 // characters of a ticket
	maxKeyID  = 128     // bytes
	maxTokens = 1 << 40
	maxValid  = 24 * time.Hour
)

// Fault is why a leg's ticket is not accepted.
type Fault uint8

// The faults of a ticket.
const (
	Missing   Fault = iota + 1 // the leg has none
	Malformed                  // no ticket at all
	Forged                     // not signed with a key that the engine trusts
	Foreign                    // for another engine, incarnation, leg, peer or transfer
	Expired                    // too old, or of the future
	Spent                      // it has served
	Full                       // the engine remembers as many tickets as it can
)

var faults = [...]string{"none", "missing", "malformed", "forged", "foreign", "expired", "spent", "full"}

// String names the fault.
func (f Fault) String() string {
	if int(f) < len(faults) {
		return faults[f]
	}
	return "unknown"
}

// Error returns "ticket: " and the fault's name.
func (f Fault) Error() string { return "ticket: " + f.String() }

// append encodes the statement: what is signed.
func (t *Ticket) append(dst []byte) []byte {
	dst = append(dst, version)
	dst = append(dst, t.ID[:]...)
	for _, inc := range [...]metadata.Incarnation{t.Prefill, t.Decode} {
		dst = appendText(dst, inc.Engine)
		dst = binary.AppendUvarint(dst, inc.Generation)
	}
	dst = append(dst, t.Context[:]...)
	dst = binary.AppendUvarint(dst, uint64(t.Tokens))
	dst = binary.AppendUvarint(dst, uint64(t.Issued.UnixMilli()))
	return binary.AppendUvarint(dst, uint64(t.Valid.Milliseconds()))
}

// Digest is what the two engines compare. It does not depend on the key.
func (t *Ticket) Digest() [16]byte { return digestOf(t.append(make([]byte, 0, 512))) }

func digestOf(payload []byte) [16]byte {
	sum := sha256.Sum256(payload)
	return [16]byte(sum[:16])
}

// AppendSigned appends the signed ticket, as it stands in kv_transfer_params: base64url without padding.
func (t *Ticket) AppendSigned(dst []byte, by Signer) ([]byte, error) {
	b := t.append(make([]byte, 0, 512))
	keyID, signature, err := by.Sign(b)
	if err != nil {
		return dst, fmt.Errorf("ticket of %s: %w", t.ID, err)
	}
	if len(keyID) > maxKeyID || len(signature) != ed25519.SignatureSize {
		return dst, fmt.Errorf("ticket of %s: key id of %d bytes, signature of %d", t.ID, len(keyID), len(signature))
	}
	b = append(appendText(b, keyID), signature...)
	return base64.RawURLEncoding.AppendEncode(dst, b), nil
}

// Open decodes a ticket and checks its signature. The error is a Fault. The caller checks whom the ticket names and whether it is
// still valid.
func Open(text string, keys Verifier) (Ticket, error) {
	s, err := parse(text)
	if err != nil {
		return Ticket{}, err
	}
	if keys.Verify(s.keyID, s.payload, s.signature) != nil {
		return Ticket{}, Forged
	}
	return s.Ticket, nil
}

// signed is a ticket as it arrived.
type signed struct {
	Ticket
	payload   []byte // what the signature covers
	keyID     string
	signature []byte
}

// parse decodes a ticket and believes nothing. Each ticket has one encoding, and parse takes no other. The error is a Fault.
func parse(text string) (signed, error) {
	switch {
	case text == "":
		return signed{}, Missing
	case len(text) > maxText:
		return signed{}, Malformed
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return signed{}, Malformed
	}
	r := reader{b: b}
	var s signed
	if r.bytes(1)[0] != version {
		return signed{}, Malformed
	}
	copy(s.ID[:], r.bytes(len(s.ID)))
	for _, inc := range [...]*metadata.Incarnation{&s.Prefill, &s.Decode} {
		inc.Engine = r.text(metadata.MaxName)
		inc.Generation = r.uvarint(^uint64(0))
	}
	copy(s.Context[:], r.bytes(len(s.Context)))
	s.Tokens = int(r.uvarint(maxTokens))
	s.Issued = time.UnixMilli(int64(r.uvarint(1 << 48))).UTC()
	s.Valid = time.Duration(r.uvarint(uint64(maxValid/time.Millisecond))) * time.Millisecond
	s.payload = b[:len(b)-len(r.b)]
	s.keyID = r.text(maxKeyID)
	s.signature = r.bytes(ed25519.SignatureSize)
	if r.bad || len(r.b) > 0 || s.ID == (transfer.ID{}) {
		return signed{}, Malformed
	}
	return s, nil
}

// String names the transfer and the engines, for logs. The text of a ticket is never logged.
func (t *Ticket) String() string {
	return fmt.Sprintf("ticket %s of %s and %s", t.ID, t.Prefill.ID(), t.Decode.ID())
}

func appendText(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// reader takes fields from the front of b and remembers whether one did not fit or was not in its shortest form.
type reader struct {
	b   []byte
	bad bool
}

// bytes returns n bytes, zeros if they are not there.
func (r *reader) bytes(n int) []byte {
	if n > len(r.b) {
		r.bad, r.b = true, nil
		return make([]byte, n)
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > limit || n > 1 && r.b[n-1] == 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) text(limit uint64) string { return string(r.bytes(int(r.uvarint(limit)))) }
