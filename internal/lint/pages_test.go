package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quoted     = regexp.MustCompile("`([^`\n]+)`")
	identifier = regexp.MustCompile(`^[A-Z]\w*[a-z]\w*(\.[A-Z]\w*)?$`)
)

// TestPlanePageNamesWhatIsThere fails for a Go name, file or folder in docs/kvplane.md that does not exist in the plane or in metadata.
func TestPlanePageNamesWhatIsThere(t *testing.T) {
	own, members, files := map[string]bool{}, map[string]bool{}, map[string]bool{}
	sources(t, func(path string, file *ast.File, _ string) {
		if !strings.HasPrefix(path, "kvplane/") && !strings.HasPrefix(path, "metadata/") {
			return
		}
		files[filepath.Base(path)] = true
		here := names{}
		here.declared("", file)
		for of, all := range here {
			typ, isType := strings.CutPrefix(of, " ")
			for name := range all {
				if isType {
					members[typ+"."+name] = true
				}
				own[name] = true
			}
		}
	})
	raw, err := os.ReadFile("../../docs/kvplane.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, m := range quoted.FindAllStringSubmatch(string(raw), -1) {
		name := m[1]
		switch {
		case strings.HasPrefix(name, "kvplane/"):
			if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
				t.Errorf("docs/kvplane.md names %s, which is not there", name)
			}
		case strings.HasSuffix(name, ".go"):
			if !files[name] {
				t.Errorf("docs/kvplane.md names %s, which is not there", name)
			}
		case !identifier.MatchString(name):
			continue
		case !own[name] && !members[name]:
			t.Errorf("docs/kvplane.md names %s, which is not there", name)
		}
		seen++
	}
	if seen < 50 {
		t.Fatalf("only %d names were found: the test finds nothing", seen)
	}
}
