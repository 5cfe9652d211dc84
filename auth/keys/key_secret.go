package keys

import (
	"bytes"
	"fmt"

	"pdrouter/auth/internal/files"
)

const (
	minSecret = 32 // bytes: what HMAC with SHA-256 gives out (RFC 7518 §3.2)
	// developmentKeyID is the kid of every token that is signed with a development secret.
	developmentKeyID = "development"
)

// DevelopmentSecret reads a secret that signs and checks tokens with HS256. Who can check such a token can make one. So
// it is for trying things out on one machine, and never stands beside another key. The secret is all of the file but
// space about it: at least 32 bytes, in a file that others may not read. The tokens' kid is "development".
func DevelopmentSecret(secretFile string) (*Key, error) {
	b, mode, err := files.ReadBounded(secretFile, MaxFile)
	if err != nil {
		return nil, fmt.Errorf("auth: development secret %s: %w", secretFile, err)
	}
	if mode&0o007 != 0 {
		return nil, fmt.Errorf("auth: development secret %s: mode %04o; want none for others", secretFile, mode)
	}
	if b = bytes.TrimSpace(b); len(b) < minSecret {
		return nil, fmt.Errorf("auth: development secret %s: %d bytes; want at least %d", secretFile, len(b), minSecret)
	}
	return &Key{ID: developmentKeyID, algorithm: HS256, public: b}, nil
}

// Development reports whether this is a development secret, which must not be used where it matters who signed.
func (k *Key) Development() bool { return k.algorithm == HS256 }
