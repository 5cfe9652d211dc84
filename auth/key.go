package auth

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const maxKeyFile = 64 << 10 // bytes

// Key is a key with its id, for one algorithm and no other. It signs if it has a private part.
type Key struct {
	ID        string
	algorithm string             // of its tokens, as in their header: "EdDSA"
	public    crypto.PublicKey   // ed25519.PublicKey
	private   ed25519.PrivateKey // nil for a public key
}

// jwk is a key in a file (RFC 8037).
type jwk struct {
	Type      string `json:"kty"`
	Curve     string `json:"crv"`
	ID        string `json:"kid"`
	Algorithm string `json:"alg"`
	Use       string `json:"use,omitempty"`
	X         string `json:"x"`
	D         string `json:"d,omitempty"`
}

// GenerateKey returns a new private key. Its id is the key's thumbprint (RFC 7638).
func GenerateKey() (*Key, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("auth: generate key: %w", err)
	}
	return ed25519Key(thumbprint(public), public, private), nil
}

// ed25519Key returns an Ed25519 key; private may be nil.
func ed25519Key(id string, public ed25519.PublicKey, private ed25519.PrivateKey) *Key {
	return &Key{ID: id, algorithm: "EdDSA", public: public, private: private}
}

// Public returns the key without its private part.
func (k *Key) Public() *Key { return &Key{ID: k.ID, algorithm: k.algorithm, public: k.public} }

// String returns the key's id; the key itself is never printed.
func (k *Key) String() string { return "key " + k.ID }

// GoString is String, so that no verb prints the private part.
func (k *Key) GoString() string { return k.String() }

// same reports whether both have the same public part.
func (k *Key) same(o *Key) bool {
	p, ok := k.public.(interface{ Equal(crypto.PublicKey) bool })
	return ok && p.Equal(o.public)
}

// Signs reports whether the key has its private part.
func (k *Key) Signs() bool { return k.private != nil }

func thumbprint(public ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// WriteKey writes the key into dir: its private part as <kid>.jwk, readable by its owner alone, and its public part as
// <kid>.pub.jwk. It makes dir if need be and never overwrites a file.
func WriteKey(dir string, k *Key) (privatePath, publicPath string, err error) {
	if !k.Signs() {
		return "", "", fmt.Errorf("auth: %v has no private part", k)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", fmt.Errorf("auth: %v: %w", k, err)
	}
	privatePath, publicPath = filepath.Join(dir, k.ID+".jwk"), filepath.Join(dir, k.ID+".pub.jwk")
	if err := writeJWK(privatePath, k, 0o600); err != nil {
		return "", "", err
	}
	return privatePath, publicPath, writeJWK(publicPath, k.Public(), 0o644)
}

func writeJWK(path string, k *Key, mode os.FileMode) error {
	j := jwk{Type: "OKP", Curve: "Ed25519", ID: k.ID, Algorithm: "EdDSA", Use: "sig", X: base64.RawURLEncoding.EncodeToString(k.public.(ed25519.PublicKey))}
	if k.private != nil {
		j.D = base64.RawURLEncoding.EncodeToString(k.private.Seed())
	}
	b, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return fmt.Errorf("auth: %v: %w", k, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("auth: %v: %w", k, err)
	}
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("auth: %v: %w", k, err)
	}
	return nil
}

// LoadKey reads an Ed25519 key from a JWK or PEM file. A PEM file's key has its thumbprint as id. A private key in a
// file that everybody may read is refused.
func LoadKey(path string) (*Key, error) {
	k, err := loadKey(path)
	if err != nil {
		return nil, fmt.Errorf("auth: key file %s: %w", path, err)
	}
	return k, nil
}

func loadKey(path string) (*Key, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%d bytes; want at most %d", info.Size(), maxKeyFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := parseKey(b)
	if err != nil {
		return nil, err
	}
	if k.Signs() && info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("private key with mode %04o; want none for others", info.Mode().Perm())
	}
	return k, nil
}

func parseKey(b []byte) (*Key, error) {
	if block, _ := pem.Decode(b); block != nil {
		return parsePEM(block)
	}
	if _, err := strictObject(b); err != nil {
		return nil, fmt.Errorf("neither PEM nor a JWK: %w", err)
	}
	var j jwk
	if err := json.Unmarshal(b, &j); err != nil {
		return nil, errors.New("neither PEM nor a JWK") // the decoder's error may quote the key
	}
	switch {
	case j.Type != "OKP" || j.Curve != "Ed25519":
		return nil, fmt.Errorf("key is of type %.20q, curve %.20q; want OKP, Ed25519", j.Type, j.Curve)
	case j.Algorithm != "EdDSA":
		return nil, fmt.Errorf("alg is %.20q; want EdDSA", j.Algorithm)
	case j.Use != "" && j.Use != "sig":
		return nil, fmt.Errorf("use is %.20q; want sig", j.Use)
	case j.ID == "" || len(j.ID) > maxKeyID:
		return nil, fmt.Errorf("kid has %d bytes; want 1 to %d", len(j.ID), maxKeyID)
	}
	x, err := base64.RawURLEncoding.Strict().DecodeString(j.X)
	if err != nil || len(x) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("x is not %d bytes in base64url", ed25519.PublicKeySize)
	}
	k := ed25519Key(j.ID, x, nil)
	if j.D == "" {
		return k, nil
	}
	d, err := base64.RawURLEncoding.Strict().DecodeString(j.D)
	if err != nil || len(d) != ed25519.SeedSize {
		return nil, fmt.Errorf("d is not %d bytes in base64url", ed25519.SeedSize)
	}
	k.private = ed25519.NewKeyFromSeed(d)
	if !k.same(&Key{public: k.private.Public()}) {
		return nil, errors.New("x and d are not of one key")
	}
	return k, nil
}

func parsePEM(block *pem.Block) (*Key, error) {
	switch block.Type {
	case "PRIVATE KEY":
		v, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if private, ok := v.(ed25519.PrivateKey); err == nil && ok {
			public := private.Public().(ed25519.PublicKey)
			return ed25519Key(thumbprint(public), public, private), nil
		}
	case "PUBLIC KEY":
		v, err := x509.ParsePKIXPublicKey(block.Bytes)
		if public, ok := v.(ed25519.PublicKey); err == nil && ok {
			return ed25519Key(thumbprint(public), public, nil), nil
		}
	}
	return nil, fmt.Errorf("PEM block %.40q is not an Ed25519 key", strings.ToLower(block.Type))
}
