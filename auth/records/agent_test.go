package records

import (
	"crypto"
	"crypto/ed25519"
	"strings"
	"testing"

	"pdrouter/auth/keys"
)

func TestAgentSigner(t *testing.T) {
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := AgentSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := signer.Sign(nil, []byte("record"), crypto.Hash(0))
	if err != nil || !ed25519.Verify(signer.Public().(ed25519.PublicKey), []byte("record"), signature) {
		t.Errorf("signature does not verify: %v", err)
	}
	other, err := keys.Generate(keys.ES256)
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]*keys.Key{"public": key.Public(), "of another kind": other} {
		if _, err := AgentSigner(k); err == nil || !strings.Contains(err.Error(), "Ed25519") {
			t.Errorf("%s: got %v; want it refused", name, err)
		}
	}
}
