package keys

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pdrouter/auth/internal/files"
	"pdrouter/auth/internal/strictjson"
)

// MaxFile is how many bytes the file of a key may have.
const MaxFile = 64 << 10

// Write writes the key into dir: its private part as <kid>.jwk, readable by its owner alone, and its public part as
// <kid>.pub.jwk. It makes dir if need be and never overwrites a file.
func Write(dir string, k *Key) (privatePath, publicPath string, err error) {
	if k.private == nil {
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
	b, err := k.JWK()
	if err != nil {
		return fmt.Errorf("auth: %v: %w", k, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("auth: %v: %w", k, err)
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("auth: %v: %w", k, err)
	}
	return nil
}

// Load reads an Ed25519, P-256 or RSA key from a JWK or PEM file. A JWK must say its alg; a PEM file's key has its
// thumbprint as id. A private key in a file that everybody may read is refused, and so is every symmetric key.
func Load(path string) (*Key, error) {
	k, err := loadKey(path)
	if err != nil {
		return nil, fmt.Errorf("auth: key file %s: %w", path, err)
	}
	return k, nil
}

func loadKey(path string) (*Key, error) {
	b, mode, err := files.ReadBounded(path, MaxFile)
	if err != nil {
		return nil, err
	}
	k, err := Parse(b)
	if err != nil {
		return nil, err
	}
	if k.Signs() && mode&0o007 != 0 {
		return nil, fmt.Errorf("private key with mode %04o; want none for others", mode)
	}
	return k, nil
}

// Parse reads one key from the text of a JWK or PEM file.
func Parse(b []byte) (*Key, error) {
	if block, rest := pem.Decode(b); block != nil {
		return parsePEM(block, rest)
	}
	m, err := strictjson.Object(b)
	if err != nil {
		return nil, fmt.Errorf("neither PEM nor a JWK: %w", err)
	}
	if alg, _ := m["alg"].(string); alg == "" {
		return nil, errors.New("alg is missing; want EdDSA, ES256 or RS256")
	}
	return parseJWK(m, bytes.TrimSpace(b))
}
