// Package yamlfile reads configuration files strictly and says on which line a mistake stands. It owns decoding
// and the wording of what does not decode; what the values must be is for whoever owns the Config they fill.
// Both the gateway's configuration (internal/configfile) and policy files (policies) are read through it.
package yamlfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"pdrouter/internal/field"
)

// File is one YAML document with the mistakes found in it so far. It is not safe for concurrent use.
type File struct {
	name     string
	nodes    map[string]node // by dotted key, such as "models[0].name"; "" is the document
	mistakes []Mistake
	unread   []string        // dotted keys whose values are of another kind
	blamed   map[string]bool // dotted keys that a message of the decoder was about
	whole    bool            // the document could be read, so its values are worth checking
}

// Mistake is one thing wrong with a file.
type Mistake struct {
	File string
	Line int    // from 1; 0 if it belongs to no line
	Path string // the dotted key; "" if it is about no key
	Msg  string // follows the path in a sentence, as that of field.Error

	about string // the path for people: with the name of the list's element, if it has one
}

// Error returns "file:line: path message".
func (m Mistake) Error() string {
	text := m.Msg
	if m.Path != "" {
		text = m.about + " " + m.Msg
	}
	if m.Line == 0 {
		return m.File + ": " + text
	}
	return m.File + ":" + strconv.Itoa(m.Line) + ": " + text
}

type node struct {
	line   int
	at     int          // position in the file, among all keys
	yaml   *yaml.Node   // the value
	want   reflect.Type // of the value; nil where there is no such key
	within reflect.Type // the type of the section around the key
}

// Decode fills into from one YAML document. Keys that into does not have, values of another kind, keys given
// twice, ${NAME} in a value and a second document are mistakes; into keeps whatever could be read. An empty document is none. Keys of the
// document that begin with "x-" are passed over: values there may have anchors that the rest refers to.
func Decode(name string, b []byte, into any) *File {
	f := &File{name: name, nodes: map[string]node{}, blamed: map[string]bool{}}
	d := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		f.whole = true
		return f
	} else if err != nil {
		f.addSyntax(err, b)
		return f
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		f.add(0, "", "holds more than one document; want one")
		return f
	}
	f.whole = true
	f.index("", node{line: doc.Line, yaml: &doc, want: reflect.TypeOf(into)})

	d = yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	err := d.Decode(into)
	var typed *yaml.TypeError
	switch {
	case errors.As(err, &typed):
		for _, text := range typed.Errors {
			f.addDecode(text)
		}
	case err != nil:
		f.addSyntax(err, b)
	}
	return f
}

// Check adds the mistakes that err joins. Each that is a field.Error is put on the line of its path. If the value of that key did not
// decode, it is left out: it would only be a consequence.
func (f *File) Check(err error) {
	if !f.whole {
		return
	}
	for _, one := range field.Split(err) {
		if e, ok := errors.AsType[*field.Error](one); !ok {
			f.add(0, "", one.Error())
		} else if !f.consequence(e.Path) {
			f.add(f.Line(e.Path), e.Path, e.Msg)
		}
	}
}

// consequence reports whether the value of a key, or of a section around it, did not decode.
func (f *File) consequence(path string) bool {
	return slices.ContainsFunc(f.unread, func(unread string) bool {
		rest, in := strings.CutPrefix(path, unread)
		return in && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// CheckZeros adds a mistake for each number and each time at a dotted key, or under it, that the file gives as 0, unless its
// field is a pointer: any other field cannot tell that 0 from a key that is left out, which stands for a default.
func (f *File) CheckZeros(at string) {
	for _, key := range slices.Sorted(maps.Keys(f.nodes)) {
		n := f.nodes[key]
		if key != at && !strings.HasPrefix(key, at+".") || n.want == nil || n.yaml.Kind != yaml.ScalarNode || n.yaml.ShortTag() == "!!null" {
			continue
		}
		switch v := reflect.New(n.want); n.want.Kind() {
		case reflect.Int, reflect.Int64, reflect.Float64:
			if n.yaml.Decode(v.Interface()) == nil && v.Elem().IsZero() {
				f.Check(field.Errorf(key, "is %s; want more than 0, or no such key for the default", n.yaml.Value))
			}
		}
	}
}

// Err returns all mistakes in the order of their lines, joined, or nil if there is none.
func (f *File) Err() error {
	sorted := slices.Clone(f.mistakes)
	slices.SortStableFunc(sorted, func(a, b Mistake) int { return cmp.Compare(a.Line, b.Line) })
	errs := make([]error, len(sorted))
	for i, m := range sorted {
		errs[i] = m
	}
	return errors.Join(errs...)
}

// Line returns the line of a dotted key, or of the nearest key around it that the file has; 0 if there is none.
func (f *File) Line(key string) int {
	for {
		if n, ok := f.nodes[key]; ok {
			return n.line
		}
		cut := strings.LastIndexAny(key, ".[")
		if cut < 0 {
			return f.nodes[""].line
		}
		key = key[:cut]
	}
}

func (f *File) add(line int, path, msg string) {
	f.mistakes = append(f.mistakes, Mistake{File: f.name, Line: line, Path: path, Msg: msg, about: f.named(path)})
}

// index notes every dotted key under n, with its line and its type. It does not look behind an alias, which may hold itself.
func (f *File) index(key string, n node) {
	if n.yaml.Kind == yaml.DocumentNode {
		n.yaml = n.yaml.Content[0]
	}
	if _, seen := f.nodes[key]; seen {
		return // a key given twice: the first stands
	}
	n.at = len(f.nodes)
	f.nodes[key] = n
	switch n.yaml.Kind {
	case yaml.ScalarNode:
		if m := variable.FindStringSubmatch(n.yaml.Value); m != nil && !strings.HasPrefix(key, free) {
			f.unread = append(f.unread, key)
			f.add(n.line, key, "has ${"+m[1]+"}; variables of the environment are not replaced: make the file before the start, "+
				"or put a secret into a file and name it by a key that ends in _file")
		} else if n.fraction() {
			f.unread = append(f.unread, key)
			f.add(n.line, key, fmt.Sprintf("is %s; want %s", n.yaml.Value, kind(pointed(n.want).String())))
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.yaml.Content); i += 2 {
			name, value := n.yaml.Content[i], n.yaml.Content[i+1]
			child := name.Value
			if key != "" {
				child = key + "." + child
			}
			f.index(child, node{line: name.Line, yaml: value, want: below(n.want, name.Value), within: n.want})
		}
	case yaml.SequenceNode:
		for i, item := range n.yaml.Content {
			f.index(key+"["+strconv.Itoa(i)+"]", node{line: item.Line, yaml: item, want: below(n.want, ""), within: n.want})
		}
	}
}

// fraction reports whether n is a number with a fraction where a whole one is wanted: the decoder would cut the fraction off.
func (n node) fraction() bool {
	if n.want == nil || n.yaml.ShortTag() != "!!float" {
		return false
	}
	whole := reflect.New(pointed(n.want))
	if !whole.Elem().CanInt() && !whole.Elem().CanUint() || n.yaml.Decode(whole.Interface()) != nil {
		return false
	}
	var x float64
	return n.yaml.Decode(&x) == nil && x != math.Trunc(x)
}

// named puts the name that an element of a list has beside its index: rules[1].prefill becomes rules[1] "long": prefill.
func (f *File) named(path string) string {
	element, rest, found := strings.Cut(path, "]")
	if !found {
		return path
	}
	element += "]"
	name, ok := f.nodes[element+".name"]
	if !ok || name.yaml.Value == "" || rest == ".name" {
		return path
	}
	return strings.TrimSpace(fmt.Sprintf("%s %q: %s", element, name.yaml.Value, strings.TrimPrefix(rest, ".")))
}

// variable is how other programs name a variable of the environment in a file.
var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?[-?+=][^}]*)?\}`)

// free begins the keys of a document that may have any value: something to put an anchor on.
const free = "x-"

var (
	lineText    = regexp.MustCompile(`(?s)^(?:yaml: )?line (\d+): (.*)$`)
	unknownText = regexp.MustCompile(`^field (.*) not found in type (\S+)$`)
	valueText   = regexp.MustCompile("(?s)^cannot unmarshal (\\S+)(?: `.*`)? into (.*)$")
	twiceText   = regexp.MustCompile(`^mapping key "(.*)" already defined at line (\d+)$`)
)

// addSyntax takes the wording from the parser, but not the line: it names where the construct around a mistake
// begins, counted from 0 or from 1. The line that the longest sound beginning of the file stops before is better.
func (f *File) addSyntax(err error, b []byte) {
	_, text := splitLine(err.Error())
	lines := bytes.SplitAfter(b, []byte("\n"))
	line := 0
	if len(lines) <= maxLines {
		for n, end := len(lines), len(b); n > 0; n-- {
			end -= len(lines[n-1])
			line = n
			if yaml.Unmarshal(b[:end], new(yaml.Node)) == nil {
				break
			}
		}
	}
	f.add(line, "", "is not YAML: "+strings.TrimPrefix(text, "yaml: "))
}

// maxLines bounds how long a file with a syntax error may be for its line to be looked for.
const maxLines = 1000

func splitLine(text string) (int, string) {
	m := lineText.FindStringSubmatch(text)
	if m == nil {
		return 0, text
	}
	line, _ := strconv.Atoi(m[1])
	return line, m[2]
}

// addDecode words one of the decoder's own messages in terms of keys.
func (f *File) addDecode(text string) {
	line, text := splitLine(text)
	if m := unknownText.FindStringSubmatch(text); m != nil {
		if _, top := f.nodes[m[1]]; top && strings.HasPrefix(m[1], free) {
			return
		}
		key, n := f.find(line, func(key string, n node) bool {
			return lastPart(key) == m[1] && n.want == nil && n.within != nil && is(n.within, m[2])
		})
		want := ""
		if keys := keysOf(n.within); keys != "" {
			want = "; want " + keys
		}
		f.addFound(line, key, "is not a key here"+want)
		return
	}
	if m := twiceText.FindStringSubmatch(text); m != nil {
		f.add(line, "", fmt.Sprintf("%s is given twice; line %s has it too", m[1], m[2]))
		return
	}
	if m := valueText.FindStringSubmatch(text); m != nil {
		key, n := f.find(line, func(_ string, n node) bool {
			return n.want != nil && is(n.want, m[2]) && n.yaml.ShortTag() == m[1] && n.yaml.Decode(reflect.New(n.want).Interface()) != nil
		})
		want := kind(m[2])
		if keys := keysOf(n.want); keys != "" {
			want += ": " + keys
		}
		if key != "" {
			f.unread = append(f.unread, key)
		}
		f.addFound(line, key, fmt.Sprintf("is %s; want %s", show(n.yaml), want))
		return
	}
	f.add(line, "", text)
}

// addFound adds a mistake about what find returned.
func (f *File) addFound(line int, path, msg string) {
	if path == "" {
		msg = "the file " + msg
	}
	f.add(line, path, msg)
}

// find returns the first key on a line that fits and was not found before; "" if there is none. The key may stand a line above its value. The
// decoder reports mistakes in the order of the file.
func (f *File) find(line int, fits func(key string, n node) bool) (string, node) {
	best, found := "", node{}
	for key, n := range f.nodes {
		if (n.line == line || n.yaml.Line == line) && (found.yaml == nil || n.at < found.at) && !f.blamed[key] && fits(key, n) {
			best, found = key, n
		}
	}
	if found.yaml == nil || best == "" {
		return "", found
	}
	f.blamed[best] = true
	return best, found
}

func lastPart(key string) string { return key[strings.LastIndex(key, ".")+1:] }

func show(n *yaml.Node) string {
	switch {
	case n == nil:
		return "something else"
	case n.Kind == yaml.AliasNode:
		return "an alias of " + n.Value
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "a section of keys"
	default:
		return strconv.Quote(n.Value)
	}
}

// kind words a Go type for people.
func kind(typ string) string {
	switch {
	case typ == "yamlfile.Size":
		return `a whole number of bytes, or of KiB, MiB or GiB, such as "32MiB"`
	case typ == "time.Duration":
		return `a time with its unit, such as "30s" or "250ms"`
	case strings.HasPrefix(typ, "[]"):
		return "a list"
	case typ == "bool":
		return "true or false"
	case typ == "string":
		return "text"
	case strings.HasPrefix(typ, "uint"):
		return "a whole number, 0 or more"
	case strings.HasPrefix(typ, "int"):
		return "a whole number"
	case strings.HasPrefix(typ, "float"):
		return "a number"
	default:
		return "a section of keys"
	}
}
