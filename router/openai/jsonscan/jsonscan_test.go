package jsonscan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// testDepth is how deep the texts of these tests may be nested.
const testDepth = 64

// scan is the verdict of the scanner over a whole text.
func scan(b []byte, depth int) (bool, string) {
	s := Scanner{Bytes: b, MaxDepth: depth, Unique: true}
	s.Space()
	ok := s.Value(0) && s.End()
	return ok, s.Why
}

// oracle is the verdict of encoding/json: valid, nested at most depth deep, no two equal keys in one object.
func oracle(b []byte, depth int) bool {
	if !json.Valid(b) || !utf8.Valid(b) {
		return false
	}
	type frame struct {
		object bool
		key    bool // the next token is a key
		seen   map[string]bool
	}
	var stack []frame
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			return true
		}
		if err != nil {
			return false
		}
		top := len(stack) - 1
		if top >= 0 && stack[top].object && tok != json.Delim('}') {
			if stack[top].key {
				k := tok.(string)
				if stack[top].seen[k] {
					return false
				}
				stack[top].seen[k], stack[top].key = true, false
				continue
			}
			stack[top].key = true
		}
		switch tok {
		case json.Delim('{'):
			stack = append(stack, frame{object: true, key: true, seen: map[string]bool{}})
		case json.Delim('['):
			stack = append(stack, frame{})
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:top]
		}
		if len(stack) > depth {
			return false
		}
	}
}

func TestScannerVerdicts(t *testing.T) {
	many := func(n int, last string) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := range n {
			fmt.Fprintf(&b, `"key%d":{"a":%d},`, i, i)
		}
		return b.String() + `"` + last + `":0}`
	}
	tests := []struct {
		name, in, why string
	}{
		{"empty object", `{}`, ""},
		{"white space", " \t\r\n{ \"a\" : [ 1 , 2 ] } \n", ""},
		{"numbers", `[0,-0,1.5,-1e9,1E+2,123456789012345678901234567890]`, ""},
		{"words", `[true,false,null]`, ""},
		{"escapes", `"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"`, ""},
		{"lone surrogate", `"\ud800"`, ""},
		{"64 deep", strings.Repeat("[", 64) + strings.Repeat("]", 64), ""},
		{"65 deep", strings.Repeat("[", 65) + strings.Repeat("]", 65), "nested too deeply"},
		{"65 objects deep", strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), "nested too deeply"},
		{"same key", `{"a":1,"a":2}`, "the same key twice in one object"},
		{"same key escaped", `{"ab":1,"\u0061b":2}`, "the same key twice in one object"},
		{"same key nested", `{"x":[{"a":1,"b":{},"a":2}]}`, "the same key twice in one object"},
		{"same key in two objects", `{"a":{"a":1},"b":{"a":1}}`, ""},
		{"lone surrogates differ", `{"\ud800":1,"\ud801":2}`, ""},
		{"case differs", `{"a":1,"A":2}`, ""},
		{"many keys", many(1000, "other"), ""},
		{"many keys, first again", many(1000, "key0"), "the same key twice in one object"},
		{"many keys, last again", many(1000, "key999"), "the same key twice in one object"},
		{"17 keys, last again", many(16, "key15"), "the same key twice in one object"},
		{"trailing comma", `{"a":1,}`, "want a string"},
		{"trailing comma in array", `[1,]`, "not a value"},
		{"no comma", `[1 2]`, "want a comma or a closing bracket"},
		{"no comma in object", `{"a":1 "b":2}`, "want a comma or a closing brace"},
		{"no colon", `{"a" 1}`, "want a colon"},
		{"leading zero", `[01]`, "want a comma or a closing bracket"},
		{"NaN", `[NaN]`, "not a value"},
		{"Infinity", `[-Infinity]`, "not a value"},
		{"plus", `[+1]`, "not a value"},
		{"no digit behind the point", `[1.]`, "not a number"},
		{"no digit in the exponent", `[1e]`, "not a number"},
		{"single quotes", `{'a':1}`, "want a string"},
		{"open string", `{"a":"bcdefghijklmnop`, "the string does not end"},
		{"open escape", `"\`, "not an escape"},
		{"bad escape", `"\x41"`, "not an escape"},
		{"short \\u", `"\u12"`, "not an escape"},
		{"newline in string", "\"a long string with a\nnewline\"", "a control character in a string"},
		{"NUL", "\"a\x00\"", "a control character in a string"},
		{"bad UTF-8", "\"abcdefgh\xff\"", "not UTF-8"},
		{"overlong UTF-8", "\"\xc0\xaf\"", "not UTF-8"},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", "not UTF-8"},
		{"bytes behind", `{} {}`, "trailing bytes"},
		{"byte order mark", "\ufeff{}", "not a value"},
		{"NUL behind", "{}\x00", "trailing bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ok, why := scan([]byte(tt.in), testDepth)
			if why != tt.why || ok != (tt.why == "") {
				t.Errorf("got %v %q, want %q", ok, why, tt.why)
			}
			if strings.Contains(tt.name, "surrogates differ") {
				return // encoding/json takes every lone surrogate for U+FFFD
			}
			if want := oracle([]byte(tt.in), testDepth); ok != want {
				t.Errorf("got %v, encoding/json says %v", ok, want)
			}
		})
	}
}

// TestScannerStringStops puts every byte at every place of a string: the eight-byte steps must stop where single
// steps would.
func TestScannerStringStops(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			b := []byte(`"` + strings.Repeat("x", 20) + `"`)
			b[1+at] = byte(c)
			got, why := scan(b, testDepth)
			if want := oracle(b, testDepth); got != want {
				t.Fatalf("byte %#02x at %d: got %v (%s), want %v", c, at, got, why, want)
			}
		}
	}
}

// TestScannerUTF8 puts every kind of character, whole, cut and wrong, before and behind others: what is taken is UTF-8.
func TestScannerUTF8(t *testing.T) {
	edges := []byte{'a', 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff}
	for first := 0x80; first <= 0xff; first++ {
		for _, second := range edges {
			for _, third := range edges {
				for _, fourth := range edges {
					for _, behind := range []string{"", "é", "界", "xxxxxxxx"} {
						in := string([]byte{byte(first), second, third, fourth}) + behind
						s := Scanner{Bytes: []byte(`"` + in + `"`)}
						if raw, _, ok := s.Str(); ok != utf8.ValidString(in) || ok && string(raw) != in {
							t.Fatalf("%x: got %v, %x", in, ok, raw)
						}
					}
				}
			}
		}
	}
}

// TestScannerEscapes puts every byte behind a backslash, and at each place behind \u, before the end and before more text.
func TestScannerEscapes(t *testing.T) {
	for c := range 256 {
		for at := range 5 {
			escape := []byte(`\u0041`)
			escape[1+at] = byte(c)
			for _, behind := range []string{"", `\n`, "é", " and some more"} {
				b := []byte(`"plain ` + string(escape) + behind + `"`)
				got, why := scan(b, testDepth)
				if want := oracle(b, testDepth); got != want {
					t.Fatalf("%q: got %v (%s), want %v", b, got, why, want)
				}
			}
		}
	}
}

// TestScannerKeys has two keys, equal or different in one byte, in a small object and in one of many members, plain and escaped.
func TestScannerKeys(t *testing.T) {
	for n := 1; n < 24; n++ {
		key := strings.Repeat("k", n)
		for at := range n {
			for _, other := range []string{key, key[:at] + "x" + key[at+1:], key + "k"} {
				for _, more := range []string{"", strings.Repeat(" ", 20), `,"m":{"a":1,"b":2}`} {
					for _, first := range []string{key, `\u006b` + key[1:]} {
						b := []byte(`{"` + first + `":1,"o":[],"` + other + `":2` + more + `}`)
						got, why := scan(b, testDepth)
						if want := oracle(b, testDepth); got != want {
							t.Fatalf("%s: got %v (%s), want %v", b, got, why, want)
						}
					}
				}
			}
		}
	}
}

func TestUnescape(t *testing.T) {
	for _, in := range []string{``, `plain`, `a\"b\\c\/d`, `\b\f\n\r\t`, `\u0041\u00e9\u20ac`, `x\ud83d\ude00y`, `é€😀`} {
		var want string
		if err := json.Unmarshal([]byte(`"`+in+`"`), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(Unescape(nil, []byte(in)))); diff != "" {
			t.Errorf("unescape %q (-want +got):\n%s", in, diff)
		}
	}
	if got, want := string(Unescape(nil, []byte(`\ud800x`))), "\xed\xa0\x80x"; got != want {
		t.Errorf("lone surrogate: got %x, want %x", got, want)
	}
}

func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{"a":[1,2,{"b":null}],"c":"\u00e9"}`, `{"a":1,"a":2}`, `[1e5,-0.1,"x"]`, `{"a":"` + "\xff" + `"}`, `{"\ud83d\ude00":{}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.Contains(b, []byte(`\ud`)) || bytes.Contains(b, []byte(`\uD`)) {
			return // keys of lone surrogates are told apart here and not by encoding/json
		}
		got, why := scan(b, testDepth)
		if want := oracle(b, testDepth); got != want {
			t.Errorf("got %v (%s), encoding/json says %v", got, why, want)
		}
	})
}
