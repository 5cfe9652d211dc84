package lint

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "pdrouter"

type listed struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(raw))); ; {
		var p listed
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportsFollowTheMap(t *testing.T) {
	rules := Packages()
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		rule, ok := rules[name]
		if !ok {
			t.Errorf("package %s is not on the map in internal/lint", name)
			continue
		}
		for _, imp := range p.Imports {
			if problem := rule.refuses(imp); problem != "" {
				t.Errorf("%s imports %s: %s", name, imp, problem)
			}
		}
	}
}

func TestPackagesLinkNoneOfTheUnlinked(t *testing.T) {
	for name, banned := range Unlinked() {
		deps := linked(t, name)
		for _, prefix := range banned {
			if got := slices.IndexFunc(deps, func(dep string) bool { return strings.HasPrefix(dep, prefix) }); got >= 0 {
				t.Errorf("%s links %s", name, deps[got])
			}
		}
	}
	if !slices.Contains(linked(t, "cmd/pdrouter"), "github.com/redis/go-redis/v9") {
		t.Error("cmd/pdrouter does not link go-redis: the test finds nothing")
	}
	if !slices.Contains(linked(t, "bench/page"), "gonum.org/v1/plot") {
		t.Error("bench/page does not link gonum.org/v1/plot: the test finds nothing")
	}
}

// linked lists all that a package is linked with, itself included.
func linked(t *testing.T, name string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "./"+name)
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.Fields(string(raw))
}

func TestTheMapRefusesWhatItDoesNotName(t *testing.T) {
	rule := Package{Ours: []string{"metadata"}, Outside: []string{"golang.org/x/sys"}}
	for imp, allowed := range map[string]bool{
		"fmt": true, "net/http": true, "pdrouter/metadata": true, "golang.org/x/sys/unix": true,
		"pdrouter/metadata/vllm": false, "pdrouter/router": false, "golang.org/x/sysfoo": false, "github.com/a/b": false,
	} {
		if got := rule.refuses(imp) == ""; got != allowed {
			t.Errorf("%s: allowed is %v; want %v", imp, got, allowed)
		}
	}
}

func (p Package) refuses(imp string) string {
	if ours, found := strings.CutPrefix(imp, module+"/"); found {
		if slices.Contains(p.Ours, ours) {
			return ""
		}
		return "no such arrow between our packages"
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	for _, prefix := range p.Outside {
		if imp == prefix || strings.HasPrefix(imp, prefix+"/") {
			return ""
		}
	}
	return "this module is not among those it may name"
}

// sources calls visit for every Go file of the module, tests included, with its path from the root.
func sources(t *testing.T, visit func(path string, file *ast.File, raw string)) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, raw, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		visit(strings.TrimPrefix(filepath.ToSlash(path), "../../"), file, string(raw))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestClientsFollowNoRedirects: whatever is sent to an engine, a gateway or an issuer goes to the configured address and no
// further. forbidigo keeps http.Get and the like away; that a client sets CheckRedirect, no linter can tell. demo, bench, refengine and
// what is for tests ask only servers that they started, without credentials.
func TestClientsFollowNoRedirects(t *testing.T) {
	seen := 0
	sources(t, func(path string, file *ast.File, _ string) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "bench/") || strings.HasPrefix(path, "internal/demo/") ||
			path == "internal/refengine/conformance.go" || strings.HasPrefix(path, "internal/e2e/") || strings.HasPrefix(path, "internal/routertest/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			sel, ok := lit.Type.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Client" {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "http" {
				return true
			}
			seen++
			if !slices.ContainsFunc(lit.Elts, func(e ast.Expr) bool {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					return false
				}
				key, ok := kv.Key.(*ast.Ident)
				return ok && key.Name == "CheckRedirect"
			}) {
				t.Errorf("%s: this http.Client follows redirects; set CheckRedirect", path)
			}
			return true
		})
	})
	if seen == 0 {
		t.Error("no client was seen: the test finds nothing")
	}
}

// TestGatewayLinksNoAgent: the gateway's packages link neither an agent nor the libraries that one opens.
func TestGatewayLinksNoAgent(t *testing.T) {
	for _, name := range []string{"kvplane/control", "kvplane/ticket", "router/..."} {
		cmd := exec.Command("go", "list", "-deps", module+"/"+name)
		cmd.Dir = "../.."
		cmd.Stderr = os.Stderr
		raw, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for _, dep := range strings.Fields(string(raw)) {
			switch {
			case dep == module+"/kvplane", dep == module+"/kvplane/nixl", dep == module+"/internal/cuda",
				dep == "github.com/ebitengine/purego", strings.HasPrefix(dep, "github.com/ebitengine/purego/"):
				t.Errorf("%s links %s", name, dep)
			}
		}
	}
}
