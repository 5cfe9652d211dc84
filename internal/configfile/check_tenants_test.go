package configfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/auth"
)

func TestCheckWarnsOfTenantsWhoAreNobody(t *testing.T) {
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	if _, err := auth.AppendAPIKey(keys, "team-a", nil, auth.Limits{}); err != nil {
		t.Fatal(err)
	}
	path := writeConfig(t, dir, "  clients: {api_keys_file: keys}\n"+
		"tenants: {named: {team-a: {concurrent: 1}, team-b: {concurrent: 1}, \"https://issuer.example|x\": {concurrent: 1}}}\n")
	out, err := check(t, path, false)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(out, "WARNING") != 1 || !strings.Contains(out, "WARNING: tenants.named.team-b limits nobody") {
		t.Errorf("want one warning, of team-b, in\n%s", out)
	}
	if err := os.Remove(keys); err != nil {
		t.Fatal(err)
	}
	if out, err = check(t, path, true); err != nil || strings.Contains(out, "limits nobody") {
		t.Errorf("without the file: %v %s", err, out)
	}
}

func TestCheckWarnsOfTokensWithoutConcurrent(t *testing.T) {
	out, err := checkText(t, t.TempDir(), `models: [{name: m, engines: [{name: e, url: "http://127.0.0.1:1"}]}]
tenants: {default: {tokens_per_minute: 1000}}
`)
	if err != nil || !strings.Contains(out, "WARNING: tenants.default has tokens_per_minute without concurrent") {
		t.Errorf("%v\n%s", err, out)
	}
}
