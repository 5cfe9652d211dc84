package keys

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"

	"pdrouter/auth/internal/strictjson"
)

const maxJWKS = 256 << 10 // bytes

// ParsedJWKS is what a set has.
type ParsedJWKS struct {
	Keys    map[string]*Key // that tokens can be checked with
	Others  int             // that were passed over
	Doubled []string        // ids of several usable keys, sorted: none of these holds, and all count among the others
}

// ParseJWKS reads a set (RFC 7517 §5). What no token can be checked with is passed over, as a set may serve others too:
// keys for encryption, symmetric and private ones, of other types or sizes, without a kid. So are keys of different bytes
// with one id: which of them holds would be up to chance. A set without a usable key is an error.
func ParseJWKS(b []byte) (ParsedJWKS, error) {
	var got ParsedJWKS
	if len(b) > maxJWKS {
		return got, fmt.Errorf("more than %d bytes", maxJWKS)
	}
	m, err := strictjson.Object(b)
	if err != nil {
		return got, fmt.Errorf("no key set: %w", err)
	}
	list, ok := m["keys"].([]any)
	if !ok {
		return got, errors.New("no key set: keys is missing")
	}
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &raw); err != nil || len(raw.Keys) != len(list) {
		return got, errors.New("no key set")
	}
	byID := map[string][]*Key{}
	for i, one := range list {
		k := usableJWK(one, raw.Keys[i])
		if k == nil {
			got.Others++
		} else {
			byID[k.ID] = append(byID[k.ID], k)
		}
	}
	got.Keys = map[string]*Key{}
	for id, same := range byID {
		if slices.ContainsFunc(same, func(k *Key) bool { return !k.Equal(same[0]) }) {
			got.Others += len(same)
			got.Doubled = append(got.Doubled, id)
			continue
		}
		got.Keys[id] = same[0].Public()
	}
	slices.Sort(got.Doubled)
	if len(got.Keys) == 0 {
		return got, fmt.Errorf("no usable key among %d", len(list))
	}
	return got, nil
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
func (k *Trusted) JWKS() ([]byte, error) {
	var set jose.JSONWebKeySet
	for _, id := range k.IDs() {
		key, ok := k.Find(id)
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
