package bench

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"pdrouter/auth"
	"pdrouter/auth/keys"
)

// authSuite measures what it costs to verify tokens and keys.
func authSuite() Suite {
	return Suite{Name: "auth", Brief: "time to know who calls, beside the bare operations", run: func(ctx context.Context, r *Run) error {
		rows, err := authRows()
		if err != nil {
			return err
		}
		return r.versus(ctx, rows)
	}}
}

func authRows() ([]versus, error) {
	seen, err := seenBefore()
	if err != nil {
		return nil, err
	}
	rows := []versus{seen}
	for _, algorithm := range []string{keys.EdDSA, keys.ES256, keys.RS256} {
		first, err := seenFirst(algorithm)
		if err != nil {
			return nil, err
		}
		rows = append(rows, first)
	}
	rows[1].goal = 100 // EdDSA
	key, err := apiKey()
	if err != nil {
		return nil, err
	}
	return append(rows, key), nil
}

const authSlice = 50 * time.Millisecond

func seenBefore() (versus, error) {
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return versus{}, err
	}
	v, token, err := verifierOf(key)
	if err != nil {
		return versus{}, err
	}
	return versus{
		name: "token, seen before", unit: "µs", beside: "digest", goal: 2, slice: authSlice,
		run: func(n int) error {
			for range n {
				if p, err := v.Authenticate(token); err != nil || p.Subject != "bench" {
					return fmt.Errorf("%w: token is refused: %w", errVoid, err)
				}
			}
			return nil
		},
		limit: digests(token),
	}, nil
}

func digests(text string) func(int) error {
	var sum byte
	return func(n int) error {
		for range n {
			d := sha256.Sum256([]byte(text))
			sum ^= d[0]
		}
		return nil
	}
}

// verifierOf returns a verifier that trusts a key alone, and a token that it signed.
func verifierOf(key *keys.Key) (*auth.Verifier, string, error) {
	keys, err := keys.Trust(key)
	if err != nil {
		return nil, "", err
	}
	v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: "bench", Audience: auth.ClientAudience}, keys)
	if err != nil {
		return nil, "", err
	}
	token, err := auth.Mint(key, auth.Grant{Issuer: "bench", Audience: auth.ClientAudience, Subject: "bench", TTL: time.Hour, Models: []string{"tiny"}})
	return v, token, err
}

// seenFirst verifies a token of one algorithm. The peer verifies one of its own key with the same claims.
func seenFirst(algorithm string) (versus, error) {
	key, err := keys.Generate(algorithm)
	if err != nil {
		return versus{}, err
	}
	v, token, err := verifierOf(key)
	if err != nil {
		return versus{}, err
	}
	peer, err := bareJWT(algorithm, token)
	if err != nil {
		return versus{}, err
	}
	return versus{
		name: "token, seen first, " + algorithm, unit: "µs", beside: "golang-jwt alone", times: 1.1, slice: authSlice,
		run: func(n int) error {
			for range n {
				if _, err := v.Verify(token); err != nil {
					return fmt.Errorf("%w: %w", errVoid, err)
				}
			}
			return nil
		},
		limit: peer,
	}, nil
}

// bareJWT returns what verifies, with the library's parser alone, a token that says what the given one does.
func bareJWT(algorithm, like string) (func(int) error, error) {
	var private crypto.Signer
	var err error
	switch algorithm {
	case "ES256":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "RS256":
		private, err = rsa.GenerateKey(rand.Reader, 3072)
	default:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	var claims auth.Claims
	if _, _, err := jwt.NewParser().ParseUnverified(like, &claims); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	token, err := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), &claims).SignedString(private)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	parser := jwt.NewParser(jwt.WithValidMethods([]string{algorithm}), jwt.WithStrictDecoding(), jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(), jwt.WithIssuer("bench"), jwt.WithAudience(auth.ClientAudience))
	return func(n int) error {
		for range n {
			var c auth.Claims
			if _, err := parser.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return private.Public(), nil }); err != nil {
				return fmt.Errorf("%w: %w", errVoid, err)
			}
		}
		return nil
	}, nil
}

func apiKey() (versus, error) {
	dir, err := os.MkdirTemp("", "pdrouter-bench")
	if err != nil {
		return versus{}, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "keys")
	var lines strings.Builder
	for i := range 9_999 {
		fmt.Fprintf(&lines, "client-%d:%x\n", i, sha256.Sum256([]byte(strconv.Itoa(i))))
	}
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		return versus{}, fmt.Errorf("bench: %w", err)
	}
	key, err := auth.AppendAPIKey(file, "client-9999", nil, auth.Limits{})
	if err != nil {
		return versus{}, err
	}
	keys, err := auth.LoadAPIKeys(file)
	if err != nil {
		return versus{}, err
	}
	clients, err := auth.NewClients(auth.ClientsConfig{APIKeys: keys})
	if err != nil {
		return versus{}, err
	}
	header := "Bearer " + key
	return versus{
		name: "API key", unit: "µs", beside: "digest", goal: 2, slice: authSlice,
		run: func(n int) error {
			for range n {
				if p, err := clients.Authenticate(header); err != nil || p.Subject != "client-9999" {
					return fmt.Errorf("%w: key is refused: %w", errVoid, err)
				}
			}
			return nil
		},
		limit: digests(key),
	}, nil
}
