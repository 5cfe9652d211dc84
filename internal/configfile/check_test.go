package configfile_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/internal/configfile"
)

// checkText checks a configuration in dir as pdrouter validate does, and returns what it prints of a sound one.
func checkText(t *testing.T, dir, text string) (string, error) {
	t.Helper()
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return check(t, path, false)
}

// check is checkText for a file.
func check(t *testing.T, path string, skipFiles bool) (string, error) {
	t.Helper()
	l, err := configfile.Validate(path, skipFiles)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if err := l.Summarize(&out, !skipFiles); err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(out.String(), filepath.Dir(path)+"/", ""), nil
}

// makeKey makes a key pair, and returns its files.
func makeKey(t *testing.T, dir string) (key *keys.Key, private, public string) {
	t.Helper()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	if private, public, err = keys.Write(dir, key); err != nil {
		t.Fatal(err)
	}
	return key, private, public
}

func TestCheckSummary(t *testing.T) {
	dir := t.TempDir()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	private, public, err := keys.Write(dir, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := auth.AppendAPIKey(filepath.Join(dir, "api-keys"), "alice", nil, auth.Limits{}); err != nil {
		t.Fatal(err)
	}
	got, err := checkText(t, dir, `
listen: {clients: "0.0.0.0:8080", agents: "127.0.0.1:8081"}
models:
  - name: big
    connector: kvplane
    prefill: [{name: prefill-0, url: "http://p:1"}]
    decode: [{name: decode-0, url: "http://d:1"}, {name: decode-1, url: "http://d:2"}]
  - {name: small, engines: [{name: both-0, url: "http://e:1"}]}
policy:
  rules: [{name: large, models: ["big*"]}]
auth:
  clients: {api_keys_file: api-keys}
  agents: {keys: [`+public+`], issuer: me}
  records: {key_file: `+private+`, trusted: [`+public+`]}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := `listener    address         who may call
clients     0.0.0.0:8080    API keys
agents      127.0.0.1:8081  tokens of me
operations  127.0.0.1:9090  everybody who reaches it

metadata  in this process, signed

model  connector  rule     role     engine     url
big    kvplane    large    prefill  prefill-0  http://p:1
                           decode   decode-0   http://d:1
                           decode   decode-1   http://d:2
small  none       default  both     both-0     http://e:1
`
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error("summary (-got +want):\n" + diff)
	}
}

// TestCheckListsRanks has an engine with data-parallel ranks, whose names no other engine may have.
func TestCheckListsRanks(t *testing.T) {
	got, err := checkText(t, t.TempDir(), `models: [{name: m, engines: [{name: one, url: "http://e:1", data_parallel: 2}, {name: two, url: "http://e:2"}]}]`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range strings.Split(got, "\n") {
		if f := strings.Fields(line); len(f) > 1 && strings.Contains(line, " both ") {
			names = append(names, f[slices.Index(f, "both")+1])
		}
	}
	if want := "one one.dp0 one.dp1 two"; strings.Join(names, " ") != want {
		t.Errorf("got %v; want %s\n%s", names, want, got)
	}
}

func TestCheckWarnings(t *testing.T) {
	got, err := checkText(t, t.TempDir(), `
listen: {clients: ":8080", operations: "0.0.0.0:9090"}
models: [{name: m, engines: [{name: e, url: "http://e:1"}]}]
metadata: {store: redis, redis: {address: "redis:6379"}}
policy: {rules: [{name: other, models: [n]}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"EVERYBODY: no authentication",
		"WARNING: whoever reaches :8080 can use the engines",
		"WARNING: anyone who can connect to 0.0.0.0:9090 can read /requests and /metrics and reload the configuration: auth.admins has no keys",
		"WARNING: whoever can write to Redis",
		"WARNING: Redis is used without a password",
		`WARNING: rule "other" of the policy decides for no model`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

// TestCheckFiles: what serve could not read is found before it starts, and every such file at once.
func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"keys": "alice:secret\n", "tls.crt": "no certificate", "tls.key": "no key", "agents.jwk": "{}", "gateway.token": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := checkText(t, dir, `listen: {agents: "0.0.0.0:8081", agents_tls: {cert_file: tls.crt, key_file: tls.key}}
models: [{name: m, engines: [{name: e, url: "http://e:1", bearer_token_file: none}]}]
auth:
  clients: {api_keys_file: keys}
  agents: {keys: [agents.jwk], issuer: me}
  control_token_file: gateway.token
`)
	if err == nil {
		t.Fatal("unusable files were taken")
	}
	for _, want := range []string{
		"config.yaml:1: listen.agents_tls cannot be used: tls: ",
		`config.yaml:2: models[0] "m": engines[0].bearer_token_file cannot be used: open `,
		"config.yaml:4: auth.clients cannot be used: auth: API keys: ",
		"config.yaml:5: auth.agents cannot be used: auth: keys: ",
		"config.yaml:6: auth.control_token_file cannot be used: the file is empty",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "alice:secret") {
		t.Errorf("the message quotes a file of secrets: %v", err)
	}
}
