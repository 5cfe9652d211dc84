package auth

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

// fakeSource is a set of keys that can be made stale, and notes what it was missed for.
type fakeSource struct {
	set  atomic.Pointer[keys.Set]
	kids []string
}

func (s *fakeSource) Current() *keys.Set { return s.set.Load() }
func (s *fakeSource) Missed(kid string)  { s.kids = append(s.kids, kid) }

func newSource(until time.Time, of ...*keys.Key) *fakeSource {
	s := &fakeSource{}
	s.set.Store(keys.NewSet(until, of...))
	return s
}

// signedBy signs any claims with a key of any kind; the empty typ leaves the field out.
func signedBy(t testing.TB, key *keys.Key, typ string, claims map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.GetSigningMethod(key.Algorithm()), jwt.MapClaims(claims))
	token.Header["kid"] = key.ID
	delete(token.Header, "typ")
	if typ != "" {
		token.Header["typ"] = typ
	}
	s, err := token.SignedString(key.SigningPart())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	cluster = "https://kubernetes.default.svc.cluster.local"
	spire   = "https://spire.example.org"
)

// serviceAccount returns the claims of a token that a cluster projects into a pod.
func serviceAccount(namespace, account, pod string) map[string]any {
	now := time.Now().Unix()
	return map[string]any{
		"aud": []string{MetadataAudience}, "exp": now + 3607, "iat": now, "nbf": now, "iss": cluster,
		"jti": "7b7b1f2e-52f2-4a0b-9d57-0b6d2d1e6a11", "sub": "system:serviceaccount:" + namespace + ":" + account,
		"kubernetes.io": map[string]any{
			"namespace":      namespace,
			"node":           map[string]any{"name": "node-1", "uid": "646e7c5e-32d6-4d42-9dbd-e504e6cbe6b1"},
			"pod":            map[string]any{"name": pod, "uid": "5e0bd49b-f040-43b0-99b7-22765a53f7f3"},
			"serviceaccount": map[string]any{"name": account, "uid": "14ee3fa4-a7e2-420f-9f9a-dbc4507c3798"},
			"warnafter":      now + 3000,
		},
	}
}

func TestKubernetesServiceAccounts(t *testing.T) {
	key, own := keytest.Generate(t, keys.RS256), keytest.New(t, "k1")
	v, err := NewVerifier(VerifierConfig{Audience: MetadataAudience}, nil,
		Kubernetes(cluster, newSource(time.Time{}, key),
			SubjectRule{Subject: "system:serviceaccount:llm:prefill", Engine: "{pod}", Role: "prefill", Scopes: []string{"write", "read"}},
			SubjectRule{Subject: "system:serviceaccount:llm:{account}", Engine: "{account}", Role: "decode", Scopes: []string{"read"}},
			SubjectRule{Subject: "system:serviceaccount:{ns}:prefill", Scopes: []string{"plane"}}),
		Profile{Issuer: "issuer", Keys: newSource(time.Time{}, own)})
	if err != nil {
		t.Fatal(err)
	}
	change := func(c map[string]any, name string, value any) map[string]any {
		c = maps.Clone(c)
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return c
	}
	good := serviceAccount("llm", "prefill", "prefill-0")
	for _, c := range []struct {
		name, typ string
		claims    map[string]any
		want      Principal // nobody: refused
	}{
		{"a prefill pod", "", good, Principal{Engine: "prefill-0", Role: "prefill", Scopes: []string{"write", "read"}}},
		{"with typ JWT", "JWT", good, Principal{Engine: "prefill-0", Role: "prefill", Scopes: []string{"write", "read"}}},
		{"another account", "", serviceAccount("llm", "d0", "x"), Principal{Engine: "d0", Role: "decode", Scopes: []string{"read"}}},
		{"another namespace", "", serviceAccount("team", "prefill", "x"), Principal{Scopes: []string{"plane"}}},
		{"what it claims itself is not heard", "", change(change(serviceAccount("team", "prefill", "x"), "scope", "write read"), "engine_id", "e"), Principal{Scopes: []string{"plane"}}},
		{"claims of other kinds than ours", "", change(serviceAccount("team", "prefill", "x"), "role", 5), Principal{Scopes: []string{"plane"}}},
		{"no rule", "", serviceAccount("team", "decode", "x"), Principal{}},
		{"no pod", "", change(good, "kubernetes.io", nil), Principal{}},
		{"pod of another shape", "", change(good, "kubernetes.io", map[string]any{"pod": "prefill-0"}), Principal{}},
		{"typ of ours", "pdrouter-agent+jwt", good, Principal{}},
		{"for another audience", "", change(good, "aud", []string{"https://kubernetes.default.svc"}), Principal{}},
		{"no exp", "", change(good, "exp", nil), Principal{}},
		{"no iat", "", change(good, "iat", nil), Principal{}},
		{"not yet", "", change(good, "nbf", time.Now().Unix()+100), Principal{}},
		{"a year long", "", change(good, "exp", time.Now().Unix()+31536000), Principal{}},
		{"no service account", "", change(good, "sub", "prefill"), Principal{}},
		{"issuer of ours", "", change(good, "iss", "issuer"), Principal{}},
		{"unknown issuer", "", change(good, "iss", cluster+"/"), Principal{}},
		{"issuer is a list", "", change(good, "iss", []string{cluster}), Principal{}},
		{"bound to a key", "", change(good, "cnf", mustConfirm(t, own)), Principal{}},
	} {
		p, err := v.Authenticate(signedBy(t, key, c.typ, c.claims))
		if fmt.Sprint(p.Engine, p.Role, p.Scopes) != fmt.Sprint(c.want.Engine, c.want.Role, c.want.Scopes) || (err == nil) != (c.want.Scopes != nil) {
			t.Errorf("%s: got %+v, %v; want %+v", c.name, p, err, c.want)
		}
		if err != nil {
			refused(t, c.name, err)
		}
	}
	// A key is its issuer's: neither can sign for the other.
	_, err = v.Authenticate(signedBy(t, own, "", good))
	refused(t, "a cluster's token with our key", err)
	_, err = v.Authenticate(forge(own, agentHeader, with(map[string]any{"aud": MetadataAudience, "iss": cluster})))
	refused(t, "our token in the cluster's name", err)
	if _, err = v.Authenticate(forge(own, agentHeader, with(map[string]any{"aud": MetadataAudience}))); err != nil {
		t.Errorf("our own token beside it: %v", err)
	}
}

func TestSPIFFEIdentities(t *testing.T) {
	for _, algorithm := range []string{keys.ES256, keys.RS256} {
		key := keytest.Generate(t, algorithm)
		v, err := NewVerifier(VerifierConfig{Audience: MetadataAudience}, nil, SPIFFE(spire, newSource(time.Time{}, key), SubjectRule{
			Subject: "spiffe://example.org/ns/llm/engine/{engine}", Engine: "{engine}", Role: "both", Scopes: []string{"write", "read"},
		}))
		if err != nil {
			t.Fatal(err)
		}
		id := "spiffe://example.org/ns/llm/engine/e0"
		claims := func(sub string, change map[string]any) map[string]any {
			c := map[string]any{"iss": spire, "sub": sub, "aud": MetadataAudience, "exp": time.Now().Unix() + 300}
			maps.Copy(c, change)
			maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
			return c
		}
		for _, c := range []struct {
			name, typ string
			claims    map[string]any
			ok        bool
		}{
			{"no typ, no iat, no jti", "", claims(id, nil), true},
			{"typ JWT", "JWT", claims(id, nil), true},
			{"typ JOSE", "JOSE", claims(id, map[string]any{"iat": time.Now().Unix()}), true},
			{"typ jwt", "jwt", claims(id, nil), false},
			{"aud in a list", "", claims(id, map[string]any{"aud": []string{MetadataAudience}}), true},
			{"for others too", "", claims(id, map[string]any{"aud": []string{MetadataAudience, "x"}}), false},
			{"no exp", "", claims(id, map[string]any{"exp": nil}), false},
			{"too long", "", claims(id, map[string]any{"exp": time.Now().Unix() + 90000}), false},
			{"another trust domain", "", claims("spiffe://example.com/ns/llm/engine/e0", nil), false},
			{"more of a path", "", claims(id+"/x", nil), false},
			{"less of a path", "", claims("spiffe://example.org/ns/llm/engine/", nil), false},
			{"no SPIFFE id", "", claims("e0", nil), false},
			{"no issuer", "", claims(id, map[string]any{"iss": nil}), false},
		} {
			p, err := v.Authenticate(signedBy(t, key, c.typ, c.claims))
			if (err == nil) != c.ok || c.ok && (p.Engine != "e0" || p.Role != "both" || p.Subject != id || !p.Has("write")) {
				t.Errorf("%s, %s: got %+v, %v; want accepted: %t", algorithm, c.name, p, err, c.ok)
			}
		}
	}
	key := keytest.New(t, "k1")
	v, err := NewVerifier(VerifierConfig{Audience: MetadataAudience}, nil, SPIFFE(spire, newSource(time.Time{}, key), SubjectRule{Subject: "spiffe://a/{e}", Scopes: []string{"read"}}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Authenticate(forge(key, `{"alg":"EdDSA","kid":"k1"}`, with(map[string]any{"iss": spire, "aud": MetadataAudience, "sub": "spiffe://a/e"})))
	refused(t, "an algorithm that the profile does not have", err)
}

// Each algorithm signs and is checked, and no key is taken for another algorithm than its own.
func TestMintAndVerifyEachAlgorithm(t *testing.T) {
	keys := []*keys.Key{keytest.Generate(t, keys.EdDSA), keytest.Generate(t, keys.ES256), keytest.Generate(t, keys.RS256)}
	v := newVerifier(t, VerifierConfig{}, keys...)
	for _, k := range keys {
		if _, err := v.Authenticate(mint(t, k, Grant{})); err != nil {
			t.Errorf("%s: %v", k.Algorithm(), err)
		}
		for _, other := range keys {
			if other == k {
				continue
			}
			wrong := *k
			wrong.ID = other.ID
			_, err := v.Authenticate(mint(t, &wrong, Grant{}))
			refused(t, k.Algorithm()+" in the name of "+other.Algorithm(), err)
		}
	}
}

func TestFault37StaleKeysAreNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := keytest.New(t, "k1")
		source := newSource(time.Now().Add(time.Minute), key)
		v, err := NewVerifier(VerifierConfig{Issuer: "issuer", Audience: ClientAudience}, source)
		if err != nil {
			t.Fatal(err)
		}
		token := mint(t, key, Grant{})
		if _, err := v.Authenticate(token); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		_, err = v.Authenticate(token)
		var e *Error
		if !errors.As(err, &e) || e.Code != JWKSStale || e.HTTPStatus() != http.StatusServiceUnavailable || e.Challenge() != "" || strings.Contains(e.Message(), "issuer") {
			t.Errorf("got %v; want 503 that says nothing of the issuer", err)
		}
	})
}

func TestFault36UnknownKeyIsHintedAt(t *testing.T) {
	source := newSource(time.Time{}, keytest.New(t, "k1"))
	v, err := NewVerifier(VerifierConfig{Issuer: "issuer", Audience: ClientAudience}, source)
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Authenticate(mint(t, keytest.New(t, "k2"), Grant{}))
	refused(t, "unknown key", err)
	_, err = v.Authenticate(mint(t, keytest.New(t, "k3"), Grant{Issuer: "other"}))
	refused(t, "unknown issuer", err)
	if len(source.kids) != 1 || source.kids[0] != "k2" {
		t.Errorf("missed %q; want k2 alone", source.kids)
	}
}

func TestDevelopmentSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(strings.Repeat("s", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret, err := keys.DevelopmentSecret(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVerifier(VerifierConfig{Audience: ClientAudience}, nil, Development("issuer", secret))
	if err != nil {
		t.Fatal(err)
	}
	token := mint(t, secret, Grant{})
	if _, err := v.Authenticate(token); err != nil {
		t.Error(err)
	}
	key := keytest.New(t, "k1")
	_, err = v.Authenticate(mint(t, key, Grant{}))
	refused(t, "a token with a key", err)
	if _, err := NewVerifier(VerifierConfig{Issuer: "a", Audience: ClientAudience}, newSource(time.Time{}, key), Development("issuer", secret)); err == nil {
		t.Error("a secret stands beside another issuer")
	}
	// Elsewhere no secret is taken, whatever the set of keys holds.
	plain, err := NewVerifier(VerifierConfig{Issuer: "issuer", Audience: ClientAudience}, newSource(time.Time{}, secret))
	if err != nil {
		t.Fatal(err)
	}
	_, err = plain.Authenticate(token)
	refused(t, "a secret outside development", err)
}

func TestProfilesThatCheckNothing(t *testing.T) {
	source := newSource(time.Time{}, keytest.New(t, "k1"))
	rule := SubjectRule{Subject: "system:serviceaccount:a:b", Scopes: []string{"read"}}
	for name, profiles := range map[string][]Profile{
		"no issuer":           {{Keys: source}},
		"no keys":             {{Issuer: "a"}},
		"issuer twice":        {{Issuer: "a", Keys: source}, {Issuer: "a", Keys: source}},
		"HS256":               {{Issuer: "a", Keys: source, Algorithms: []string{keys.HS256}}},
		"none":                {{Issuer: "a", Keys: source, Algorithms: []string{"none"}}},
		"foreign, no rules":   {Kubernetes("a", source)},
		"ours, with rules":    {{Issuer: "a", Keys: source, Subjects: []SubjectRule{rule}}},
		"rule without prefix": {SPIFFE("a", source, rule)},
		"issuer with a |":     {{Issuer: "a|b", Keys: source}},
		"negative leeway":     {{Issuer: "a", Keys: source, Leeway: -1}},
	} {
		if _, err := NewVerifier(VerifierConfig{Audience: MetadataAudience}, nil, profiles...); err == nil {
			t.Errorf("%s: a verifier was made", name)
		}
	}
	if _, err := NewVerifier(VerifierConfig{}, nil, Profile{Issuer: "a", Keys: source}); err == nil {
		t.Error("a verifier without an audience was made")
	}
}
