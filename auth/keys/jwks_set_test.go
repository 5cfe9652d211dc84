package keys_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

// A set as identity providers have them: keys for other purposes stand beside those that tokens are checked with.
func TestJWKSPassesOverWhatItCannotUse(t *testing.T) {
	rs, es, ed := keytest.Generate(t, keys.RS256), keytest.Generate(t, keys.ES256), keytest.New(t, "ed")
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate := keytest.Must(t)(x509.CreateCertificate(rand.Reader, template, template, rs.PublicPart(), rs.SigningPart()))
	jwk := func(k *keys.Key, change map[string]any) json.RawMessage {
		b, err := k.JWK()
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		maps.Copy(m, change)
		maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
		if b, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		return b
	}
	foreign := func(k any, id, alg string) json.RawMessage {
		b, err := (jose.JSONWebKey{Key: k, KeyID: id, Algorithm: alg}).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	rsPublic, esPublic := rs.Public(), es.Public()
	want := []json.RawMessage{
		jwk(rsPublic, map[string]any{"kid": "certified", "x5c": []string{base64.StdEncoding.EncodeToString(certificate)}, "x5u": "https://elsewhere.example/x"}),
		jwk(rsPublic, map[string]any{"kid": "no alg", "alg": nil, "use": nil}),
		jwk(esPublic, map[string]any{"kid": "ec no alg", "alg": nil, "key_ops": []string{"verify"}}),
		jwk(ed.Public(), map[string]any{"kid": "ed no alg", "alg": nil}),
		jwk(rsPublic, map[string]any{"kid": "spiffe", "alg": nil, "use": "jwt-svid"}),
	}
	others := []json.RawMessage{
		jwk(rsPublic, map[string]any{"kid": "enc", "use": "enc", "alg": "RSA-OAEP"}),
		jwk(rsPublic, map[string]any{"kid": "to encrypt", "use": nil, "key_ops": []string{"encrypt"}}),
		jwk(rsPublic, map[string]any{"kid": "other alg", "alg": "RS512"}),
		jwk(rsPublic, map[string]any{"kid": "HMAC", "alg": keys.HS256}),
		jwk(rsPublic, map[string]any{"kid": nil}),
		jwk(rsPublic, map[string]any{"kid": strings.Repeat("k", 129)}),
		jwk(esPublic, map[string]any{"kid": "x509", "use": "x509-svid"}),
		jwk(esPublic, map[string]any{"kid": "foreign certificate", "x5c": []string{base64.StdEncoding.EncodeToString(certificate)}}),
		jwk(es, map[string]any{"kid": "private"}),
		foreign(&p384.PublicKey, "P-384", "ES384"),
		foreign(&smallRSA(t).PublicKey, "small", keys.RS256),
		foreign([]byte(strings.Repeat("s", 32)), "symmetric", keys.HS256),
		json.RawMessage(`{"kty":"AKP","kid":"new","alg":"ML-DSA-44","pub":"AAAA"}`),
		json.RawMessage(`"text"`),
	}
	b, err := json.Marshal(map[string]any{"keys": slices.Concat(others, want), "spiffe_refresh_hint": 1, "spiffe_sequence": 5})
	if err != nil {
		t.Fatal(err)
	}
	set, err := keys.ParseJWKS(b)
	if err != nil {
		t.Fatal(err)
	}
	usable, passed := set.Keys, set.Others
	ids := slices.Sorted(maps.Keys(usable))
	if got := []string{"certified", "ec no alg", "ed no alg", "no alg", "spiffe"}; !slices.Equal(ids, got) || passed != len(others) {
		t.Errorf("got keys %q, %d passed over; want %q, %d", ids, passed, got, len(others))
	}
	for id, algorithm := range map[string]string{"no alg": keys.RS256, "ec no alg": keys.ES256, "ed no alg": keys.EdDSA} {
		if k := usable[id]; k == nil || k.Algorithm() != algorithm {
			t.Errorf("%s: got %v; want a key for %s", id, k, algorithm)
		}
	}
}

// One id on several keys costs that id alone, and is said once.
func TestJWKSWithSeveralKeysOfOneID(t *testing.T) {
	a, b, c := keytest.New(t, "a"), keytest.New(t, "b"), keytest.Generate(t, keys.ES256)
	text := strings.Replace(jwksOf(t, a, b, c), `"`+c.ID+`"`, `"b"`, 1)
	got, err := keys.ParseJWKS([]byte(text))
	if err != nil || len(got.Keys) != 1 || got.Keys["a"] == nil || got.Others != 2 || !slices.Equal(got.Doubled, []string{"b"}) {
		t.Errorf("got %+v, %v; want a alone", got, err)
	}
	twice := strings.Replace(jwksOf(t, a), "[", "["+jwksOf(t, a)[strings.Index(jwksOf(t, a), "[")+1:strings.LastIndex(jwksOf(t, a), "]")]+",", 1)
	if got, err := keys.ParseJWKS([]byte(twice)); err != nil || len(got.Keys) != 1 || got.Doubled != nil {
		t.Errorf("the same key twice: got %+v, %v; want it", got, err)
	}
	if _, err := keys.ParseJWKS([]byte(strings.Replace(jwksOf(t, b, c), `"`+c.ID+`"`, `"b"`, 1))); err == nil {
		t.Error("a set in which no key holds was accepted")
	}
	var log strings.Builder
	file := filepath.Join(t.TempDir(), "jwks.json")
	keytest.Write(t, file, text)
	j, err := keys.NewJWKS(keys.JWKSConfig{URL: file}, nil, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := j.Ask(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "several keys have one id"); n != 1 {
		t.Errorf("said %d times; want once:\n%s", n, log.String())
	}
}
