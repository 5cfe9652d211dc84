package routes_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/refusal"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// servePairs returns the address of routes that know three pairs. A token "engine:NAME" is of that engine's agent, "person" of
// nobody's.
func servePairs(t *testing.T) string {
	t.Helper()
	who := routes.AuthorizerFunc(func(r *http.Request, a routes.Access) (routes.Caller, error) {
		kind, name, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ":")
		switch {
		case kind == "":
			return routes.Caller{}, routestest.Refusal(http.StatusUnauthorized)
		case kind == "writer" || a.Action != routes.List:
			return routes.Caller{}, routestest.Refusal(http.StatusForbidden)
		}
		return routes.Caller{Engine: name}, nil
	})
	pairs := func() []metadata.PairState {
		return []metadata.PairState{
			{Model: "m", Prefill: "p0", Decode: "d0", Pairable: true, Warm: true},
			{Model: "m", Prefill: "p0", Decode: "d1", Pairable: true, Why: "the handshake is under way"},
			{Model: "n", Prefill: "p1", Decode: "d2", Why: "no records of d2"},
		}
	}
	parts := routestest.Parts(store.NewMemory(), nil, who)
	parts.Pairs = pairs
	return routestest.ServeParts(t, parts) + "/metadata/v1/pairs"
}

func TestPairsAreShownToWhoMaySeeThem(t *testing.T) {
	url := servePairs(t)
	for _, c := range []struct{ token, query, want string }{
		{"person", "", "p0-d0 p0-d1 p1-d2"},
		{"person", "?model=m", "p0-d0 p0-d1"},
		{"person", "?prefill=p0&decode=d1", "p0-d1"},
		{"person", "?prefill=unknown", ""},
		{"engine:d0", "", "p0-d0"},
		{"engine:p0", "?decode=d1", "p0-d1"},
		{"engine:p0", "?prefill=p1", ""},
		{"engine:other", "", ""},
	} {
		got := routestest.Send(t, "GET", url+c.query, c.token, nil)
		var answer struct{ Pairs []metadata.PairState }
		if err := json.Unmarshal(got.Body, &answer); err != nil || got.Status != 200 || answer.Pairs == nil {
			t.Errorf("%s %s: got %d %s; want a list", c.token, c.query, got.Status, got.Body)
		}
		var names []string
		for _, p := range answer.Pairs {
			names = append(names, p.Prefill+"-"+p.Decode)
		}
		if strings.Join(names, " ") != c.want {
			t.Errorf("%s %s: got %v; want %s", c.token, c.query, names, c.want)
		}
	}
	routestest.WantError(t, "no token", routestest.Send(t, "GET", url, "", nil), 401, "refused")
	routestest.WantError(t, "no scope", routestest.Send(t, "GET", url, "writer", nil), 403, refusal.Insufficient)
}

func TestPairsAsATable(t *testing.T) {
	got := routestest.Send(t, "GET", servePairs(t), "person", nil, "Accept", "text/plain")
	want := "" +
		"STATE         MODEL  PREFILL  DECODE  WHY\n" +
		"not pairable  n      p1       d2      no records of d2\n" +
		"cold          m      p0       d1      the handshake is under way\n" +
		"warm          m      p0       d0      -\n"
	if diff := cmp.Diff(want, string(got.Body)); diff != "" || got.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%s (-want +got):\n%s", got.Header.Get("Content-Type"), diff)
	}
}

// A gateway without a router has no pairs; that is an answer, not an error.
func TestPairsOfNobody(t *testing.T) {
	if got := routestest.Send(t, "GET", routestest.Serve(t, store.NewMemory(), nil, routestest.Tokens{})+"/metadata/v1/pairs", "all", nil); string(got.Body) != `{"pairs":[]}` {
		t.Errorf("got %d %s", got.Status, got.Body)
	}
}
