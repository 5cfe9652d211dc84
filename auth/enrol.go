package auth

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
)

// enrolmentContext begins what enrolment keys are derived with, so that they are keys of nothing else.
const enrolmentContext = "pdrouter enrolment v1\x00"

// Enrolment returns the keys with which gateways sign what they say to one run of an engine, named by its engine id
// (metadata.Incarnation.ID): first this gateway's own, then those of the gateways that it overlaps with. None without a
// key of its own. They are derived from the signing keys, so that all gateways with one signing key come to the same.
// They are secrets: only the engine's own agents may be told.
func (r *Records) Enrolment(id string) ([][]byte, error) {
	if r.own == nil {
		return nil, nil
	}
	var out [][]byte
	for _, k := range append([]*Key{r.own}, r.overlap...) {
		private, err := k.ed25519()
		if err != nil {
			return nil, fmt.Errorf("auth: enrolment of %s: %w", id, err)
		}
		key, err := hkdf.Key(sha256.New, private.Seed(), nil, enrolmentContext+id, sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("auth: enrolment of %s: %w", id, err)
		}
		out = append(out, key)
	}
	return out, nil
}
