package configfile_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/auth/keys"
)

// TestCheckReplicas: several gateways are warned of what they cannot know of each other without Redis.
func TestCheckReplicas(t *testing.T) {
	const models = "models: [{name: m, engines: [{name: e, url: \"http://e:1\"}]}]\n"
	const warning = "gateways without Redis know nothing of each other"
	for _, row := range []struct {
		name, text string
		warned     bool
		err        string
	}{
		{"one", models, false, ""},
		{"two alone", models + "replicas: 2\n", true, ""},
		{"two with Redis", models + "replicas: 2\nmetadata: {store: redis, redis: {address: \"r:6379\"}}\n", false, ""},
		{"none", models + "replicas: -1\n", false, "replicas is -1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := checkText(t, t.TempDir(), row.text)
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) {
					t.Fatalf("got %v; want %q", err, row.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(got, warning) != row.warned {
				t.Errorf("warned %v; want %v:\n%s", !row.warned, row.warned, got)
			}
		})
	}
}

// TestCheckWarnsOfUnsignedOverrides has administrators change engines over a Redis whose facts nobody signs.
func TestCheckWarnsOfUnsignedOverrides(t *testing.T) {
	dir := t.TempDir()
	key, err := keys.Generate(keys.EdDSA)
	if err != nil {
		t.Fatal(err)
	}
	private, public, err := keys.Write(filepath.Join(dir, "k"), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		admin, records string
		warned         bool
	}{{"127.0.0.1:0", "", true}, {"", "", false}, {"127.0.0.1:0", fmt.Sprintf(", records: {key_file: %q, trusted: [%q]}", private, public), false}} {
		got, err := checkText(t, dir, fmt.Sprintf(`listen: {admin: %q}
models: [{name: m, engines: [{name: e, url: "http://e:1"}]}]
auth: {admins: {keys: [%q], issuer: me}%s}
metadata: {store: redis, redis: {address: "redis:6379"}}
`, row.admin, public, row.records))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got, "WARNING: whoever can write to Redis can drain and remove engines") != row.warned {
			t.Errorf("%+v:\n%s", row, got)
		}
	}
}
