package strictjson

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzObject: what is taken means the same to the standard library, and has nothing that other readers take
// otherwise.
func FuzzObject(f *testing.F) {
	for _, s := range []string{
		`{}`, ` { "a" : [ 1 , -2.5e+3 , true , false , null , "x\"\\é\ud800" , {} , [ ] ] , "b":{"c":{}}} `, `[]`, `{"a":1,"A":2}`,
		`{"a":1,"\u0061":2}`, `{"A":1,"a":2}`, `{"s":1,"ſ":2}`, `{"a":1}{}`, `{"a":[[[[[[[[[]]]]]]]]]}`, `{"a":"` + "\xff" + `"}`, `{"a"`, ``, `{"B":1,"b":2}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Object(b)
		if err != nil {
			return
		}
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		var want map[string]any
		if err := d.Decode(&want); err != nil {
			t.Fatalf("%q was taken: %v", b, err)
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Fatalf("%q (-got +want):\n%s", b, diff)
		}
		for name := range got {
			for other := range got {
				if name != other && strings.EqualFold(name, other) {
					t.Fatalf("%q: %q and %q were taken", b, name, other)
				}
			}
		}
	})
}

func TestObject(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"a":1,"b":[1,{"c":null}]}`: true,
		` {"a" : "x\"y" } `:          true,
		`{"a":[[[[[[[]]]]]]]}`:       true,
		`{"a":[[[[[[[[[]]]]]]]]]}`:   false,
		`{"a":1,"a":2}`:              false,
		`{"a":1,"\u0061":2}`:         false,
		`{"a":1,"A":2}`:              false,
		`{"A":1,"a":2}`:              false,
		`{"Ab":1,"aB":2}`:            false,
		`{"x":{"k":1,"K":2}}`:        false,
		"{\"s\":1,\"\u017f\":2}":     false,
		"{\"\u017f\":1,\"s\":2}":     false,
		"{\"k\":1,\"\u212a\":2}":     false,
		`{"a":1} {}`:                 false,
		`{"a":1,}`:                   false,
		`[1]`:                        false,
		`"a"`:                        false,
		``:                           false,
		"{\"a\":\"\xff\"}":           false,
	} {
		if _, err := Object([]byte(text)); (err == nil) != ok {
			t.Errorf("%q: got %v; want accepted: %t", text, err, ok)
		}
	}
}
