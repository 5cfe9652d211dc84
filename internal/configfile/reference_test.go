package configfile

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"pdrouter/internal/golden"
	"pdrouter/internal/yamlfile"
)

// TestConfigurationReference holds docs/configuration.md against the configuration's own types: every key, its kind,
// and what the source says of it. go test ./internal/configfile -run Reference -update writes it.
func TestConfigurationReference(t *testing.T) {
	r := &reference{t: t, root: "../..", comments: map[string]map[string]string{}, seen: map[reflect.Type]string{}, fields: map[string]string{}}
	r.collect(reflect.TypeFor[File]())
	r.printf("# Configuration\n\nEvery key of the file that `pdrouter serve -c FILE` reads. `pdrouter validate -c FILE` names each mistake with its line. " +
		"Paths are relative to the file's folder. Lists are marked `[]`; examples are in [configs/](../configs). A duration " +
		"has a unit (`30s`); a size is a number of bytes or has the unit KiB, MiB or GiB (`32MiB`). Keys at the top that begin with `x-` may hold anything, so that " +
		"YAML anchors have a place. Variables of the environment are not replaced.\n")
	r.rows(reflect.TypeFor[File](), "")
	got := r.b.String()
	for name := range r.fields {
		if camel.MatchString(name) && regexp.MustCompile(`\b`+name+`\b`).MatchString(got) {
			t.Errorf("the page has %s, a name of Go; want its key", name)
		}
	}
	golden.Equal(t, filepath.Join(r.root, "docs", "configuration.md"), got)
}

// reference collects the page.
type reference struct {
	t        *testing.T
	root     string                       // of the module
	comments map[string]map[string]string // package → "Type.Field" → comment
	b        strings.Builder
	seen     map[reflect.Type]string // structs within sections that were described
	list     bool                    // a table is open
	fields   map[string]string       // the key of each field by its name in Go; "" where several keys have that name
}

// camel matches names that are no words of a sentence.
var camel = regexp.MustCompile(`^[A-Z]+[a-z]+[A-Z]`)

// collect notes the keys of a struct's fields and of those below.
func (r *reference) collect(s reflect.Type) {
	for i := range s.NumField() {
		f := s.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if was, again := r.fields[f.Name]; again && was != key {
			key = ""
		} else if again {
			continue
		}
		r.fields[f.Name] = key
		inner := f.Type
		for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Map {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && strings.HasPrefix(inner.PkgPath(), "pdrouter") {
			r.collect(inner)
		}
	}
}

// keys replaces the names of Go in a comment by keys of the configuration: s's own, or those that all fields of the name have.
func (r *reference) keys(s reflect.Type, text string) string {
	return regexp.MustCompile(`\b[A-Z][A-Za-z]+\b`).ReplaceAllStringFunc(text, func(name string) string {
		key := r.fields[name]
		if f, own := s.FieldByName(name); own {
			key, _, _ = strings.Cut(f.Tag.Get("yaml"), ",")
		}
		if key == "" || !camel.MatchString(name) {
			return name
		}
		return key
	})
}

func (r *reference) printf(format string, args ...any) { fmt.Fprintf(&r.b, format, args...) }

// rows writes the keys of a struct; key is its own, "" for the file.
func (r *reference) rows(s reflect.Type, key string) {
	for i := range s.NumField() {
		f := s.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case options == "inline":
			r.rows(f.Type, key)
			continue
		case name == "":
			r.t.Errorf("%v.%s has no yaml key", s, f.Name)
		}
		below := strings.TrimPrefix(key+"."+name, ".")
		inner, suffix := f.Type, ""
		for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer {
			if inner.Kind() == reflect.Slice {
				suffix = "[]"
			}
			inner = inner.Elem()
		}
		comment := r.comment(s, f.Name)
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[time.Time]() {
			if key == "" {
				r.list = false
				r.printf("\n## `%s`\n", below+suffix)
				r.say(comment, r.comment(inner, ""))
			} else if seen, again := r.seen[inner]; again {
				r.row(below+suffix, "as `"+seen+"`", comment)
				continue
			} else {
				r.row(below+suffix, "", comment)
				r.seen[inner] = below + suffix
			}
			r.rows(inner, below+suffix)
			continue
		}
		if comment == "" {
			r.t.Errorf("%v.%s has no comment: nobody can tell what %s means", s, f.Name, below)
		}
		if key == "" {
			r.list = false
			r.printf("\n## `%s`\n", below+suffix)
			r.printf("%s", upper(r.kindOf(inner))+". ")
			r.say(comment)
			continue
		}
		r.row(below+suffix, r.kindOf(inner), comment)
	}
}

// upper begins a sentence.
func upper(text string) string {
	first := []rune(text)
	first[0] = unicode.ToUpper(first[0])
	return string(first)
}

// say writes the first text that there is as a paragraph.
func (r *reference) say(texts ...string) {
	for _, text := range texts {
		if text != "" {
			r.printf("%s\n", upper(text))
			return
		}
	}
}

func (r *reference) row(key, kind, comment string) {
	if !r.list {
		r.list = true
		r.printf("\n| key | value | meaning |\n| --- | --- | --- |\n")
	}
	r.printf("| `%s` | %s | %s |\n", key, kind, strings.ReplaceAll(comment, "|", "\\|"))
}

// kindOf is what a value is written as.
func (r *reference) kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t == reflect.TypeFor[yamlfile.Size]():
		return "size"
	case t.Kind() == reflect.Map && r.seen[t.Elem()] != "":
		return "map of names, each as `" + r.seen[t.Elem()] + "`"
	case t.Kind() == reflect.Map:
		return "map of names to " + r.kindOf(t.Elem())
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return "integer"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "text"
}

// comment returns what the source says of a field, or of the type if field is "".
func (r *reference) comment(s reflect.Type, field string) string {
	pkg := s.PkgPath()
	if r.comments[pkg] == nil {
		r.comments[pkg] = r.read(pkg)
	}
	return r.keys(s, r.comments[pkg][s.Name()+"."+field])
}

// read takes the comments of all fields out of a package's source.
func (r *reference) read(pkg string) map[string]string {
	dir := filepath.Join(r.root, strings.TrimPrefix(strings.TrimPrefix(pkg, "pdrouter"), "/"))
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		r.t.Fatalf("%s: no source (%v)", pkg, err)
	}
	out := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			r.t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok {
				return true
			}
			for _, spec := range d.Specs {
				s, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				out[s.Name.Name+"."] = sentence(withoutName(oneLine(d.Doc), s.Name.Name))
				if fields, ok := s.Type.(*ast.StructType); ok {
					for _, f := range fields.Fields.List {
						for _, name := range f.Names {
							out[s.Name.Name+"."+name.Name] = sentence(withoutName(oneLine(f.Doc)+" "+oneLine(f.Comment), name.Name))
						}
					}
				}
			}
			return false
		})
	}
	return out
}

func oneLine(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	return strings.Join(strings.Fields(c.Text()), " ")
}

// withoutName takes the name away that a comment in Go begins with, and a verb that says nothing. Another verb stays.
func withoutName(text, name string) string {
	text = strings.TrimSpace(text)
	for _, begin := range []string{name + " says ", name + " is ", name + " are ", name + " has "} {
		if rest, ok := strings.CutPrefix(text, begin); ok {
			return rest
		}
	}
	if rest, ok := strings.CutPrefix(text, name+" "); ok && verb.MatchString(rest) {
		return rest
	}
	return text
}

// verb matches the third person that follows a name.
var verb = regexp.MustCompile(`^[a-z]+s\b`)

// sentence ends a comment with a stop.
func sentence(text string) string {
	if text != "" && !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}
