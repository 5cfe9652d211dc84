package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

// FuzzVerify: whatever header and claims are signed with a trusted key, only those of its issuer's profile are taken, and
// a foreign issuer gives nothing but what a rule says.
func FuzzVerify(f *testing.F) {
	key := keytest.New(f, "k1")
	source := newSource(time.Time{}, key)
	foreign := func(p Profile) Profile {
		p.Algorithms = []string{keys.EdDSA} // the one that forge signs with
		return p
	}
	v, err := NewVerifier(VerifierConfig{Issuer: "issuer", Audience: MetadataAudience}, source,
		foreign(Kubernetes(cluster, source, SubjectRule{Subject: "system:serviceaccount:llm:{account}", Engine: "{pod}", Role: "prefill", Scopes: []string{"read"}})),
		foreign(SPIFFE(spire, source, SubjectRule{Subject: "spiffe://example.org/{engine}", Engine: "{engine}", Role: "decode", Scopes: []string{"write"}})))
	if err != nil {
		f.Fatal(err)
	}
	agent := map[string]any{"aud": MetadataAudience, "engine_id": "e", "ranks": []string{"0/0/0"}, "size": "1/1/1"}
	f.Add(agentHeader, with(agent))
	f.Add(goodHeader, with(nil))
	account, err := json.Marshal(serviceAccount("llm", "prefill", "p-0"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(`{"alg":"EdDSA","kid":"k1"}`, string(account))
	f.Add(`{"alg":"EdDSA","kid":"k1","typ":"JWT"}`, with(map[string]any{"iss": spire, "aud": MetadataAudience, "sub": "spiffe://example.org/e0", "iat": nil}))
	f.Add(`{"alg":"none"}`, `{}`)
	f.Add(`{"alg":"EdDSA","kid":"k1","typ":"at+jwt","crit":[]}`, `{"exp":1e999}`)
	f.Fuzz(func(t *testing.T, head, claims string) {
		token := forge(key, head, claims) // the signature is good: only the form decides
		p, err := v.Authenticate(token)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != InvalidToken {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		h, said, err := Inspect(token)
		if err != nil {
			t.Fatalf("accepted what cannot be read: %v", err)
		}
		foreign := said["iss"] != "issuer"
		if typ, ok := h["typ"].(string); !foreign && typ != typeOf(MetadataAudience) || foreign && ok && typ == typeOf(MetadataAudience) {
			t.Fatalf("accepted %q of %v", head, said["iss"])
		}
		if p.Subject == "" || p.Subject != said["sub"] || p.Expires.IsZero() || !strings.Contains(claims, MetadataAudience) && !strings.Contains(claims, `\\`) {
			t.Fatalf("accepted %q %q as %+v", head, claims, p)
		}
		if foreign && (len(p.Scopes) != 1 || p.Engine == "" || p.Key != nil || p.Ranks != nil || p.Reads != nil || p.Models != nil) {
			t.Fatalf("%q decided more than a rule gives: %+v", claims, p)
		}
	})
}

// Whatever bytes stand where a token should, they are refused, and no more than that.
func FuzzAuthenticate(f *testing.F) {
	v := newVerifier(f, VerifierConfig{}, keytest.New(f, "k1"))
	f.Add("a.b.c")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(goodHeader)) + ".e30.AA")
	f.Fuzz(func(t *testing.T, token string) {
		_, err := v.Authenticate(token)
		var e *Error
		if !errors.As(err, &e) || e.HTTPStatus() != 401 {
			t.Fatalf("%q: %v", token, err)
		}
	})
}
