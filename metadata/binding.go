package metadata

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// What is put before the bytes that are signed, so that no signature passes for one of something else. A record that
// a gateway signs begins with the head of a map, which none of these do.
const (
	agentContext    = "pdrouter agent record v1\x00"
	withdrawContext = "pdrouter agent withdrawal v1\x00"
	bindingContext  = "pdrouter record binding v1\x00"
)

// maxBinding bounds an encoded binding, in bytes.
const maxBinding = 1 << 10

// binding is a gateway's word that the bearer of a key may vouch for one rank of one run of an engine for some time. On the wire it is
// the payload of an envelope.
type binding struct {
	Key         []byte `msgpack:"key"` // Ed25519
	Incarnation `msgpack:",inline"`
	Rank        Rank  `msgpack:"rank"`
	Role        Role  `msgpack:"role"`
	Until       int64 `msgpack:"until_ms"` // since 1970
}

// newBinding returns the gateway's signed word that key may vouch for the record's rank.
func newBinding(v Voucher, rec Record, key ed25519.PublicKey, until time.Time) ([]byte, error) {
	payload, err := msgpack.Marshal(&binding{Key: key, Incarnation: rec.Incarnation, Rank: rec.Rank, Role: rec.Role, Until: until.UnixMilli()})
	if err != nil {
		return nil, fmt.Errorf("binding: %w", err)
	}
	e := envelope{Payload: payload}
	if e.KeyID, e.Signature, err = v.Sign(append([]byte(bindingContext), payload...)); err != nil {
		return nil, fmt.Errorf("binding: %w", err)
	}
	return seal(e, maxBinding)
}

// parseBinding decodes a binding from anywhere, and its envelope.
func parseBinding(b []byte) (binding, envelope, error) {
	e, err := unseal(b, maxBinding)
	if err != nil {
		return binding{}, envelope{}, fmt.Errorf("binding: %w", err)
	}
	var out binding
	if err := msgpack.Unmarshal(e.Payload, &out); err != nil {
		return binding{}, envelope{}, fmt.Errorf("binding: %w", err)
	}
	if len(out.Key) != ed25519.PublicKeySize {
		return binding{}, envelope{}, fmt.Errorf("binding: key is %d bytes; want %d", len(out.Key), ed25519.PublicKeySize)
	}
	return out, e, nil
}

// Believed returns until when a reader that received the record at now may use it: to the end of its lease, counted from now. If an
// agent signed the record, the end of its key's binding may come first.
func (r Record) Believed(now time.Time) time.Time {
	end := now.Add(r.Lifetime())
	if len(r.Binding) == 0 {
		return end
	}
	b, _, err := parseBinding(r.Binding)
	if err != nil {
		return now
	}
	if until := time.UnixMilli(b.Until); until.Before(end) {
		return until
	}
	return end
}

// boundKey returns the key that a gateway which v trusts has bound to the record's rank.
func boundKey(v Voucher, rec Record, now time.Time) (ed25519.PublicKey, error) {
	b, e, err := parseBinding(rec.Binding)
	if err != nil {
		return nil, err
	}
	if err := v.Verify(e.KeyID, append([]byte(bindingContext), e.Payload...), e.Signature); err != nil {
		return nil, fmt.Errorf("binding: %w", err)
	}
	switch {
	case b.Incarnation != rec.Incarnation || b.Rank != rec.Rank || b.Role != rec.Role:
		return nil, fmt.Errorf("binding is for %s rank %v, role %.40q", b.ID(), b.Rank, string(b.Role))
	case now.UnixMilli() >= b.Until:
		return nil, fmt.Errorf("binding ended at %v", time.UnixMilli(b.Until).UTC())
	}
	return b.Key, nil
}

// SignAs returns the record with a signature of its agent's own Ed25519 key over all of it. A gateway takes it
// from the bearer of a token that is bound to this key.
func (r Record) SignAs(key crypto.Signer) (Record, error) {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return Record{}, fmt.Errorf("metadata: engine %s rank %v: sign: key is %T; want Ed25519", r.Engine, r.Rank, key.Public())
	}
	r.Binding, r.Payload = nil, nil
	p, err := r.payload()
	if err != nil {
		return Record{}, err
	}
	r.KeyID, r.Payload = thumbprint(public), p
	if r.Signature, err = key.Sign(nil, append([]byte(agentContext), p...), crypto.Hash(0)); err != nil {
		return Record{}, fmt.Errorf("metadata: engine %s rank %v: sign: %w", r.Engine, r.Rank, err)
	}
	return r, nil
}

// Bind checks that the record is signed by this key, and returns it with the gateway's signed statement that the key may sign for
// its rank until then. Without a gateway's key, with v nil, it adds nothing.
func (r Record) Bind(v Voucher, key ed25519.PublicKey, until time.Time) (Record, error) {
	if r.KeyID == "" && len(key) == ed25519.PublicKeySize {
		return Record{}, fmt.Errorf("the token is bound to key %s, and the record is not signed: start the engine with --sign-key", thumbprint(key))
	}
	r.Binding = nil
	payload, err := r.payload()
	if err != nil {
		return Record{}, err
	}
	if err := r.signedBy(key, payload); err != nil || v == nil {
		return r, err
	}
	if r.Binding, err = newBinding(v, r, key, until); err != nil {
		return Record{}, err
	}
	return r, nil
}

// signedBy returns nil if the record's signature is one of payload by its agent's key.
func (r Record) signedBy(key ed25519.PublicKey, payload []byte) error {
	if len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("key is %d bytes; want %d", len(key), ed25519.PublicKeySize)
	}
	if want := thumbprint(key); r.KeyID != want {
		return fmt.Errorf("key is %.50q; the agent's is %s", r.KeyID, want)
	}
	if !ed25519.Verify(key, append([]byte(agentContext), payload...), r.Signature) {
		return errors.New("signature is not of the agent's key " + r.KeyID)
	}
	return nil
}

// thumbprint is the id of an Ed25519 key (RFC 7638).
func thumbprint(public ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Withdrawal is what an agent signs to withdraw a rank's record. It says that this run of the rank is over, which
// stays true, so that saying it again does no harm.
func Withdrawal(inc Incarnation, rank Rank) []byte {
	return []byte(withdrawContext + inc.ID() + "/" + rank.String())
}
