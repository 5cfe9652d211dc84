package kubesecrets

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
)

// failing is memory whose writes fail from some number on.
type failing struct {
	memory
	left int
}

func (f *failing) write() error {
	if f.left--; f.left < 0 {
		return errors.New("the API server is gone")
	}
	return nil
}

func (f *failing) Create(ctx context.Context, name string, d Data) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.memory.Create(ctx, name, d)
}

func (f *failing) Replace(ctx context.Context, name string, was, d Data) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.memory.Replace(ctx, name, was, d)
}

// trusted are the public keys of a Secret, as a gateway reads them from its files.
func trusted(t *testing.T, d Data) *keys.Trusted {
	t.Helper()
	var all []*keys.Key
	for name, b := range d {
		k, err := keys.Parse(b)
		if err != nil || k.Signs() {
			t.Fatalf("%s: %v, or it is private", name, err)
		}
		all = append(all, k)
	}
	set, err := keys.Trust(all...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// verifier returns what checks tokens by the keys of a Secret.
func verifier(t *testing.T, public Data, audience string) func(token string) error {
	t.Helper()
	v, err := auth.NewVerifier(auth.VerifierConfig{Issuer: Issuer, Audience: audience}, trusted(t, public))
	if err != nil {
		t.Fatal(err)
	}
	return func(token string) error {
		_, err := v.Verify(strings.TrimSpace(token))
		return err
	}
}

func id(t *testing.T, b []byte) string {
	t.Helper()
	k, err := keys.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return k.ID
}

// TestKeysRotateWithoutARefusal is four months of a CronJob that is stopped now and then: gateways that see a Secret five minutes late take every
// token until its end, and the key that signs records.
func TestKeysRotateWithoutARefusal(t *testing.T) {
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			s := &failing{memory: memory{}, left: 1000}
			if _, err := Make(t.Context(), s, "gw", "llm", Rotation{}, time.Now()); err != nil {
				t.Fatal(err)
			}
			first := id(t, s.memory["gw-admin-keys"]["current.jwk"])
			type version struct {
				at      time.Time
				secrets memory
			}
			versions := []version{{time.Now(), maps.Clone(s.memory)}}
			tokens := map[string]time.Time{}
			signed := map[string]bool{}
			var seen memory // by the gateways
			for start := time.Now(); time.Since(start) < 120*24*time.Hour; {
				pause := time.Minute // as when somebody upgrades the chart
				if r.IntN(4) > 0 {
					pause = time.Duration(r.Int64N(int64(8 * time.Hour)))
				}
				time.Sleep(pause)
				s.left = 1000
				if r.IntN(3) == 0 {
					s.left = r.IntN(6)
				}
				_, err := Make(t.Context(), s, "gw", "llm", Rotation{Every: 30 * 24 * time.Hour, Now: r.IntN(100) == 0}, time.Now())
				if err != nil && s.left >= 0 {
					t.Fatal(err)
				}
				versions = append(versions, version{time.Now(), maps.Clone(s.memory)})
				for len(versions) > 1 && time.Since(versions[1].at) >= 5*time.Minute {
					versions = versions[1:]
				}
				seen = versions[0].secrets
				token := string(s.memory["gw-prometheus-token"]["token"])
				if _, ok := tokens[token]; !ok {
					tokens[token] = time.Now()
				}
				maps.DeleteFunc(tokens, func(_ string, at time.Time) bool { return time.Since(at) >= tokenTTL })
				for _, public := range []Data{seen["gw-admin-keys"], s.memory["gw-admin-keys"]} {
					verify := verifier(t, public, auth.AdminAudience)
					for token, at := range tokens {
						if err := verify(token); err != nil {
							t.Fatalf("seed %d: a token of %v ago: %v", seed, time.Since(at), err)
						}
					}
				}
				own := id(t, s.memory["gw-record-key"]["own.jwk"])
				signed[own] = true
				if _, ok := trusted(t, seen["gw-record-keys"]).Find(own); !ok {
					t.Fatalf("seed %d: gateways do not know yet the key with which one of them signs records", seed)
				}
			}
			if len(signed) < 4 {
				t.Errorf("seed %d: %d keys signed records in four months", seed, len(signed))
			}
			if _, ok := trusted(t, seen["gw-admin-keys"]).Find(first); ok {
				t.Errorf("seed %d: the first key is still trusted", seed)
			}
			if n := len(s.memory["gw-admin-keys"]); n > 4 {
				t.Errorf("seed %d: %d keys are trusted", seed, n)
			}
		})
	}
}

// TestLeakedKeysAreWithdrawn: fresh keys sign, and nothing of before is taken any more.
func TestLeakedKeysAreWithdrawn(t *testing.T) {
	m := memory{}
	now := time.Now()
	if _, err := Make(t.Context(), m, "gw", "llm", Rotation{Now: true}, now); err != nil {
		t.Fatal(err)
	}
	before := maps.Clone(m)
	done, err := Make(t.Context(), m, "gw", "llm", Rotation{Leaked: true}, now.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ keys, token, audience string }{
		{"gw-agent-keys", "gw-gateway-token", auth.MetadataAudience}, {"gw-admin-keys", "gw-prometheus-token", auth.AdminAudience},
	} {
		verify := verifier(t, m[row.keys], row.audience)
		if verify(string(before[row.token]["token"])) == nil {
			t.Errorf("%s: a token of a leaked key is taken", row.token)
		}
		if err := verify(string(m[row.token]["token"])); err != nil {
			t.Errorf("%s: %v", row.token, err)
		}
	}
	if id(t, m["gw-record-key"]["own.jwk"]) == id(t, before["gw-record-key"]["own.jwk"]) || len(m["gw-record-keys"]) != 1 {
		t.Errorf("the key of records stays, or one of before: %v", done)
	}
}
