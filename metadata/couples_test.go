package metadata

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestFault41WhatEnginesDeclareIsNotEnough: an engine that publishes the digest of another model's engines does not read their
// records: the gateway's own configuration says whose they are.
func TestFault41WhatEnginesDeclareIsNotEnough(t *testing.T) {
	s := NewMemory()
	couples := func(x, y string) bool {
		return x == "decode-a" && y == "prefill-a" || x == "prefill-a" && y == "decode-a"
	}
	callers := fakeCallers{
		"a": {Engine: "decode-a", Role: Decode}, "stranger": {Engine: "decode-stranger", Role: Decode},
		"named": {Engine: "decode-a", Role: Decode, Reads: []string{"prefill-b"}}, "gateway": {},
	}
	h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: s, Authorizer: callers, Paired: couples, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	base := srv.URL + "/metadata/v1/engines"
	for _, engine := range []string{"prefill-a", "prefill-b", "decode-stranger"} {
		put(t, s, record(engine, 7, 1, 0), nil)
	}
	if got := send(t, "PUT", base+"/decode-a/ranks/0/0/0", "a", marshal(t, record("decode-a", 7, 1, 0))); got.status != 204 {
		t.Fatalf("publish: %d %s", got.status, got.body)
	}
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{"a", "/prefill-a", 200},
		{"a", "/prefill-b", 403},
		{"a", "/prefill-b/ranks/0/0/0", 403},
		{"stranger", "/prefill-a", 403},
		{"stranger", "/prefill-b", 403},
		{"named", "/prefill-b", 200},
		{"gateway", "/prefill-b", 200},
	} {
		if got := send(t, "GET", base+c.path, c.token, nil); got.status != c.want {
			t.Errorf("%s %s: got %d; want %d", c.token, c.path, got.status, c.want)
		}
	}
	var list struct{ Engines []Listed }
	if got := send(t, "GET", base, "a", nil); json.Unmarshal(got.body, &list) != nil || strings.Contains(string(got.body), "prefill-b") {
		t.Errorf("list: got %s", got.body)
	}
}

// TestPairsKeepOthersDigests: an agent learns that two digests differ, and not which they are.
func TestPairsKeepOthersDigests(t *testing.T) {
	why := &Unpairable{Reason: Incompatible, Text: `digests are "mine" and "secret"`}
	h, err := NewHandler(HandlerConfig{}, HandlerParts{
		Store: NewMemory(), Authorizer: fakeCallers{"agent": {Engine: "d"}, "person": {}}, Log: quiet(),
		Pairs: func() []PairState {
			return []PairState{{Prefill: "p", Decode: "d", Reason: why.Reason.String(), Why: why.Error()}, {Prefill: "q", Decode: "d", Pairable: true, Why: "q is down"}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	got := string(send(t, "GET", srv.URL+"/metadata/v1/pairs", "agent", nil).body)
	if strings.Contains(got, "secret") || !strings.Contains(got, `"why":"compatibility"`) || !strings.Contains(got, "q is down") {
		t.Errorf("agent: got %s", got)
	}
	if got := string(send(t, "GET", srv.URL+"/metadata/v1/pairs", "person", nil).body); !strings.Contains(got, "secret") {
		t.Errorf("person: got %s; want both digests", got)
	}
}
