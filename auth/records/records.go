// Package records signs what gateways tell others, and checks it: metadata records, facts that gateways share, and tickets of single
// transfers. Each kind has a context of its own, so that no signature passes for one of another kind. Package auth is about callers; this
// package knows none.
package records

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync/atomic"

	"pdrouter/auth/keys"
)

// recordContext is put before what is signed, so that no signature of a record can pass for one of anything else.
const recordContext = "pdrouter metadata record v1\x00"

// Records signs metadata records with a gateway's own key and checks those of any gateway that is trusted.
// It implements metadata.Voucher.
type Records struct {
	file    string // of the own key, which Reload reads again; "" for none
	own     atomic.Pointer[keys.Key]
	trusted *keys.Trusted
}

// New returns a signer and checker of records. own may be nil for a reader that signs nothing; trusted should
// hold the keys of all gateways, this one's included.
func New(own *keys.Key, trusted *keys.Trusted) (*Records, error) {
	if trusted == nil {
		return nil, errors.New("auth: records: no trusted keys")
	}
	r := &Records{trusted: trusted}
	if own == nil {
		return r, nil
	}
	if err := r.signWith(own); err != nil {
		return nil, err
	}
	return r, nil
}

// Load is New with the own key of a file, which Reload reads again: a key is replaced without a restart.
func Load(file string, trusted *keys.Trusted) (*Records, error) {
	own, err := keys.Load(file)
	if err != nil {
		return nil, err
	}
	r, err := New(own, trusted)
	if err != nil {
		return nil, err
	}
	r.file = file
	return r, nil
}

// Reload reads the own key again. A key that cannot sign, or that is not trusted here, is an error, and the key of before goes on to sign.
// The trusted keys are reloaded before.
func (r *Records) Reload() error {
	if r.file == "" {
		return nil
	}
	own, err := keys.Load(r.file)
	if err != nil {
		return err
	}
	return r.signWith(own)
}

func (r *Records) signWith(own *keys.Key) error {
	if _, err := own.Ed25519(); err != nil {
		return fmt.Errorf("auth: records: %w", err)
	}
	if k, ok := r.trusted.Find(own.ID); !ok || !k.Equal(own) {
		return fmt.Errorf("auth: records: own %v is not among the trusted keys", own)
	}
	r.own.Store(own)
	return nil
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
	own := r.own.Load()
	if own == nil {
		return "", nil, errNoKey
	}
	private, err := own.Ed25519()
	if err != nil {
		return "", nil, fmt.Errorf("auth: records: %w", err)
	}
	return own.ID, ed25519.Sign(private, append([]byte(context), payload...)), nil
}

func (r *Records) verify(context, keyID string, payload, signature []byte) error {
	key, ok := r.trusted.Find(keyID)
	if !ok {
		return fmt.Errorf("auth: records: key %.100q is not trusted", keyID)
	}
	public, ok := key.PublicPart().(ed25519.PublicKey)
	if !ok {
		return fmt.Errorf("auth: records: key %s is for %s; want EdDSA", keyID, key.Algorithm())
	}
	if !ed25519.Verify(public, append([]byte(context), payload...), signature) {
		return fmt.Errorf("auth: records: signature is not of key %s", keyID)
	}
	return nil
}
