package fleetview

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/configfile"
	"pdrouter/internal/overrides"
	"pdrouter/router/config"
)

// TestEnginesFilesNameNoOtherKeys has whoever writes a file of engines, or may add engines, name files of the gateway's.
func TestEnginesFilesNameNoOtherKeys(t *testing.T) {
	dir := t.TempDir()
	put := func(path, text string) string {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret, named, of := put("gateway/secret", "s"), put("gateway/named", "n"), put("keys/one", "k")
	put("keys/deep/two", "k")
	put("keys-not/three", "k")
	bare := config.Model{Name: "m", Engines: []config.Engine{{Name: "e", URL: "http://e:1", BearerTokenFile: named}}, EnginesFrom: config.Source{File: filepath.Join(dir, "engines.yaml")}}
	open := bare
	open.EnginesFrom.KeyDir = filepath.Join(dir, "keys")
	for _, row := range []struct {
		key          string
		bare, opened bool
	}{
		{secret, false, false}, {"gateway/secret", false, false}, {named, true, true}, {"gateway/named", true, true}, {of, false, true},
		{"keys/one", false, true}, {"keys/deep/two", false, true}, {"keys/../gateway/secret", false, false}, {dir + "/keys/deep/../one", false, false}, {"keys", false, false},
		{"keys-not/three", false, false}, {"/etc/passwd", false, false},
	} {
		for _, way := range []struct {
			name string
			m    config.Model
			want bool
		}{{"by name", bare, row.bare}, {"by folder", open, row.opened}} {
			got, err := configfile.ReadEngines(way.m, "engines", way.m.EnginesFrom.File, []byte(fmt.Sprintf("engines: [{name: x, url: \"http://x:1\", bearer_token_file: %q}]\n", row.key)))
			if (err == nil) != way.want || err != nil && !strings.Contains(err.Error(), `engines[0] "x": bearer_token_file is`) {
				t.Errorf("%s, %s: %+v, %v; want it taken %v", way.name, row.key, got, err, way.want)
			}
			path := row.key
			if !filepath.IsAbs(path) {
				path = dir + "/" + path
			}
			e := config.Engine{Name: "x", URL: "http://x:1", BearerTokenFile: path}
			here := List{"m", "engines"}
			for what, r := range map[string]snapshot{
				"a file":           {found: map[List]found{here: {from: FromFile, engines: []config.Engine{e}}}},
				"an administrator": {overrides: overrides.ByEngine{"x": {Engine: "x", Model: "m", List: "engines", Entry: &e}}},
			} {
				_, all, out := r.merge(config.Config{Models: []config.Model{way.m}})
				if _, taken := find(all, "x"); taken != way.want || taken == (len(out) > 0) {
					t.Errorf("%s, %s, of %s: taken %v, left out %v; want it taken %v", way.name, path, what, taken, out, way.want)
				}
			}
		}
	}
}

// TestPrivateKeyIsNoCredential: an entry that the configuration does not list may use a model's TLS files as what they are, and
// not have the private key sent to its engine.
func TestPrivateKeyIsNoCredential(t *testing.T) {
	named := config.TLS{CertFile: "/tls/cert", KeyFile: "/tls/key"}
	m := config.Model{Name: "m", Engines: []config.Engine{{Name: "e", URL: "https://e", TLS: named}}}
	if err := FitsAdded(m, "engines", config.Engine{Name: "x", URL: "https://x", TLS: named}); err != nil {
		t.Error(err)
	}
	for key, e := range map[string]config.Engine{
		"bearer_token_file": {BearerTokenFile: "/tls/key"},
		"tls.ca_file":       {TLS: config.TLS{CAFile: "/tls/cert"}},
		"tls.cert_file":     {TLS: config.TLS{CertFile: "/etc/cert", KeyFile: "/tls/key"}},
	} {
		e.Name, e.URL = "x", "https://x"
		if err := FitsAdded(m, "engines", e); err == nil || !strings.Contains(err.Error(), key+" is ") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
