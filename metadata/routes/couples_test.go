package routes_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// TestFault41WhatEnginesDeclareIsNotEnough: an engine that publishes the digest of another model's engines does not read their
// records: the gateway's own configuration says whose they are.
func TestFault41WhatEnginesDeclareIsNotEnough(t *testing.T) {
	s := store.NewMemory()
	couples := func(x, y string) bool {
		return x == "decode-a" && y == "prefill-a" || x == "prefill-a" && y == "decode-a"
	}
	callers := routestest.Callers{
		"a": {Engine: "decode-a", Role: metadata.Decode}, "stranger": {Engine: "decode-stranger", Role: metadata.Decode},
		"named": {Engine: "decode-a", Role: metadata.Decode, Reads: []string{"prefill-b"}}, "gateway": {},
	}
	parts := routestest.Parts(s, nil, callers)
	parts.Paired = couples
	base := routestest.ServeParts(t, parts) + "/metadata/v1/engines"
	for _, engine := range []string{"prefill-a", "prefill-b", "decode-stranger"} {
		metadatatest.Put(t, s, metadatatest.Record(engine, 7, 1, 0), nil)
	}
	if got := routestest.Send(t, "PUT", base+"/decode-a/ranks/0/0/0", "a", metadatatest.Marshal(t, metadatatest.Record("decode-a", 7, 1, 0))); got.Status != 204 {
		t.Fatalf("publish: %d %s", got.Status, got.Body)
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
		if got := routestest.Send(t, "GET", base+c.path, c.token, nil); got.Status != c.want {
			t.Errorf("%s %s: got %d; want %d", c.token, c.path, got.Status, c.want)
		}
	}
	var list struct{ Engines []metadata.Listed }
	if got := routestest.Send(t, "GET", base, "a", nil); json.Unmarshal(got.Body, &list) != nil || strings.Contains(string(got.Body), "prefill-b") {
		t.Errorf("list: got %s", got.Body)
	}
}

// TestPairsKeepOthersDigests: an agent learns that two digests differ, and not which they are.
func TestPairsKeepOthersDigests(t *testing.T) {
	why := &metadata.Unpairable{Reason: metadata.Incompatible, Text: `digests are "mine" and "secret"`}
	parts := routestest.Parts(store.NewMemory(), nil, routestest.Callers{"agent": {Engine: "d"}, "person": {}})
	parts.Pairs = func() []metadata.PairState {
		return []metadata.PairState{{Prefill: "p", Decode: "d", Reason: why.Reason.String(), Why: why.Error()}, {Prefill: "q", Decode: "d", Pairable: true, Why: "q is down"}}
	}
	url := routestest.ServeParts(t, parts)
	got := string(routestest.Send(t, "GET", url+"/metadata/v1/pairs", "agent", nil).Body)
	if strings.Contains(got, "secret") || !strings.Contains(got, `"why":"compatibility"`) || !strings.Contains(got, "q is down") {
		t.Errorf("agent: got %s", got)
	}
	if got := string(routestest.Send(t, "GET", url+"/metadata/v1/pairs", "person", nil).Body); !strings.Contains(got, "secret") {
		t.Errorf("person: got %s; want both digests", got)
	}
}
