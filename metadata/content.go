package metadata

import (
	"crypto/sha512"
	"encoding/base64"
)

// ContentLen is the length of a content in characters.
const ContentLen = 22

// ContentOf returns a digest of all that an encoded record says but for when it was published, until when it holds, and who
// vouches for it: two records with one content differ in nothing that anybody acts on. Fields that this version does not
// know count.
func ContentOf(encoded []byte) (string, error) {
	said := make([]byte, 0, len(encoded))
	if _, err := eachField(encoded, func(name string, key, value []byte) {
		switch name {
		case "published", "expires", "kid", "sig", "binding":
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
	b, err := Marshal(r)
	if err != nil {
		return ""
	}
	content, err := ContentOf(b)
	if err != nil {
		return ""
	}
	return content
}
