package auth

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"testing"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func TestClaimsOfAgentsAndClients(t *testing.T) {
	key, own := keytest.New(t, "k1"), keytest.New(t, "own")
	agents := newVerifier(t, VerifierConfig{Audience: MetadataAudience}, key)
	p, err := agents.Authenticate(mint(t, key, Grant{Audience: MetadataAudience, Engine: "e", Role: "prefill", Ranks: []string{"0/0/0", "0/0/1"}, Size: "1/1/2", Confirm: own}))
	if err != nil || len(p.Ranks) != 2 || p.Ranks[1] != "0/0/1" || p.Size != "1/1/2" || !bytes.Equal(p.Key, own.PublicPart().(ed25519.PublicKey)) || p.Tenant != "issuer|alice" {
		t.Errorf("got %+v, %v; want two ranks, the bearer's key and its tenant", p, err)
	}
	clients := newVerifier(t, VerifierConfig{}, key)
	want := Limits{Requests: 60, Tokens: 1000, Concurrent: 2}
	if p, err = clients.Authenticate(mint(t, key, Grant{Limits: want})); err != nil || p.Limits != want || p.Key != nil {
		t.Errorf("got %+v, %v; want the limits %+v", p, err, want)
	}
}

// Claims of another kind are refused, and so is what a reader might take for everything.
func TestClaimsAreStrict(t *testing.T) {
	key := keytest.New(t, "k1")
	x := mustConfirm(t, keytest.New(t, "own")).Key.X
	for _, c := range []struct {
		name, claim, value string
	}{
		{"models is a string", "models", `"tiny"`},
		{"models is empty", "models", `[]`},
		{"models is null", "models", `null`},
		{"ranks is empty", "ranks", `[]`},
		{"a rank of two", "ranks", `["0/0"]`},
		{"a rank of four", "ranks", `["0/0/0/0"]`},
		{"a rank with a sign", "ranks", `["0/0/+1"]`},
		{"a rank with a leading zero", "ranks", `["0/0/01"]`},
		{"all ranks", "ranks", `["*"]`},
		{"a rank that is a number", "ranks", `[0]`},
		{"a rank beyond the size", "ranks", `["0/0/9"]`},
		{"size is a number", "size", `9`},
		{"size is null", "size", `null`},
		{"size is empty", "size", `""`},
		{"size of two", "size", `"1/1"`},
		{"size with an axis of none", "size", `"1/0/1"`},
		{"reads has a number", "reads", `[1]`},
		{"scope is a list", "scope", `["write"]`},
		{"role is null", "role", `null`},
		{"role is empty", "role", `""`},
		{"role is none of them", "role", `"Both"`},
		{"all roles", "role", `"*"`},
		{"limits is a number", "limits", `5`},
		{"a limit below zero", "limits", `{"concurrent":-1}`},
		{"half a limit", "limits", `{"concurrent":1.5}`},
		{"a limit too large", "limits", `{"concurrent":1e99}`},
		{"a limit that is text", "limits", `{"concurrent":"1"}`},
		{"an unknown limit", "limits", `{"Concurrent":1}`},
		{"cnf is empty", "cnf", `{}`},
		{"cnf with a thumbprint", "cnf", `{"jkt":"x"}`},
		{"cnf with two", "cnf", `{"jwk":{"kty":"OKP","crv":"Ed25519","x":"` + x + `"},"kid":"x"}`},
		{"cnf of another curve", "cnf", `{"jwk":{"kty":"OKP","crv":"X25519","x":"` + x + `"}}`},
		{"cnf of another kind", "cnf", `{"jwk":{"kty":"EC","crv":"P-256","x":"` + x + `"}}`},
		{"cnf with a private part", "cnf", `{"jwk":{"kty":"OKP","crv":"Ed25519","x":"` + x + `","d":"` + x + `"}}`},
		{"cnf with a short key", "cnf", `{"jwk":{"kty":"OKP","crv":"Ed25519","x":"` + x[4:] + `"}}`},
		{"cnf without its curve", "cnf", `{"jwk":{"kty":"OKP","x":"` + x + `"}}`},
	} {
		v := newVerifier(t, VerifierConfig{Audience: MetadataAudience}, key)
		claims := map[string]any{"aud": MetadataAudience, "size": "9/9/9"}
		claims[c.claim] = json.RawMessage(c.value)
		_, err := v.Authenticate(forge(key, agentHeader, with(claims)))
		refused(t, c.name, err)
	}
	agents := newVerifier(t, VerifierConfig{Audience: MetadataAudience}, key)
	_, err := agents.Authenticate(forge(key, agentHeader, with(map[string]any{"aud": MetadataAudience, "ranks": []string{"0/0/0"}})))
	refused(t, "ranks without size", err)
	client := newVerifier(t, VerifierConfig{}, key)
	_, err = client.Authenticate(forge(key, goodHeader, with(map[string]any{"cnf": mustConfirm(t, key)})))
	refused(t, "a client's token with cnf", err)
}

const agentHeader = `{"alg":"EdDSA","kid":"k1","typ":"pdrouter-agent+jwt"}`

func mustConfirm(t *testing.T, k *keys.Key) *Confirm {
	t.Helper()
	c, err := confirmation(k)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
