package auth

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/internal/strictjson"
)

// FuzzOwnClaims: claims that are taken say the same to the reader of the library.
func FuzzOwnClaims(f *testing.F) {
	for _, s := range []string{
		`{"iss":"i","sub":"s","jti":"j","aud":"pdrouter","exp":1e9,"iat":1.9,"nbf":0,"client_id":"c","scope":"a b","models":["m"]}`,
		`{"aud":["pdrouter-metadata","x"],"engine_id":"e","role":"both","ranks":["0/0/0"],"size":"1/1/1","reads":[],"limits":{"concurrent":4,"tokens_per_minute":0}}`,
		`{"aud":[],"cnf":{"jwk":{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}},"other":[{}]}`,
		`{"aud":"a","exp":"1"}`, `{"aud":"a","exp":null}`, `{"aud":null}`, `{"aud":[1]}`, `{"aud":"a","exp":-1}`, `{"aud":"a","exp":1e300}`, `{"aud":"a","sub":1}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := strictjson.Object([]byte(text))
		if err != nil {
			return
		}
		for name := range m {
			if as := strictjson.Fold(name); as != name && isClaim(as) {
				return // strictClaims refuses it
			}
		}
		got, err := ownClaims(m, MetadataAudience)
		if err != nil {
			return
		}
		var want Claims
		if err := json.NewDecoder(bytes.NewReader([]byte(text))).Decode(&want); err != nil {
			t.Fatalf("%q was taken: %v", text, err)
		}
		at := func(d *jwt.NumericDate) time.Time {
			if d == nil {
				return time.Time{}
			}
			return d.Time
		}
		if diff := cmp.Diff(got, want, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b *jwt.NumericDate) bool { return at(a).Equal(at(b)) })); diff != "" {
			t.Fatalf("%q (-got +want):\n%s", text, diff)
		}
	})
}

// A claim that is minted is read: none is forgotten here when another comes in.
func TestEveryClaimIsRead(t *testing.T) {
	key := keytest.New(t, "k1")
	read := map[string]bool{}
	for _, g := range []Grant{
		{Audience: ClientAudience, Models: []string{"m"}, Limits: Limits{Requests: 1, Tokens: 2, Concurrent: 3}},
		{Audience: MetadataAudience, Scopes: []string{"write"}, Engine: "e", Role: "both", Ranks: []string{"0/0/0"}, Size: "1/1/1", Reads: []string{"d"}, Confirm: keytest.New(t, "own")},
	} {
		c, err := newVerifier(t, VerifierConfig{Audience: g.Audience}, key).Verify(mint(t, key, g))
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range reflect.VisibleFields(reflect.TypeFor[Claims]()) {
			if !reflect.ValueOf(*c).FieldByIndex(field.Index).IsZero() {
				read[field.Name] = true
			}
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Claims]()) {
		if !read[field.Name] && field.Name != "NotBefore" {
			t.Errorf("the claim %s is not read", field.Name)
		}
	}
}

// What is no date is refused and not taken for one that is missing.
func TestDatesAreStrict(t *testing.T) {
	key := keytest.New(t, "k1")
	v := newVerifier(t, VerifierConfig{}, key)
	for _, name := range []string{"exp", "nbf", "iat"} {
		for _, value := range []string{`null`, `"1"`, `true`, `-1`, `1e300`, `253402300800`, `{}`} {
			_, err := v.Authenticate(forge(key, goodHeader, with(map[string]any{name: json.RawMessage(value)})))
			refused(t, name+" is "+value, err)
		}
	}
	for _, value := range []string{`null`, `5`, `[5]`, `["pdrouter",5]`, `{}`} {
		_, err := v.Authenticate(forge(key, goodHeader, with(map[string]any{"aud": json.RawMessage(value)})))
		refused(t, "aud is "+value, err)
	}
}
