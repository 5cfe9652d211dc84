// Package keys reads, writes and holds the keys that tokens, records and tickets are signed and checked with: single keys as JWK or PEM files,
// sets of trusted keys from files (Trusted), and key sets of other issuers over HTTP (JWKS). It owns no token and no rule of who may do what:
// packages auth and records use it, and package rotate replaces the files.
package keys

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha256" // of thumbprints
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

// The algorithms of keys, as in the headers of their tokens (RFC 7518 §3.1, RFC 8037 §3.1). Each type of key has
// exactly one. HS256 is for a development secret alone.
const (
	EdDSA = "EdDSA" // Ed25519
	ES256 = "ES256" // ECDSA on P-256 with SHA-256
	RS256 = "RS256" // RSA of 2048 to 4096 bits, PKCS #1 v1.5, with SHA-256
	HS256 = "HS256" // HMAC with SHA-256
)

const (
	minRSABits = 2048
	maxRSABits = 4096 // what the reader of JWKs takes; a larger key makes each check dearer for who sends tokens
	newRSABits = 3072
)

// Key is a key with its id, for one algorithm and no other. It signs if it has a private part.
type Key struct {
	ID        string
	algorithm string           // of its tokens: EdDSA, ES256, RS256 or HS256
	public    crypto.PublicKey // ed25519.PublicKey, *ecdsa.PublicKey, *rsa.PublicKey or, for HS256, []byte
	private   crypto.Signer    // ed25519.PrivateKey, *ecdsa.PrivateKey or *rsa.PrivateKey; nil for a public key and for HS256
}

// Generate returns a new private key for EdDSA, ES256 or RS256. Its id is the key's thumbprint (RFC 7638).
func Generate(algorithm string) (*Key, error) {
	var private crypto.Signer
	var err error
	switch algorithm {
	case EdDSA:
		_, private, err = ed25519.GenerateKey(nil)
	case ES256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case RS256:
		private, err = rsa.GenerateKey(rand.Reader, newRSABits)
	default:
		return nil, fmt.Errorf("auth: generate key: algorithm is %.20q; want EdDSA, ES256 or RS256", algorithm)
	}
	if err != nil {
		return nil, fmt.Errorf("auth: generate key: %w", err)
	}
	k, err := keyOf("", private)
	if err != nil {
		return nil, fmt.Errorf("auth: generate key: %w", err)
	}
	return k, nil
}

// keyOf returns the key of a public or private part as the standard library has them, or an error if tokens are not to be
// signed with such a key. The empty id stands for the thumbprint.
func keyOf(id string, part any) (*Key, error) {
	k := &Key{ID: id, public: part}
	switch p := part.(type) {
	case ed25519.PublicKey:
		k.algorithm = EdDSA
	case *ecdsa.PublicKey:
		if p.Curve != elliptic.P256() {
			return nil, fmt.Errorf("key is on the curve %s; want P-256", p.Curve.Params().Name)
		}
		k.algorithm = ES256
	case *rsa.PublicKey:
		if bits := p.N.BitLen(); bits < minRSABits || bits > maxRSABits || p.N.Bit(0) == 0 {
			return nil, fmt.Errorf("RSA key of %d bits; want %d to %d", bits, minRSABits, maxRSABits)
		}
		if p.E < 3 || p.E > 1<<31-1 || p.E%2 == 0 {
			return nil, errors.New("RSA key whose exponent is not odd or not from 3 to 2^31-1")
		}
		k.algorithm = RS256
	case crypto.Signer:
		public, err := keyOf(id, p.Public())
		if err != nil {
			return nil, err
		}
		if err := halvesFit(p); err != nil {
			return nil, err
		}
		public.private = p
		return public, nil
	default:
		return nil, errors.New("neither an Ed25519, nor a P-256, nor an RSA key")
	}
	sum, err := (&jose.JSONWebKey{Key: part}).Thumbprint(crypto.SHA256) // fails for an Ed25519 key of low order
	if err != nil {
		return nil, errors.New("key is not a sound one")
	}
	if k.ID == "" {
		k.ID = base64.RawURLEncoding.EncodeToString(sum)
	}
	return k, nil
}

// halvesFit returns an error if the two parts of a P-256 key are not of one key: its reader takes them as they come, and
// those of the other types look themselves.
func halvesFit(private crypto.Signer) error {
	ec, ok := private.(*ecdsa.PrivateKey)
	if !ok {
		return nil
	}
	d, err := ec.Bytes()
	if err != nil {
		return errors.New("the private part is out of range")
	}
	again, err := ecdsa.ParseRawPrivateKey(ec.Curve, d)
	if err != nil || !again.PublicKey.Equal(&ec.PublicKey) {
		return errors.New("the private and the public part are not of one key")
	}
	return nil
}

// Ed25519 returns the private part of an Ed25519 key. Records and tickets know no other.
func (k *Key) Ed25519() (ed25519.PrivateKey, error) {
	private, ok := k.private.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%v is for %s and signs: %t; want an Ed25519 key with its private part", k, k.algorithm, k.Signs())
	}
	return private, nil
}

// Algorithm returns the one algorithm of the key's tokens: EdDSA, ES256, RS256 or HS256.
func (k *Key) Algorithm() string { return k.algorithm }

// Public returns the key without its private part. A development secret has no part that is public: it stays as it is.
func (k *Key) Public() *Key { return &Key{ID: k.ID, algorithm: k.algorithm, public: k.public} }

// String returns the key's id; the key itself is never printed.
func (k *Key) String() string { return "key " + k.ID }

// GoString is String, so that no verb prints the private part.
func (k *Key) GoString() string { return k.String() }

// Equal reports whether both have the same public part.
func (k *Key) Equal(o *Key) bool {
	if secret, ok := k.public.([]byte); ok {
		other, ok := o.public.([]byte)
		return ok && bytes.Equal(secret, other)
	}
	p, ok := k.public.(interface{ Equal(crypto.PublicKey) bool })
	return ok && p.Equal(o.public)
}

// PublicPart returns what signatures of the key are checked with: an ed25519.PublicKey, *ecdsa.PublicKey, *rsa.PublicKey or, for HS256,
// the secret.
func (k *Key) PublicPart() crypto.PublicKey { return k.public }

// Signs reports whether tokens can be signed with the key.
func (k *Key) Signs() bool { return k.private != nil || k.Development() }

// SigningPart returns what a token of the key's algorithm is signed with: the private part or, for HS256, the secret.
func (k *Key) SigningPart() any {
	if k.Development() {
		return k.public
	}
	return k.private
}
