package auth

import (
	"crypto"
	"fmt"
)

// AgentSigner returns the private part of an agent's own key, with which it signs its records: the key that its token
// is bound to (Grant.Confirm). Only Ed25519 keys are for that.
func AgentSigner(k *Key) (crypto.Signer, error) {
	private, err := k.ed25519()
	if err != nil {
		return nil, fmt.Errorf("auth: agent: %w", err)
	}
	return private, nil
}
