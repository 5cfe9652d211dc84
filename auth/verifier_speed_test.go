package auth

import (
	"testing"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

// TestAuthenticateSeenAllocatesNothing: a token that was seen costs its digest, and nothing that must be collected.
func TestAuthenticateSeenAllocatesNothing(t *testing.T) {
	key := keytest.New(t, "k1")
	clients, err := NewClients(ClientsConfig{Verifier: newVerifier(t, VerifierConfig{}, key)})
	if err != nil {
		t.Fatal(err)
	}
	value := "Bearer " + mint(t, key, Grant{Scopes: []string{"infer"}, Models: []string{"tiny", "large"}})
	if got := testing.AllocsPerRun(1000, func() {
		if _, err := clients.Authenticate(value); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations for a token that was seen; want 0", got)
	}
}

func BenchmarkVerifyCached(b *testing.B) {
	key := keytest.New(b, "k1")
	v := newVerifier(b, VerifierConfig{}, key)
	token := mint(b, key, Grant{Scopes: []string{"infer"}, Models: []string{"tiny"}})
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(token)))
		for b.Loop() {
			if _, err := v.Authenticate(token); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("together", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := v.Authenticate(token); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func BenchmarkVerifyCold(b *testing.B) {
	for _, algorithm := range []string{keys.EdDSA, keys.ES256, keys.RS256} {
		b.Run(algorithm, func(b *testing.B) {
			key, err := keys.Generate(algorithm)
			if err != nil {
				b.Fatal(err)
			}
			v := newVerifier(b, VerifierConfig{}, key)
			token := mint(b, key, Grant{Scopes: []string{"infer"}, Models: []string{"tiny"}})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
