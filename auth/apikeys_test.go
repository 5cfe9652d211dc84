package auth

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAPIKeysHaveLimits(t *testing.T) {
	sum := func(i int) string { return fmt.Sprintf("%064x", i) }
	text := "a:" + sum(1) + "  requests_per_minute=60\tconcurrent=4\n" +
		"a:" + sum(2) + ":tiny, org/big:1  tokens_per_minute=1000\n" +
		"b:" + sum(3) + ":tiny, x=y\n" +
		"c:" + sum(4) + ":two words\n" +
		"d:" + sum(5) + "\n"
	keys, err := LoadAPIKeys(writeFile(t, text))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Principal{
		{Subject: "a", Tenant: "a", Limits: Limits{Requests: 60, Concurrent: 4}},
		{Subject: "a", Tenant: "a", Models: []string{"tiny", "org/big:1"}, Limits: Limits{Tokens: 1000}},
		{Subject: "b", Tenant: "b", Models: []string{"tiny", "x=y"}},
		{Subject: "c", Tenant: "c", Models: []string{"two words"}},
		{Subject: "d", Tenant: "d"},
	} {
		got, ok := keys.find(digest{31: byte(i + 1)})
		if !ok || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("line %d: got %+v, %t; want %+v", i+1, got, ok, want)
		}
	}
}

func TestAPIKeysRefuseLimits(t *testing.T) {
	secret := strings.Repeat("ab", 32)
	for name, c := range map[string]struct{ behind, want string }{
		"unknown":           {" pdr_secret=1", ":2: what stands behind the key is none of"},
		"unknown of models": {":m pdr_secret=1", ":2: what stands behind the key is none of"},
		"no number":         {" concurrent=pdr_secret", ":2: concurrent is not a whole number above 0"},
		"zero":              {" requests_per_minute=0", ":2: requests_per_minute is not a whole number above 0"},
		"below zero":        {":m tokens_per_minute=-1", ":2: tokens_per_minute is not a whole number above 0"},
		"twice":             {" concurrent=1 concurrent=2", ":2: concurrent occurs twice"},
		"too large":         {" concurrent=99999999999999999999", ":2: concurrent is not"},
		"no option":         {" pdr_secret", ":2: the second field is not a SHA-256"},
	} {
		_, err := LoadAPIKeys(writeFile(t, "\na:"+secret+c.behind+"\n"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		} else if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error quotes a secret: %v", name, err)
		}
	}
}

func TestAppendAPIKeyWritesLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	want := Limits{Requests: 60, Tokens: 100_000, Concurrent: 4}
	key, err := AppendAPIKey(path, "a", []string{"m"}, want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AppendAPIKey(path, "a", nil, Limits{Concurrent: -1}); err == nil {
		t.Error("a limit below zero was written")
	}
	if _, err := AppendAPIKey(path, "a", []string{"m concurrent=9"}, Limits{}); err == nil {
		t.Error("a model that would be read as a limit was written")
	}
	keys, err := LoadAPIKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := keys.find(sha256.Sum256([]byte(key))); !ok || p.Limits != want {
		t.Errorf("got %+v, %t; want %+v", p, ok, want)
	}
	if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte(key)) {
		t.Errorf("the file has the key itself (%v)", err)
	}
}

// BenchmarkAPIKey is what authentication costs beside 10,000 keys.
func BenchmarkAPIKey(b *testing.B) {
	var text strings.Builder
	for i := range maxAPIKeys - 1 {
		fmt.Fprintf(&text, "name-%d:%064x\n", i, i)
	}
	path := filepath.Join(b.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	key, err := AppendAPIKey(path, "a", nil, Limits{})
	if err != nil {
		b.Fatal(err)
	}
	keys, err := LoadAPIKeys(path)
	if err != nil {
		b.Fatal(err)
	}
	clients, err := NewClients(ClientsConfig{APIKeys: keys})
	if err != nil {
		b.Fatal(err)
	}
	value := "Bearer " + key
	b.ReportAllocs()
	for b.Loop() {
		if _, err := clients.Authenticate(value); err != nil {
			b.Fatal(err)
		}
	}
}
