package gateway_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/configfile"
	"pdrouter/internal/gateway"
	"pdrouter/internal/refusal"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// TestFault41MetadataRefusalsAlike: a token that lacks a right, one of another engine, one of another role and one whose
// key did not sign the record get the same answer; the log tells them apart.
func TestFault41MetadataRefusalsAlike(t *testing.T) {
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	own, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	_, public, err := keys.Write(t.TempDir(), key)
	if err != nil {
		t.Fatal(err)
	}
	v, err := configfile.TokenAuth{Keys: []string{public}, Issuer: gateway.Issuer}.Verifier(auth.MetadataAudience, nil)
	if err != nil {
		t.Fatal(err)
	}
	agents, err := auth.NewAgents(v)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := store.NewMemory()
	h, err := routes.New(routes.Config{}, routes.Parts{
		Store: s, Copy: routestest.Direct{Store: s}, Authorizer: gateway.AuthorizeAgents(agents), Log: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	inc := metadata.Incarnation{Engine: "prefill-0", Generation: uint64(now.UnixNano())}
	rec, err := metadata.Marshal(metadata.Record{
		Version: metadata.RecordVersion, Incarnation: inc, Role: metadata.Prefill, Size: metadata.Rank{DP: 1, PP: 1, TP: 1},
		Agent: inc.ID() + "/0/0/0", Published: now, Expires: now.Add(time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	var first *httptest.ResponseRecorder
	for _, c := range []struct {
		grant  auth.Grant
		reason string
	}{
		{auth.Grant{Subject: "reader", Engine: "prefill-0", Role: "prefill", Scopes: []string{auth.ReadScope}}, "insufficient_scope"},
		{auth.Grant{Subject: "neighbour", Engine: "prefill-1", Role: "prefill", Scopes: []string{auth.WriteScope}}, "insufficient_scope"},
		{auth.Grant{Subject: "other-rank", Engine: "prefill-0", Role: "prefill", Ranks: []string{"0/0/1"}, Size: "1/1/2", Scopes: []string{auth.WriteScope}}, "insufficient_scope"},
		{auth.Grant{Subject: "turncoat", Engine: "prefill-0", Role: "decode", Scopes: []string{auth.WriteScope}}, "wrong_role"},
		{auth.Grant{Subject: "thief", Engine: "prefill-0", Role: "prefill", Confirm: own.Public(), Scopes: []string{auth.WriteScope}}, "bad_signature"},
	} {
		log.Reset()
		c.grant.Issuer, c.grant.Audience, c.grant.TTL = gateway.Issuer, auth.MetadataAudience, time.Hour
		token, err := auth.Mint(key, c.grant)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("PUT", "/metadata/v1/engines/prefill-0/ranks/0/0/0", bytes.NewReader(rec))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/msgpack")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusForbidden || w.Header().Get("X-PDRouter-Reason") != refusal.Insufficient {
			t.Errorf("%s: got %d, %v", c.grant.Subject, w.Code, w.Header())
		}
		if first == nil {
			first = w
		}
		if !maps.EqualFunc(w.Header(), first.Header(), slices.Equal[[]string]) || w.Body.String() != first.Body.String() {
			t.Errorf("%s: the answer is %v %s, and %v %s for another", c.grant.Subject, w.Header(), w.Body, first.Header(), first.Body)
		}
		var line map[string]any
		if err := json.Unmarshal(log.Bytes(), &line); err != nil { // one line, then
			t.Fatalf("%s: the log is %q", c.grant.Subject, log.String())
		}
		if line["subject"] != c.grant.Subject || line["reason"] != c.reason || line["level"] != "WARN" || strings.Contains(log.String(), token) {
			t.Errorf("%s: the log has %v; want the reason %s, and no token", c.grant.Subject, line, c.reason)
		}
	}
}
