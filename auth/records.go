package auth

import (
	"crypto/ed25519"
	"errors"
	"fmt"
)

// recordContext is put before what is signed, so that no signature of a record can pass for one of anything else.
const recordContext = "pdrouter metadata record v1\x00"

// Records signs metadata records with a gateway's own key and checks those of any gateway that is trusted.
// It implements metadata.Voucher.
type Records struct {
	own     *Key
	overlap []*Key // what other gateways sign with while keys are rotated
	trusted *Keys
}

// NewRecords returns a signer and checker of records. own may be nil for a reader that signs nothing; trusted should
// hold the keys of all gateways, this one's included. overlap are private keys that other gateways sign with while keys
// are rotated: engines are enrolled for them too.
func NewRecords(own *Key, trusted *Keys, overlap ...*Key) (*Records, error) {
	if own != nil {
		if _, err := own.ed25519(); err != nil {
			return nil, fmt.Errorf("auth: records: %w", err)
		}
	}
	if trusted == nil {
		return nil, errors.New("auth: records: no trusted keys")
	}
	if own == nil && len(overlap) > 0 {
		return nil, errors.New("auth: records: keys to overlap with, and none to sign with")
	}
	if own != nil {
		if k, ok := trusted.find(own.ID); !ok || !k.same(own) {
			return nil, fmt.Errorf("auth: records: own %v is not among the trusted keys", own)
		}
	}
	for _, k := range overlap {
		if _, err := k.ed25519(); err != nil {
			return nil, fmt.Errorf("auth: records: overlapping %w", err)
		}
	}
	return &Records{own: own, overlap: overlap, trusted: trusted}, nil
}

// Sign returns the id of the own key and its signature of payload.
func (r *Records) Sign(payload []byte) (keyID string, signature []byte, err error) {
	return r.sign(recordContext, payload)
}

// Verify returns nil if signature is one of payload by the trusted key of that id.
func (r *Records) Verify(keyID string, payload, signature []byte) error {
	return r.verify(recordContext, keyID, payload, signature)
}

func (r *Records) sign(context string, payload []byte) (keyID string, signature []byte, err error) {
	if r.own == nil {
		return "", nil, errNoKey
	}
	private, err := r.own.ed25519()
	if err != nil {
		return "", nil, fmt.Errorf("auth: records: %w", err)
	}
	return r.own.ID, ed25519.Sign(private, append([]byte(context), payload...)), nil
}

func (r *Records) verify(context, keyID string, payload, signature []byte) error {
	key, ok := r.trusted.find(keyID)
	if !ok {
		return fmt.Errorf("auth: records: key %.100q is not trusted", keyID)
	}
	public, ok := key.public.(ed25519.PublicKey)
	if !ok {
		return fmt.Errorf("auth: records: key %s is for %s; want EdDSA", keyID, key.algorithm)
	}
	if !ed25519.Verify(public, append([]byte(context), payload...), signature) {
		return fmt.Errorf("auth: records: signature is not of key %s", keyID)
	}
	return nil
}
