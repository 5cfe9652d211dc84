package records

import (
	"crypto"
	"fmt"

	"pdrouter/auth/keys"
)

// AgentSigner returns the private part of an agent's own key, with which it signs its records: the key that its token
// is bound to (Grant.Confirm). Only Ed25519 keys are for that.
func AgentSigner(k *keys.Key) (crypto.Signer, error) {
	private, err := k.Ed25519()
	if err != nil {
		return nil, fmt.Errorf("auth: agent: %w", err)
	}
	return private, nil
}
