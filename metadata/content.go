package metadata

import (
	"crypto/sha512"
	"encoding/base64"
)

// ContentLen is the length of a content in characters.
const ContentLen = 22

// ContentOf returns a digest of all that an encoded record says but for when it was published and until when it holds: two records with
// one content differ in nothing that anybody acts on. Who vouches for it does not count, fields that this version does not know do.
func ContentOf(encoded []byte) (string, error) {
	e, err := unseal(encoded, MaxRecordBytes)
	if err != nil {
		return "", err
	}
	return contentOf(e.Payload)
}

func contentOf(payload []byte) (string, error) {
	said := make([]byte, 0, len(payload))
	if err := eachField(payload, func(name string, key, value []byte) {
		switch name {
		case "published", "expires":
			return
		}
		said = append(append(said, key...), value...)
	}); err != nil {
		return "", err
	}
	sum := sha512.Sum512_256(said)
	return base64.RawURLEncoding.EncodeToString(sum[:16]), nil
}

// Content is ContentOf of a record that is not encoded; "" if it cannot be encoded.
func (r Record) Content() string {
	p, err := r.payload()
	if err != nil {
		return ""
	}
	content, err := contentOf(p)
	if err != nil {
		return ""
	}
	return content
}
