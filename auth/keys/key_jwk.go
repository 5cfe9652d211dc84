package keys

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// MaxID is how many bytes the id of a key may have.
const MaxID = 128

// parseJWK reads a key (RFC 7517, 7518, 8037) from its bytes and from what strictjson.Object found in them. A key without
// alg has the one that its type allows.
func parseJWK(m map[string]any, b []byte) (*Key, error) {
	id, _ := m["kid"].(string)
	if id == "" || len(id) > MaxID {
		return nil, fmt.Errorf("kid has %d bytes; want 1 to %d", len(id), MaxID)
	}
	if kty, _ := m["kty"].(string); kty != "OKP" && kty != "EC" && kty != "RSA" {
		return nil, fmt.Errorf("kty is %.20q; want OKP, EC or RSA", kty)
	}
	if use, ok := m["use"]; ok && use != "" && use != "sig" {
		return nil, fmt.Errorf("use is %.20q; want sig", use)
	}
	if ops, ok := m["key_ops"]; ok {
		list, _ := ops.([]any)
		if !slices.Contains(list, any("verify")) && !slices.Contains(list, any("sign")) {
			return nil, errors.New("key_ops has neither verify nor sign")
		}
	}
	var j jose.JSONWebKey
	if err := j.UnmarshalJSON(b); err != nil {
		return nil, errors.New("not a sound JWK of its type") // the reader's error may quote the key
	}
	k, err := keyOf(id, j.Key)
	if err != nil {
		return nil, err
	}
	if alg, ok := m["alg"]; ok && alg != "" && alg != k.algorithm {
		return nil, fmt.Errorf("alg is %.20q; want %s for such a key", alg, k.algorithm)
	}
	return k, nil
}

// JWK returns the key as the text of a file, with its private part if it has one.
func (k *Key) JWK() ([]byte, error) {
	b, err := k.jose().MarshalJSON()
	if err != nil {
		return nil, errors.New("key cannot be written as a JWK")
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func (k *Key) jose() jose.JSONWebKey {
	j := jose.JSONWebKey{Key: k.public, KeyID: k.ID, Algorithm: k.algorithm, Use: "sig"}
	if k.private != nil {
		j.Key = k.private
	}
	return j
}
