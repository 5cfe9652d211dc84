package auth

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

const maxJWKS = 256 << 10 // bytes

// parseJWKS returns the keys of a set (RFC 7517 §5) that tokens can be checked with, and how many others it has: keys for
// encryption, symmetric and private ones, of other types or sizes, without a kid. Those are passed over, as a set may
// serve others too. A set without a usable key is an error, and so is one with two keys of one id: which of them holds
// would be up to chance.
func parseJWKS(b []byte) (keys map[string]*Key, others int, err error) {
	if len(b) > maxJWKS {
		return nil, 0, fmt.Errorf("more than %d bytes", maxJWKS)
	}
	m, err := strictObject(b)
	if err != nil {
		return nil, 0, fmt.Errorf("no key set: %w", err)
	}
	list, ok := m["keys"].([]any)
	if !ok {
		return nil, 0, errors.New("no key set: keys is missing")
	}
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &raw); err != nil || len(raw.Keys) != len(list) {
		return nil, 0, errors.New("no key set")
	}
	keys = map[string]*Key{}
	for i, one := range list {
		k := usableJWK(one, raw.Keys[i])
		if k == nil {
			others++
			continue
		}
		if err := add(keys, k); err != nil {
			return nil, 0, err
		}
	}
	if len(keys) == 0 {
		return nil, 0, fmt.Errorf("no usable key among %d", len(list))
	}
	return keys, others, nil
}

// usableJWK returns a public key of a set, or nil.
func usableJWK(one any, b []byte) *Key {
	m, ok := one.(map[string]any)
	if !ok {
		return nil
	}
	if m["use"] == "jwt-svid" { // what SPIFFE's bundles say for sig (JWT-SVID §4.2)
		delete(m, "use")
	}
	k, err := parseJWK(m, b)
	if err != nil || k.Signs() { // everybody has a private key that is published
		return nil
	}
	return k
}

// JWKS returns the set as a key set (RFC 7517 §5) for others to check tokens with, sorted by id.
func (k *Keys) JWKS() ([]byte, error) {
	var set jose.JSONWebKeySet
	for _, id := range k.IDs() {
		key, ok := k.find(id)
		if !ok || key.Development() {
			return nil, fmt.Errorf("auth: key set: key %s has no public part", id)
		}
		set.Keys = append(set.Keys, key.Public().jose())
	}
	b, err := json.MarshalIndent(set, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("auth: key set: %w", err)
	}
	return append(b, '\n'), nil
}
