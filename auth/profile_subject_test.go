package auth

import (
	"strings"
	"testing"
	"time"

	"pdrouter/auth/internal/keytest"
	"pdrouter/auth/keys"
)

func TestSubjectRules(t *testing.T) {
	for _, c := range []struct {
		name, audience string
		rule           SubjectRule
		want           string // "" for a sound rule
	}{
		{"sound", MetadataAudience, SubjectRule{Subject: "a:{x}/b", Engine: "{x}", Role: "both", Scopes: []string{"read"}}, ""},
		{"client", ClientAudience, SubjectRule{Subject: "a:{x}", Tenant: "{x}", Models: []string{"m"}, Limits: Limits{Requests: 1}}, ""},
		{"no subject", ClientAudience, SubjectRule{}, "subject is empty"},
		{"part of a segment", ClientAudience, SubjectRule{Subject: "a-{x}"}, `subject has "a-{x}"`},
		{"two in a segment", ClientAudience, SubjectRule{Subject: "{x}{y}"}, `subject has "{x}{y}"`},
		{"capital name", ClientAudience, SubjectRule{Subject: "{X}"}, `subject has "{X}"`},
		{"brace", ClientAudience, SubjectRule{Subject: "{x"}, `subject has "{x"`},
		{"twice", ClientAudience, SubjectRule{Subject: "{x}:{x}"}, "subject has {x} twice"},
		{"pod", ClientAudience, SubjectRule{Subject: "{pod}"}, "which is the pod"},
		{"unknown name", MetadataAudience, SubjectRule{Subject: "a", Engine: "{x}", Scopes: []string{"read"}}, `engine is "{x}", which subject does not have`},
		{"mixed", MetadataAudience, SubjectRule{Subject: "{x}", Engine: "e-{x}", Scopes: []string{"read"}}, `engine is "e-{x}"; want fixed text`},
		{"engine of a client", ClientAudience, SubjectRule{Subject: "a", Engine: "e"}, "engine is"},
		{"models of an agent", MetadataAudience, SubjectRule{Subject: "a", Models: []string{"m"}, Scopes: []string{"read"}}, "models is for clients only"},
		{"no model at all", ClientAudience, SubjectRule{Subject: "a", Models: []string{}}, "models is empty"},
		{"a model without a name", ClientAudience, SubjectRule{Subject: "a", Models: []string{""}}, "models has an empty name"},
		{"role", MetadataAudience, SubjectRule{Subject: "a", Role: "x", Scopes: []string{"read"}}, `role is "x"`},
		{"no scopes", AdminAudience, SubjectRule{Subject: "a"}, "scopes is empty"},
		{"unknown scope", AdminAudience, SubjectRule{Subject: "a", Scopes: []string{"plane"}}, `scopes has "plane"`},
		{"two words", ClientAudience, SubjectRule{Subject: "a", Scopes: []string{"a b"}}, `scopes has "a b"`},
		{"limit", ClientAudience, SubjectRule{Subject: "a", Limits: Limits{Tokens: -1}}, "limits.tokens_per_minute is -1"},
	} {
		err := c.rule.validate(c.audience)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", c.name, err, c.want)
		}
	}
}

// Tenants of two issuers are never the same one, nor is an API key's, whatever they call themselves.
func TestTenantsAreTheirIssuers(t *testing.T) {
	path := apiKeysFile(t, "")
	apiKey, err := AppendAPIKey(path, "acme", nil, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	apiKeys, err := LoadAPIKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	own, account, fixed := keytest.New(t, "own"), keytest.Generate(t, keys.ES256), keytest.Generate(t, keys.RS256)
	rule := SubjectRule{Subject: "system:serviceaccount:{ns}:{sa}", Tenant: "{ns}"}
	text := SubjectRule{Subject: "system:serviceaccount:{ns}:{sa}", Tenant: "acme"}
	plain := SubjectRule{Subject: "system:serviceaccount:{ns}:{sa}"}
	v, err := NewVerifier(VerifierConfig{Audience: ClientAudience}, nil,
		Profile{Issuer: "a", Keys: newSource(time.Time{}, own)}, Profile{Issuer: "b", Keys: newSource(time.Time{}, own)},
		Kubernetes("c", newSource(time.Time{}, account), rule), Kubernetes("d", newSource(time.Time{}, account), rule),
		Kubernetes("e", newSource(time.Time{}, fixed), text), Kubernetes("f", newSource(time.Time{}, fixed), plain))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := NewClients(ClientsConfig{APIKeys: apiKeys, Verifier: v})
	if err != nil {
		t.Fatal(err)
	}
	token := func(key *keys.Key, issuer string) string {
		claims := serviceAccount("acme", "x", "x-0")
		claims["iss"], claims["aud"] = issuer, ClientAudience
		return signedBy(t, key, "", claims)
	}
	for credentials, want := range map[string]string{
		apiKey: "acme",
		mint(t, own, Grant{Issuer: "a", Subject: "acme"}): "a|acme",
		mint(t, own, Grant{Issuer: "b", Subject: "acme"}): "b|acme",
		token(account, "c"): "c|acme",
		token(account, "d"): "d|acme",
		token(fixed, "e"):   "e|acme",
		token(fixed, "f"):   "f|system:serviceaccount:acme:x",
	} {
		if p, err := clients.Authenticate("Bearer " + credentials); err != nil || p.Tenant != want {
			t.Errorf("got the tenant %q, %v; want %q", p.Tenant, err, want)
		}
	}
}

// FuzzSubjects: a subject fits a pattern only if putting what its names stand for into the pattern gives the subject
// back, and no name reaches over a boundary.
func FuzzSubjects(f *testing.F) {
	f.Add("system:serviceaccount:llm:{x}", "system:serviceaccount:llm:prefill")
	f.Add("spiffe://example.org/{a}/engine/{b}", "spiffe://example.org/llm/engine/e0")
	f.Add("{a}:{b}", ":")
	f.Fuzz(func(t *testing.T, pattern, subject string) {
		r, err := SubjectRule{Subject: pattern}.compile()
		if err != nil {
			return
		}
		names, ok := r.match(subject)
		if !ok {
			return
		}
		again := strings.Join(r.parts, "")
		for n, value := range names {
			if value == "" || strings.ContainsAny(value, ":/") {
				t.Fatalf("%q fits %q with %s = %q", subject, pattern, n, value)
			}
			again = strings.Replace(again, "{"+n+"}", "\x00"+n+"\x00", 1)
		}
		for n, value := range names {
			again = strings.Replace(again, "\x00"+n+"\x00", value, 1)
		}
		if again != subject && !strings.Contains(subject, "\x00") {
			t.Fatalf("%q fits %q with %v, which gives %q", subject, pattern, names, again)
		}
	})
}
