package auth

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pdrouter/auth/internal/keytest"
)

func TestAPIKeysHaveLimits(t *testing.T) {
	sum := func(i int) string { return fmt.Sprintf("%064x", i) }
	text := "a:" + sum(1) + "  requests_per_minute=60\tconcurrent=4\n" +
		"a:" + sum(2) + ":tiny, org/big:1  tokens_per_minute=1000\n" +
		"b:" + sum(3) + ":tiny, x=y\n" +
		"c:" + sum(4) + ":two words\n" +
		"d:" + sum(5) + "\n"
	keys, err := LoadAPIKeys(apiKeysFile(t, text))
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
		"unknown scope":     {" scope=secret", ":2: scope is unknown; want priority"},
		"no scope":          {" scope=", ":2: scope is unknown; want priority"},
		"scope twice":       {" scope=priority scope=priority", ":2: scope occurs twice"},
		"two scopes":        {":m scope=priority,secret", ":2: the list of models has a scope in it"},
		"two, no models":    {" scope=priority,secret", ":2: the second field is not a SHA-256"},
		"no option":         {" pdr_secret", ":2: the second field is not a SHA-256"},
	} {
		_, err := LoadAPIKeys(apiKeysFile(t, "\na:"+secret+c.behind+"\n"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		} else if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error quotes a secret: %v", name, err)
		}
	}
}

func TestAPIKeysFile(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	for name, c := range map[string]struct{ text, want string }{
		"no digest":         {"alice\n", ":1: want name:sha256"},
		"no name":           {":" + digest + "\n", ":1: want name:sha256"},
		"a token's tenant":  {"a|b:" + digest + "\n", ":1: the name has a |"},
		"key, not digest":   {"\nalice:pdr_secret\n", ":2: the second field is not a SHA-256"},
		"short digest":      {"alice:" + digest[2:] + "\n", ":1: the second field is not a SHA-256"},
		"doubled digest":    {"a:" + digest + "\nb:" + digest + "\n", ":2: this digest occurs twice"},
		"empty model":       {"a:" + digest + ":\n", ":1: the list of models has an empty name"},
		"empty model after": {"a:" + digest + ":x,,y\n", ":1: the list of models has an empty name"},
		"joined lines":      {"a:" + digest + ":xb:" + strings.Repeat("cd", 32) + ":y\n", ":1: the list of models has a digest"},
		"no end":            {"a:" + digest, ":1: the last line has no end"},
	} {
		_, err := LoadAPIKeys(apiKeysFile(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), digest)) {
			t.Errorf("%s: the error quotes a secret: %v", name, err)
		}
	}
	path := apiKeysFile(t, "a:"+digest+"\n")
	keys, err := LoadAPIKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	key, err := AppendAPIKey(path, "bob", nil, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := keys.find(sha256.Sum256([]byte(key))); ok {
		t.Error("the key is known before the file is read again")
	}
	if err := keys.Reload(); err != nil {
		t.Fatal(err)
	}
	if p, ok := keys.find(sha256.Sum256([]byte(key))); !ok || p.Subject != "bob" {
		t.Errorf("after Reload: got %+v, %t; want bob", p, ok)
	}
	for _, name := range []string{"", "a:b", "# a", " a", "a\nb", "a|b"} {
		if _, err := AppendAPIKey(path, name, nil, Limits{}); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
	for _, model := range []string{"", "a,b", "a\nb"} {
		if _, err := AppendAPIKey(path, "carol", []string{model}, Limits{}); err == nil {
			t.Errorf("model %q was accepted", model)
		}
	}
}

// What a file does not say any more ends, whatever else stands in it; what is damaged gives nothing.
func TestReloadWithdraws(t *testing.T) {
	line := func(i int, behind string) string { return fmt.Sprintf("n%d:%064x%s\n", i, i, behind) }
	before := line(1, ":m") + line(2, "") + line(3, " concurrent=1")
	for _, c := range []struct {
		name, text string
		holds      []int
		fails      bool
	}{
		{"nothing is changed", before, []int{1, 2, 3}, false},
		{"the last key goes", "# all withdrawn\n", nil, false},
		{"all is gone", "", nil, false},
		{"one goes, another line is damaged", line(1, ":m") + "n3:what is this\n", []int{1}, true},
		{"one goes, another has no end", line(1, ":m") + strings.TrimSuffix(line(3, ""), "\n"), []int{1}, true},
		{"cut in its digest", before[:len(before)-40], []int{1, 2}, true},
		{"cut before its limits", before[:len(before)-len(" concurrent=1\n")], []int{1, 2}, true},
		{"half of a file of zeros", line(2, "") + strings.Repeat("\x00", 100), []int{2}, true},
		{"a digest stands twice", line(1, ":m") + line(1, "") + line(2, ""), []int{2}, true},
		{"a digest stands three times", line(1, ":m") + line(1, "") + line(1, "") + line(2, ""), []int{2}, true},
		{"joined", strings.TrimSuffix(line(1, ":m"), "\n") + line(2, ":o") + line(3, ""), []int{3}, true},
	} {
		path := apiKeysFile(t, before)
		keys, err := LoadAPIKeys(path)
		if err != nil {
			t.Fatal(err)
		}
		keytest.Write(t, path, c.text)
		if err := keys.Reload(); (err != nil) != c.fails || err != nil && strings.Contains(err.Error(), "00000") {
			t.Errorf("%s: got %v; want an error that quotes no digest: %t", c.name, err, c.fails)
		}
		for i := 1; i <= 3; i++ {
			if _, ok := keys.find(digest{31: byte(i)}); ok != slices.Contains(c.holds, i) {
				t.Errorf("%s: key %d holds: %t; want the keys %v", c.name, i, ok, c.holds)
			}
		}
		if keys.Len() != len(c.holds) || keys.Has("n3") != slices.Contains(c.holds, 3) {
			t.Errorf("%s: %d keys, n3 among them: %t; want %v", c.name, keys.Len(), keys.Has("n3"), c.holds)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := keys.Reload(); err == nil || keys.Len() != len(c.holds) {
			t.Errorf("%s, without a file: %d keys, %v; want an error and %v", c.name, keys.Len(), err, c.holds)
		}
	}
}

func TestAPIKeysFileHasAnEnd(t *testing.T) {
	var text strings.Builder
	for i := range maxAPIKeys + 2 {
		fmt.Fprintf(&text, "n:%064x\n", i)
	}
	entries, errs := parseAPIKeys(text.String())
	if len(entries) != maxAPIKeys || len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "10001: more than 10000 keys") {
		t.Errorf("got %d keys, %v; want 10000 and one error", len(entries), errs)
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

// TestAPIKeysHaveAScope makes a key whose holder may say how urgent a request is, and one whose may not.
func TestAPIKeysHaveAScope(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	for name, row := range map[string]struct {
		models []string
		limits Limits
		scopes []string
	}{"urgent": {[]string{"m", "org/big:1"}, Limits{Concurrent: 2}, []string{PriorityScope}}, "alone": {nil, Limits{}, []string{PriorityScope}}, "plain": {[]string{"m"}, Limits{}, nil}} {
		key, err := AppendAPIKey(path, name, row.models, row.limits, row.scopes...)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := LoadAPIKeys(path)
		if err != nil {
			t.Fatal(err)
		}
		p, ok := keys.find(sha256.Sum256([]byte(key)))
		if !ok || p.Has(PriorityScope) != (row.scopes != nil) || fmt.Sprint(p.Models) != fmt.Sprint(row.models) || p.Limits != row.limits {
			t.Errorf("%s: got %+v, %t", name, p, ok)
		}
	}
	for _, scopes := range [][]string{{"write"}, {""}, {PriorityScope, PriorityScope}} {
		if _, err := AppendAPIKey(path, "x", nil, Limits{}, scopes...); err == nil {
			t.Errorf("scopes %q were accepted", scopes)
		}
	}
}
