package openai

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"pdrouter/router/openai/jsonscan"
)

// Sealer makes the cache_salt that engines get of a tenant's name and the client's own salt. Without its key it is not possible to
// name another tenant's, and so tell by the time of an answer what others have asked.
type Sealer struct{ Key []byte }

// MinSealKey is the least length of a key, in bytes.
const MinSealKey = 32

// String hides the key.
func (s *Sealer) String() string { return "(secret)" }

// Seal returns the salt as JSON. salt is the client's own as it was written; nil or null is none.
func (s *Sealer) Seal(tenant string, salt []byte) string {
	b := []byte("pdrouter salt v1\x00")
	b = append(binary.AppendUvarint(b, uint64(len(tenant))), tenant...)
	if len(salt) > 1 && salt[0] == '"' {
		return encodeSum(s.sum(append(b, 1), salt[1:len(salt)-1]))
	}
	return encodeSum(s.sum(b, nil))
}

// MediaIDs returns the sealer of the tenant's media ids.
func (s *Sealer) MediaIDs(tenant string) *Sealer {
	return &Sealer{Key: s.sum([]byte("pdrouter media id v1\x00"+tenant), nil)}
}

// SealID returns what engines get in place of a media id. Both are JSON strings.
func (s *Sealer) SealID(id []byte) string { return encodeSum(s.sum(nil, id[1:len(id)-1])) }

// sum is the code of head and of what a JSON string says whose inside is text. Without escapes that is not copied: it may be long.
func (s *Sealer) sum(head, text []byte) []byte {
	if bytes.IndexByte(text, '\\') >= 0 {
		text = jsonscan.Unescape(nil, text)
	}
	m := hmac.New(sha256.New, s.Key)
	m.Write(head)
	m.Write(text)
	return m.Sum(nil)
}

func encodeSum(sum []byte) string { return `"` + base64.RawURLEncoding.EncodeToString(sum) + `"` }

// SaltText is what CacheSalt says; "" if there is none.
func (b *Body) SaltText() string {
	if b.Sealed != "" {
		return b.Sealed[1 : len(b.Sealed)-1] // Seal needs no escapes
	}
	if len(b.Salt) < 2 || b.Salt[0] != '"' {
		return ""
	}
	return string(jsonscan.Unescape(nil, b.Salt[1:len(b.Salt)-1]))
}

// CacheSalt is the cache's salt as both legs carry it, JSON.
func (b *Body) CacheSalt() []byte {
	if b.Sealed != "" {
		return []byte(b.Sealed)
	}
	return b.Salt
}
