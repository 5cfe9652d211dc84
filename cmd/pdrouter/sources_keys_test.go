package main

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
			here := listOf{"m", "engines"}
			for what, r := range map[string]roster{
				"a file":           {found: map[listOf]found{here: {from: fromFile, engines: []config.Engine{e}}}},
				"an administrator": {records: overrides.ByEngine{"x": {Engine: "x", Model: "m", List: "engines", Entry: &e}}},
			} {
				_, all, out := r.merge(config.Config{Models: []config.Model{way.m}})
				if _, taken := find(all, "x"); taken != way.want || taken == (len(out) > 0) {
					t.Errorf("%s, %s, of %s: taken %v, left out %v; want it taken %v", way.name, path, what, taken, out, way.want)
				}
			}
		}
	}
}

// TestKeyDirHoldsHoweverItIsNamed names the configuration by a relative path, and a key in its key_dir by an absolute one.
func TestKeyDirHoldsHoweverItIsNamed(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("keys", 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"keys/one":     "k",
		"engines.yaml": fmt.Sprintf("engines: [{name: one, url: \"http://a:1\", bearer_token_file: %q}]\n", filepath.Join(dir, "keys/one")),
		"g.yaml":       "models: [{name: m, engines_from: {file: engines.yaml, key_dir: keys}}]\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"g.yaml", filepath.Join(dir, "g.yaml")} {
		if _, err := loadWhole(path, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
