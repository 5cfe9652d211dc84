package configfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/configfile"
)

// TestExampleConfigs: every file in configs/ can be used as it is, but for the keys that it names.
func TestExampleConfigs(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("example configurations %v: %v", files, err)
	}
	for _, path := range files {
		if filepath.Base(path) == "policy.yaml" {
			continue // loaded by package policies, and here through vllm-pull.yaml
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			out, err := check(t, path, true)
			if err != nil {
				t.Fatal(err)
			}
			l, err := configfile.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range l.Models {
				for _, e := range append(append(m.Prefill, m.Decode...), m.Engines...) {
					if !strings.Contains(out, e.Name) {
						t.Errorf("engine %s is not in the summary:\n%s", e.Name, out)
					}
				}
			}
		})
	}
}

// TestBadConfigs: each testdata/*.bad.yml is refused with the messages in the .want file beside it, one per line.
func TestBadConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no bad files: %v", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			wantPath := strings.TrimSuffix(path, ".yml") + ".want"
			_, err := configfile.Validate(path, false)
			if err == nil {
				t.Fatalf("%s was taken", path)
			}
			want, readErr := os.ReadFile(wantPath)
			if readErr != nil {
				t.Fatal(readErr)
			}
			if diff := cmp.Diff(err.Error()+"\n", string(want)); diff != "" {
				t.Error("messages (-got +want):\n" + diff)
			}
		})
	}
}

// TestConfigPathsAreRelativeToTheFile: a configuration means the same wherever pdrouter is started.
func TestConfigPathsAreRelativeToTheFile(t *testing.T) {
	l, err := configfile.Load("../../configs/kvplane.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := []string{l.Auth.Agents.Keys[0], l.Auth.ControlTokenFile}
	want := []string{"../../configs/keys/agents", "../../configs/keys/gateway.token"}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error("paths (-got +want):\n" + diff)
	}
}

// TestConfigNamesEveryFile: no path that a configuration can hold escapes being resolved and checked. Every key
// that ends in _file is one.
func TestConfigNamesEveryFile(t *testing.T) {
	text := `
listen: {agents: "127.0.0.1:1", agents_tls: {cert_file: f1, key_file: f2}}
models:
  - name: a
    connector: kvplane
    prefill: [{name: p, url: "http://p:1", bearer_token_file: f3}]
    decode: [{name: d, url: "http://d:1", bearer_token_file: f4}]
  - {name: b, engines: [{name: e, url: "http://e:1", bearer_token_file: f5}]}
auth:
  clients: {api_keys_file: f6, keys: [f7, /f8], issuer: i}
  agents: {keys: [f9], issuer: i}
  admins:
    keys: [f18]
    issuer: i
    issuers:
      - {issuer: j, keys: [f19, f20]}
      - {issuer: k, kind: spiffe, jwks: {url: f21}, subjects: [{subject: "spiffe://a/b", scopes: [read]}]}
      - {issuer: l, jwks: {url: "https://l/keys", ca_file: f22, token_file: f23}}
  records: {key_file: f10, trusted: [f11]}
  control_token_file: f12
metadata:
  store: redis
  redis: {address: "redis:1", password_file: f13, tls: true, ca_file: f14, cert_file: f15, cert_key_file: f16}
`
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := configfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, p := range l.Paths() {
		if *p.At != "" {
			named++
			if !filepath.IsAbs(*p.At) {
				t.Errorf("%s is %q; want it made absolute", p.Key, *p.At)
			}
		}
	}
	if named != 22 {
		t.Errorf("%d paths; want 22", named)
	}
	err = l.CheckFiles(nil)
	if err == nil {
		t.Fatal("files that do not exist were taken")
	}
	if got := strings.Count(err.Error(), "no such file"); got != 22 {
		t.Errorf("%d files are missing; want 22:\n%v", got, err)
	}
	if want := path + ":23: metadata.redis.password_file cannot be used: open " + dir + "/f13: no such file"; !strings.Contains(err.Error(), want) {
		t.Errorf("want %q in\n%v", want, err)
	}
}
