package kvplane

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"

	"pdrouter/metadata"
)

// GatewayTicket is the gateway's word that two engines are to serve one request together. Each leg carries it, signed under a
// key that only the gateway and that leg's engine have, so that nobody else can have an engine compute for, or write
// to, an engine of his choice.
type GatewayTicket struct {
	ID      TransferID
	Prefill metadata.Incarnation
	Decode  metadata.Incarnation
	Context [16]byte      // digest of what the KV depends on besides the tokens, as far as the gateway knows it
	Tokens  int           // of the prompt; 0: the gateway does not know
	Issued  time.Time     // on the gateway's clock, in whole milliseconds
	Valid   time.Duration // for how long from then; whole milliseconds
}

const (
	ticketVersion = 1
	ticketContext = "pdrouter ticket v1\x00" // begins what is signed
	maxTicket     = 512                      // characters
	maxValid      = 24 * time.Hour

	// ticketLeeway is how far the clocks of several gateways may be apart.
	ticketLeeway = 30 * time.Second
)

// TicketFault is why a leg's ticket is not accepted.
type TicketFault uint8

// The faults of a ticket.
const (
	TicketMissing   TicketFault = iota + 1 // the leg has none
	TicketMalformed                        // no ticket at all
	TicketForged                           // not signed by a gateway for this run of the engine
	TicketForeign                          // for another engine, leg, peer or transfer
	TicketExpired                          // too old, or of the future
	TicketSpent                            // it has served
	TicketEarly                            // the engine has not been told the gateway's keys yet
	TicketFull                             // the engine remembers as many tickets as it can
)

var ticketFaults = [...]string{"none", "missing", "malformed", "forged", "foreign", "expired", "spent", "early", "full"}

// String names the fault.
func (f TicketFault) String() string {
	if int(f) < len(ticketFaults) {
		return ticketFaults[f]
	}
	return "unknown"
}

// Error returns "kvplane: ticket: " and the fault's name.
func (f TicketFault) Error() string { return "kvplane: ticket: " + f.String() }

// append encodes the ticket without its code.
func (t *GatewayTicket) append(dst []byte) []byte {
	dst = append(dst, ticketVersion)
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

// Digest is what the two engines compare. It does not depend on a key.
func (t *GatewayTicket) Digest() [16]byte { return digestOf(t.append(make([]byte, 0, 256))) }

func digestOf(body []byte) [16]byte {
	sum := sha256.Sum256(body)
	return [16]byte(sum[:16])
}

// Seal signs the ticket for the engine that has the key, as it stands in the leg's kv_transfer_params: base64url
// without padding.
func (t *GatewayTicket) Seal(key []byte) string { return string(t.AppendSealed(nil, key)) }

// AppendSealed is Seal, appended to dst.
func (t *GatewayTicket) AppendSealed(dst, key []byte) []byte {
	b := t.append(make([]byte, 0, 256))
	return base64.RawURLEncoding.AppendEncode(dst, append(b, ticketCode(key, b)...))
}

func ticketCode(key, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(ticketContext)) // neither fails
	h.Write(body)
	return h.Sum(nil)[:codeBytes]
}

// OpenTicket checks that a ticket was signed under the key and names this run of the engine. The error is a
// TicketFault. Whether it is still valid is the caller's to see.
func OpenTicket(s string, key []byte, self metadata.Incarnation) (GatewayTicket, error) {
	switch {
	case s == "":
		return GatewayTicket{}, TicketMissing
	case len(s) > maxTicket:
		return GatewayTicket{}, TicketMalformed
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return GatewayTicket{}, TicketMalformed
	}
	body := b[:max(0, len(b)-codeBytes)]
	t, ok := parseTicket(body)
	switch {
	case !ok:
		return GatewayTicket{}, TicketMalformed
	case !hmac.Equal(ticketCode(key, body), b[len(body):]):
		return GatewayTicket{}, TicketForged
	case t.Prefill != self && t.Decode != self:
		return GatewayTicket{}, TicketForeign
	}
	return t, nil
}

// parseTicket is the inverse of append, and takes nothing that append does not make.
func parseTicket(b []byte) (GatewayTicket, bool) {
	r := reader{b: b}
	var t GatewayTicket
	if r.byte() != ticketVersion {
		return GatewayTicket{}, false
	}
	copy(t.ID[:], r.bytes(len(t.ID)))
	for _, inc := range [...]*metadata.Incarnation{&t.Prefill, &t.Decode} {
		inc.Engine = r.text(metadata.MaxName)
		inc.Generation = r.uvarint(^uint64(0))
	}
	copy(t.Context[:], r.bytes(len(t.Context)))
	t.Tokens = int(r.uvarint(maxTokens))
	t.Issued = time.UnixMilli(int64(r.uvarint(1 << 48))).UTC()
	t.Valid = time.Duration(r.uvarint(uint64(maxValid/time.Millisecond))) * time.Millisecond
	return t, !r.bad && len(r.b) == 0 && t.ID != (TransferID{}) && len(t.append(make([]byte, 0, 256))) == len(b)
}

// timely says whether the ticket may be used at this time of the gateway's clock.
func (t *GatewayTicket) timely(now time.Time) bool {
	return !now.Before(t.Issued.Add(-ticketLeeway)) && !now.After(t.Issued.Add(t.Valid+ticketLeeway))
}

// String names the transfer and the engines, for logs; a ticket's code is never logged.
func (t *GatewayTicket) String() string {
	return fmt.Sprintf("ticket %s of %s and %s", t.ID, t.Prefill.ID(), t.Decode.ID())
}

// HashTokens is the digest of a prompt by which two engines see that they mean the same tokens: of the ids in order,
// four bytes each, the least significant first.
func HashTokens(ids []int32) [16]byte {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return digestOf(b)
}
