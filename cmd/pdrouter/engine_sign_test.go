package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/metadata/client"
)

// TestEngineSignsItsRecords starts an engine whose token is bound to its own key: it publishes, signed by this key,
// and withdraws at its end. With the token alone nothing is written.
func TestEngineSignsItsRecords(t *testing.T) {
	p := newPlant(t)
	own, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	file, _, err := keys.Write(filepath.Join(p.dir, "own"), own)
	if err != nil {
		t.Fatal(err)
	}
	token, err := auth.Mint(p.key, auth.Grant{
		Issuer: defaultIssuer, Audience: auth.MetadataAudience, Subject: "decode-0", Scopes: []string{auth.WriteScope, auth.ReadScope}, TTL: time.Hour,
		Engine: "decode-0", Role: "decode", Confirm: own.Public(),
	})
	if err != nil {
		t.Fatal(err)
	}
	tokenFile := filepath.Join(p.dir, "bound.token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	e := p.start(t, "decode-0", "decode", "--tp", "2", "--token-file", tokenFile, "--sign-key", file)
	recs, err := p.store.Engine(t.Context(), "decode-0")
	if err != nil || len(recs) != 2 {
		t.Fatalf("the store holds %d records, %v; want 2", len(recs), err)
	}
	for _, r := range recs {
		if r.KeyID != own.ID || len(r.Signature) == 0 {
			t.Errorf("rank %v is signed by %q; want %s", r.Rank, r.KeyID, own.ID)
		}
	}
	thief, err := client.New(client.Config{URL: p.url}, client.TokenFile(tokenFile), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	recs[0].Published, recs[0].KeyID, recs[0].Signature, recs[0].Payload = recs[0].Published.Add(time.Second), "", nil, nil
	if err := thief.Put(t.Context(), recs[0]); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a stolen token wrote: %v; want 403", err)
	}
	if err := thief.Delete(t.Context(), recs[0].Incarnation, recs[0].Rank); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a stolen token withdrew: %v; want 403", err)
	}
	if err := e.stop(); err != nil {
		t.Fatal(err)
	}
	if recs, err := p.store.Engine(t.Context(), "decode-0"); err == nil {
		t.Errorf("after its end the store holds %d records; want none", len(recs))
	}
}

func TestEngineSignKeyRefused(t *testing.T) {
	p := newPlant(t)
	other, err := keys.Generate(keys.ES256)
	if err != nil {
		t.Fatal(err)
	}
	file, _, err := keys.Write(filepath.Join(p.dir, "other"), other)
	if err != nil {
		t.Fatal(err)
	}
	tokenFile := filepath.Join(p.dir, "any.token")
	if err := os.WriteFile(tokenFile, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ key, want string }{
		"of another kind": {file, "--sign-key"},
		"public":          {p.public, "--sign-key"},
		"missing":         {filepath.Join(p.dir, "none"), "no such file"},
	} {
		err := run(t.Context(), []string{"mock-engine", "--gateway", p.url, "--token-file", tokenFile, "--sign-key", c.key}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		}
	}
	if err := run(t.Context(), []string{"mock-engine", "--sign-key", file}, io.Discard); err == nil || !strings.Contains(err.Error(), "--gateway is missing") {
		t.Errorf("without a gateway: got %v", err)
	}
}
