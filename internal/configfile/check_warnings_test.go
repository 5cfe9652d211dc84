package configfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckUnintended: what is allowed and seldom intended is warned of, and nothing else is.
func TestCheckUnintended(t *testing.T) {
	dir := t.TempDir()
	_, private, public := makeKey(t, filepath.Join(dir, "keys"))
	text := func(decode, trusted, token string) string {
		return `models:
  - name: m
    connector: kvplane
    prefill: [{name: p, url: "http://p:1", control: "http://p:2"}]
    decode: [{name: d, url: "` + decode + `", control: "http://d:2"}]
listen: {agents: "127.0.0.1:8081"}
auth:
  agents: {keys: [` + public + `], issuer: me}
  records: {key_file: ` + private + `, trusted: [` + trusted + `]}
` + token
	}
	got, err := checkText(t, dir, text("http://p:1", filepath.Dir(private), ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"WARNING: p and d of model m have one url, http://p:1",
		"WARNING: auth.records.trusted has a private key, keys/",
		"WARNING: engines' control routes are asked without a token",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("want %q once in\n%s", want, got)
		}
	}
	got, err = checkText(t, dir, text("http://d:1", public, "  control_token_file: "+public+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []string{"one url", "private key", "control routes"} {
		if strings.Contains(got, no) {
			t.Errorf("%q in\n%s", no, got)
		}
	}
}

// TestCheckOneURL: one url of two engines is told of once each, however it is written, in one model or in two.
func TestCheckOneURL(t *testing.T) {
	got, err := checkText(t, t.TempDir(), `models:
  - {name: a, engines: [{name: e, url: "http://E:80"}, {name: f, url: "http://e/"}, {name: g, url: "https://e"}]}
  - {name: b, engines: [{name: h, url: "http://e"}, {name: i, url: "https://e:444"}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"WARNING: e and f of model a have one url, http://e/: ",
		"WARNING: e of model a and h of model b have one url, http://e: ",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("want %q once in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "have one url"); n != 2 {
		t.Errorf("%d warnings; want 2 in\n%s", n, got)
	}
}

func TestCheckPolicy(t *testing.T) {
	_, err := checkText(t, t.TempDir(), "default: {decode: {policy: random}}\n")
	if err == nil || !strings.Contains(err.Error(), "looks like a policy: name it in policy.file") {
		t.Errorf("a policy: %v", err)
	}
	if _, err = checkText(t, t.TempDir(), "default: {}\nmodells: []\n"); err == nil || strings.Contains(err.Error(), "looks like") {
		t.Errorf("a mistaken configuration: %v", err)
	}
}

// TestCheckEmptyAPIKeys: serve starts with a file of API keys that has none, so check only warns.
func TestCheckEmptyAPIKeys(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "api-keys"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := checkText(t, dir, "models: [{name: m, engines: [{name: e, url: \"http://e:1\"}]}]\nauth: {clients: {api_keys_file: api-keys}}\n")
	if err != nil || !strings.Contains(got, "WARNING: auth.clients.api_keys_file has no keys") {
		t.Errorf("got %v\n%s", err, got)
	}
}

// TestCheckWarnsOfForgottenUnit: a rate of a few bytes is allowed, and was hardly meant.
func TestCheckWarnsOfForgottenUnit(t *testing.T) {
	for rate, warned := range map[string]bool{"0": false, "2": true, "100KiB": true, "1MiB": false, "2GiB": false} {
		out, err := checkText(t, t.TempDir(), `models: [{name: m, engines: [{name: e, url: "http://127.0.0.1:1"}]}]
migration: {bytes_per_second: `+rate+"}\n")
		if err != nil || strings.Contains(out, "WARNING: migration.bytes_per_second is ") != warned {
			t.Errorf("%s: %v\n%s", rate, err, out)
		}
	}
}

// TestCheckWarnsOfNoCost: that requests are to wait for room, and those of no model do, is warned of.
func TestCheckWarnsOfNoCost(t *testing.T) {
	for policy, warned := range map[string]bool{
		"{}":                                 false,
		"{default: {objective: {ttft: 1s}}}": false,
		"{default: {policy: roles}}":         true,
		"{default: {decode: round_robin}}":   true,
		"{default: {policy: roles}, rules: [{name: r, models: [m], policy: cost}]}": false,
	} {
		out, err := checkText(t, t.TempDir(), `models: [{name: m, engines: [{name: e, url: "http://127.0.0.1:1"}]}]
queue: {by_objective: true}
policy: `+policy+"\n")
		if err != nil || strings.Contains(out, "WARNING: queue.by_objective has no effect: no model has the policy cost") != warned {
			t.Errorf("%s: %v\n%s", policy, err, out)
		}
	}
}
