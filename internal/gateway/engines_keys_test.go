package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

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
