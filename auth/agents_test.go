package auth

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pdrouter/auth/internal/keytest"
)

func request(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func status(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.HTTPStatus()
	}
	if err != nil {
		return 0
	}
	return http.StatusOK
}

func TestFault41AgentsRights(t *testing.T) {
	key := keytest.New(t, "k1")
	agents, err := NewAgents(newVerifier(t, VerifierConfig{Audience: MetadataAudience}, key))
	if err != nil {
		t.Fatal(err)
	}
	agent := func(engine, role string, reads []string, scopes ...string) string {
		return mint(t, key, Grant{Audience: MetadataAudience, Engine: engine, Role: role, Reads: reads, Scopes: scopes})
	}
	p0 := agent("prefill-0", "prefill", nil, "write", "read")
	for _, c := range []struct {
		name, token, action, engine, role string
		want                              int
	}{
		{"a role that is none reads both", agent("x", "", nil, "read"), "read", "both-0", "both", 403},
		{"own engine", p0, "write", "prefill-0", "", 200},
		{"other engine", p0, "write", "prefill-1", "", 403},
		{"write without scope", agent("prefill-0", "prefill", nil, "read"), "write", "prefill-0", "", 403},
		{"write of nobody", agent("", "", nil, "write"), "write", "", "", 403},
		{"prefill reads decode", p0, "read", "decode-0", "decode", 200},
		{"prefill reads both", p0, "read", "both-0", "both", 200},
		{"prefill reads itself", p0, "read", "prefill-0", "prefill", 200},
		{"prefill reads prefill", p0, "read", "prefill-1", "prefill", 403},
		{"role unknown yet", p0, "read", "x", "", 200},
		{"decode reads prefill", agent("decode-0", "decode", nil, "read"), "read", "prefill-0", "prefill", 200},
		{"decode reads decode", agent("decode-0", "decode", nil, "read"), "read", "decode-1", "decode", 403},
		{"listed", agent("", "", []string{"decode-1"}, "read"), "read", "decode-1", "decode", 200},
		{"not listed", agent("", "", []string{"decode-1"}, "read"), "read", "decode-0", "decode", 403},
		{"not listed, role unknown yet", agent("", "", []string{"decode-1"}, "read"), "read", "decode-0", "", 403},
		{"read without scope", agent("prefill-0", "prefill", nil, "write"), "read", "decode-0", "decode", 403},
		{"list", p0, "list", "", "", 200},
		{"list without scope", agent("prefill-0", "prefill", nil, "write"), "list", "", "", 403},
		{"unknown action", p0, "steal", "prefill-0", "", 403},
		{"no token", "", "read", "decode-0", "decode", 401},
		{"client's token", mint(t, key, Grant{Scopes: []string{"read", "write"}}), "read", "decode-0", "decode", 401},
	} {
		if got := authorized(agents, request(c.token), c.action, c.engine, c.role); got != c.want {
			t.Errorf("%s: got %d; want %d", c.name, got, c.want)
		}
	}
	twice := request(p0)
	twice.Header.Add("Authorization", "Bearer "+p0)
	if got := authorized(agents, twice, "write", "prefill-0", ""); got != http.StatusUnauthorized {
		t.Errorf("two headers: got %d; want 401", got)
	}
	for _, c := range []struct {
		name, token string
		want        int
	}{
		{"gateway", agent("", "", nil, "plane"), 200},
		{"own engine", agent("prefill-0", "prefill", nil, "plane"), 200},
		{"other engine", agent("prefill-1", "prefill", nil, "plane"), 403},
		{"without scope", p0, 403},
		{"no token", "", 401},
	} {
		if got := status(agents.Plane(request(c.token), "prefill-0")); got != c.want {
			t.Errorf("plane, %s: got %d; want %d", c.name, got, c.want)
		}
	}
	if _, err := NewAgents(newVerifier(t, VerifierConfig{}, key)); err == nil {
		t.Error("a verifier of clients' tokens was taken for agents")
	}
}

func TestMintRefusesWhatWouldNotBeUnderstood(t *testing.T) {
	key := keytest.New(t, "k1")
	good := Grant{Issuer: "issuer", Audience: MetadataAudience, Subject: "a", TTL: 3600e9, Engine: "e", Role: "prefill"}
	if _, err := Mint(key, good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Grant){
		"no issuer":          func(g *Grant) { g.Issuer = "" },
		"no subject":         func(g *Grant) { g.Subject = "" },
		"unknown audience":   func(g *Grant) { g.Audience = "x" },
		"no ttl":             func(g *Grant) { g.TTL = 0 },
		"two words":          func(g *Grant) { g.Scopes = []string{"write read"} },
		"engine of a client": func(g *Grant) { g.Audience = ClientAudience },
		"models of an agent": func(g *Grant) { g.Models = []string{"x"} },
		"unknown role":       func(g *Grant) { g.Role = "x" },
	} {
		g := good
		change(&g)
		if _, err := Mint(key, g); err == nil {
			t.Errorf("%s: minted", name)
		}
	}
	if _, err := Mint(key.Public(), good); err == nil {
		t.Error("a public key minted")
	}
}

// TestFault41RolesAreThree: a bearer of a role that is none reads nothing for the sake of it.
func TestFault41RolesAreThree(t *testing.T) {
	for role, want := range map[string]bool{"prefill": true, "decode": true, "both": true, "": false, "router": false, "Both": false} {
		for _, of := range []string{"", "both"} {
			if got := (Principal{Engine: "x", Role: role}).mayRead(Wanted{Engine: "y", Role: of}); got != want {
				t.Errorf("role %q reads one of role %q: %t; want %t", role, of, got, want)
			}
		}
	}
}

// authorized returns the status that goes with the verdict.
func authorized(a *Agents, r *http.Request, action, engine, role string) int {
	_, err := a.Authorize(r, Wanted{Action: action, Engine: engine, Role: role})
	return status(err)
}

// TestFault41AgentsOfRanks: a token that names ranks writes these and no others, and what keeps two engines apart is
// decided by whoever knows their records.
func TestFault41AgentsOfRanks(t *testing.T) {
	key := keytest.New(t, "k1")
	agents, err := NewAgents(newVerifier(t, VerifierConfig{Audience: MetadataAudience}, key))
	if err != nil {
		t.Fatal(err)
	}
	ranks := mint(t, key, Grant{Audience: MetadataAudience, Engine: "prefill-0", Role: "prefill", Ranks: []string{"0/1/1", "0/1/0"}, Size: "1/2/2", Reads: []string{"decode-1"}, Scopes: []string{"write", "read"}})
	whole := mint(t, key, Grant{Audience: MetadataAudience, Engine: "prefill-0", Role: "prefill", Scopes: []string{"write", "read"}})
	for _, c := range []struct {
		name, token string
		want        Wanted
		status      int
	}{
		{"own rank", ranks, Wanted{Action: "write", Engine: "prefill-0", Rank: "0/1/1"}, 200},
		{"other own rank", ranks, Wanted{Action: "write", Engine: "prefill-0", Rank: "0/1/0"}, 200},
		{"another's rank", ranks, Wanted{Action: "write", Engine: "prefill-0", Rank: "0/0/1"}, 403},
		{"no rank", ranks, Wanted{Action: "write", Engine: "prefill-0"}, 403},
		{"own rank, another engine", ranks, Wanted{Action: "write", Engine: "prefill-1", Rank: "0/1/1"}, 403},
		{"any rank", whole, Wanted{Action: "write", Engine: "prefill-0", Rank: "0/0/1"}, 200},
		{"apart", whole, Wanted{Action: "read", Engine: "decode-0", Role: "decode", Apart: "another model"}, 403},
		{"apart, role unknown", whole, Wanted{Action: "read", Engine: "decode-0", Apart: "another model"}, 403},
		{"apart, but named", ranks, Wanted{Action: "read", Engine: "decode-1", Role: "decode", Apart: "another model"}, 200},
		{"apart, but its own", whole, Wanted{Action: "read", Engine: "prefill-0", Role: "prefill", Apart: "another model"}, 200},
	} {
		p, err := agents.Authorize(request(c.token), c.want)
		if got := status(err); got != c.status {
			t.Errorf("%s: got %d; want %d", c.name, got, c.status)
		}
		var refused *Error
		if c.status == 403 && (!errors.As(err, &refused) || refused.Subject() == "" || refused.Subject() != p.Subject || strings.Contains(err.Error(), c.token)) {
			t.Errorf("%s: %v; want who it was, and no token", c.name, err)
		}
		if c.want.Apart != "" && c.status == 403 && !strings.Contains(err.Error(), c.want.Apart) {
			t.Errorf("%s: %v; want why", c.name, err)
		}
	}
}
