package lint

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	mention = regexp.MustCompile(`\b([A-Za-z]\w*)\.([A-Za-z]\w*)\b`)
	goFile  = regexp.MustCompile(`\b(\w+)\.go\b`)
)

// names are the identifiers that packages and types have, by the name of the package or, after its directory, of the type.
type names map[string]map[string]bool

func (n names) add(of, name string) {
	if n[of] == nil {
		n[of] = map[string]bool{}
	}
	n[of][name] = true
}

// declared enters what a file declares: the package's own names, and the fields and methods of its types.
func (n names) declared(dir string, file *ast.File) {
	pkg := file.Name.Name
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				n.add(pkg, d.Name.Name)
				continue
			}
			of := d.Recv.List[0].Type
			if p, ok := of.(*ast.StarExpr); ok {
				of = p.X
			}
			if i, ok := of.(*ast.IndexExpr); ok {
				of = i.X
			}
			if id, ok := of.(*ast.Ident); ok {
				n.add(dir+" "+id.Name, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, id := range s.Names {
						n.add(pkg, id.Name)
					}
				case *ast.TypeSpec:
					n.add(pkg, s.Name.Name)
					of := dir + " " + s.Name.Name
					n.add(of, "")
					ast.Inspect(s.Type, func(x ast.Node) bool {
						f, ok := x.(*ast.Field)
						if !ok {
							return true
						}
						for _, id := range f.Names {
							n.add(of, id.Name)
						}
						if len(f.Names) == 0 { // what an embedded type has is not looked up
							n.add(of, "*")
						}
						return true
					})
				}
			}
		}
	}
}

// TestCommentsNameWhatIsThere fails for a comment that names a member of a package or of a type of its own package that does not exist: a
// renamed method or field, most likely. It knows only qualified names (pkg.Name, Type.member) and names of files.
func TestCommentsNameWhatIsThere(t *testing.T) {
	all, files := names{}, map[string]bool{}
	sources(t, func(path string, file *ast.File, _ string) {
		all.declared(filepath.Dir(path), file)
		files[strings.TrimSuffix(filepath.Base(path), ".go")] = true
	})
	sources(t, func(path string, file *ast.File, _ string) {
		for _, group := range file.Comments {
			text := group.Text()
			for _, m := range mention.FindAllStringSubmatch(text, -1) {
				own, pkg := all[filepath.Dir(path)+" "+m[1]], all[m[1]]
				switch {
				case m[2] == "go", m[2] == "json", own == nil && (pkg == nil || !ast.IsExported(m[2])):
				case own[m[2]], own["*"], pkg[m[2]]:
				default:
					t.Errorf("%s: a comment names %s.%s, which is not there", path, m[1], m[2])
				}
			}
			for _, m := range goFile.FindAllStringSubmatch(text, -1) {
				if !files[m[1]] {
					t.Errorf("%s: a comment names %s.go, which is not there", path, m[1])
				}
			}
		}
	})
}

// TestDocCommentsBeginWithTheName fails for the comment of a function that begins with another name: what the function was called before.
func TestDocCommentsBeginWithTheName(t *testing.T) {
	sources(t, func(path string, file *ast.File, _ string) {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			first, _, _ := strings.Cut(f.Doc.Text(), " ")
			other := first != "" && (unicode.IsLower(rune(first[0])) || strings.EqualFold(first, f.Name.Name))
			if other && strings.TrimRight(first, ",.:\n") != f.Name.Name {
				t.Errorf("%s: the comment of %s begins with %s", path, f.Name.Name, first)
			}
		}
	})
}
