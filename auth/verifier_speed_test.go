package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

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

// BenchmarkBareJWT stands beside BenchmarkVerifyCold: golang-jwt's parser alone, with the options that ask for the same checks.
func BenchmarkBareJWT(b *testing.B) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		b.Fatal(err)
	}
	for algorithm, private := range map[string]crypto.Signer{keys.EdDSA: ed, keys.ES256: ec, keys.RS256: rs} {
		b.Run(algorithm, func(b *testing.B) {
			claims := jwt.RegisteredClaims{Issuer: "bench", Audience: jwt.ClaimStrings{ClientAudience}, Subject: "bench", IssuedAt: jwt.NewNumericDate(time.Now()), ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour))}
			token, err := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), claims).SignedString(private)
			if err != nil {
				b.Fatal(err)
			}
			parser := jwt.NewParser(jwt.WithValidMethods([]string{algorithm}), jwt.WithStrictDecoding(), jwt.WithExpirationRequired(),
				jwt.WithIssuedAt(), jwt.WithIssuer("bench"), jwt.WithAudience(ClientAudience))
			b.ReportAllocs()
			for b.Loop() {
				var c Claims
				if _, err := parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return private.Public(), nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
