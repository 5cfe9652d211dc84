package router

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"pdrouter/router/openai/jsonscan"
)

// sealer makes the cache_salt that engines get of a tenant's name and the client's own salt. Without its key nobody can
// name another tenant's, and so tell by the time of an answer what others have asked.
type sealer struct{ key []byte }

// minSealKey is the least length of a key, in bytes.
const minSealKey = 32

// String hides the key.
func (s *sealer) String() string { return "(secret)" }

// seal returns the salt as JSON. salt is the client's own as it was written; nil or null is none.
func (s *sealer) seal(tenant string, salt []byte) string {
	b := []byte("pdrouter salt v1\x00")
	b = append(binary.AppendUvarint(b, uint64(len(tenant))), tenant...)
	if len(salt) > 1 && salt[0] == '"' {
		return encodeSum(s.sum(append(b, 1), salt[1:len(salt)-1]))
	}
	return encodeSum(s.sum(b, nil))
}

// mediaIDs returns the sealer of the tenant's media ids.
func (s *sealer) mediaIDs(tenant string) *sealer {
	return &sealer{key: s.sum([]byte("pdrouter media id v1\x00"+tenant), nil)}
}

// sealID returns what engines get in place of a media id. Both are JSON strings.
func (s *sealer) sealID(id []byte) string { return encodeSum(s.sum(nil, id[1:len(id)-1])) }

// sum is the code of head and of what a JSON string says whose inside is text. Without escapes that is not copied: it may be long.
func (s *sealer) sum(head, text []byte) []byte {
	if bytes.IndexByte(text, '\\') >= 0 {
		text = jsonscan.Unescape(nil, text)
	}
	m := hmac.New(sha256.New, s.key)
	m.Write(head)
	m.Write(text)
	return m.Sum(nil)
}

func encodeSum(sum []byte) string { return `"` + base64.RawURLEncoding.EncodeToString(sum) + `"` }

// cacheSalt is the cache's salt as both legs carry it, JSON.
func (b *body) cacheSalt() []byte {
	if b.sealed != "" {
		return []byte(b.sealed)
	}
	return b.salt
}
