package kvplane

import (
	"bytes"
	"crypto/sha256"
)

// sealedAs is a message as a stranger would write it: with an envelope and a code of nothing.
func sealedAs(e envelope, body []byte) []byte {
	return append(seal(nil, e, body), make([]byte, codeBytes)...)
}

// fakeKey stands for the key that Open makes, where no randomness may be read: the public half is made from the agent's
// name, and two agents agree on a digest of both their public halves. It keeps nothing secret.
func fakeKey(agent string) (public []byte, agree agreement) {
	own := sha256.Sum256([]byte(agent))
	return own[:], func(peer []byte) ([]byte, error) {
		low, high := own[:], peer
		if bytes.Compare(low, high) > 0 {
			low, high = high, low
		}
		secret := sha256.Sum256(append(append([]byte(nil), low...), high...))
		return secret[:], nil
	}
}
