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
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
)

// authSuite measures what it costs to verify tokens and keys.
func authSuite() harness.Suite {
	return harness.Suite{Name: "auth", Brief: "time to know who calls, beside the bare operations", Run: func(ctx context.Context, r *harness.Run) error {
		rows, err := authRows()
		if err != nil {
			return err
		}
		return r.CompareEach(ctx, rows)
	}}
}

func authRows() ([]harness.Versus, error) {
	seen, err := seenBefore()
	if err != nil {
		return nil, err
	}
	rows := []harness.Versus{seen}
	for _, algorithm := range []string{keys.EdDSA, keys.ES256, keys.RS256} {
		first, err := seenFirst(algorithm)
		if err != nil {
			return nil, err
		}
		rows = append(rows, first)
	}
	rows[1].Goal = 100 // EdDSA
	key, err := apiKey()
	if err != nil {
		return nil, err
	}
	return append(rows, key), nil
}

const authSlice = 50 * time.Millisecond

func seenBefore() (harness.Versus, error) {
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return harness.Versus{}, err
	}
	v, token, err := verifierOf(key)
	if err != nil {
		return harness.Versus{}, err
	}
	return harness.Versus{
		Name: "token, seen before", Unit: "µs", Beside: "digest", Goal: 2, Slice: authSlice,
		Run: func(n int) error {
			for range n {
				if p, err := v.Authenticate(token); err != nil || p.Subject != "bench" {
					return fmt.Errorf("%w: token is refused: %w", load.ErrVoid, err)
				}
			}
			return nil
		},
		Limit: digests(token),
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
func seenFirst(algorithm string) (harness.Versus, error) {
	key, err := keys.Generate(algorithm)
	if err != nil {
		return harness.Versus{}, err
	}
	v, token, err := verifierOf(key)
	if err != nil {
		return harness.Versus{}, err
	}
	peer, err := bareJWT(algorithm, token)
	if err != nil {
		return harness.Versus{}, err
	}
	return harness.Versus{
		Name: "token, seen first, " + algorithm, Unit: "µs", Beside: "golang-jwt alone", Times: 1.1, Slice: authSlice,
		Run: func(n int) error {
			for range n {
				if _, err := v.Verify(token); err != nil {
					return fmt.Errorf("%w: %w", load.ErrVoid, err)
				}
			}
			return nil
		},
		Limit: peer,
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
				return fmt.Errorf("%w: %w", load.ErrVoid, err)
			}
		}
		return nil
	}, nil
}

func apiKey() (harness.Versus, error) {
	dir, err := os.MkdirTemp("", "pdrouter-bench")
	if err != nil {
		return harness.Versus{}, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "keys")
	var lines strings.Builder
	for i := range 9_999 {
		fmt.Fprintf(&lines, "client-%d:%x\n", i, sha256.Sum256([]byte(strconv.Itoa(i))))
	}
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		return harness.Versus{}, fmt.Errorf("bench: %w", err)
	}
	key, err := auth.AppendAPIKey(file, "client-9999", nil, auth.Limits{})
	if err != nil {
		return harness.Versus{}, err
	}
	keys, err := auth.LoadAPIKeys(file)
	if err != nil {
		return harness.Versus{}, err
	}
	clients, err := auth.NewClients(auth.ClientsConfig{APIKeys: keys})
	if err != nil {
		return harness.Versus{}, err
	}
	header := "Bearer " + key
	return harness.Versus{
		Name: "API key", Unit: "µs", Beside: "digest", Goal: 2, Slice: authSlice,
		Run: func(n int) error {
			for range n {
				if p, err := clients.Authenticate(header); err != nil || p.Subject != "client-9999" {
					return fmt.Errorf("%w: key is refused: %w", load.ErrVoid, err)
				}
			}
			return nil
		},
		Limit: digests(key),
	}, nil
}
