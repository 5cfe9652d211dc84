package yamlfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/field"
)

type inner struct {
	Wait time.Duration `yaml:"wait"`
	On   bool          `yaml:"on"`
}

type item struct {
	Name  string  `yaml:"name"`
	URL   string  `yaml:"url"`
	Share float64 `yaml:"share"`
	Size  uint16  `yaml:"size"`
}

type outer struct {
	inner  `yaml:",inline"`
	Items  []item            `yaml:"items"`
	Nest   *inner            `yaml:"nest"`
	Tags   map[string]string `yaml:"tags"`
	Counts map[string]int    `yaml:"counts"`
	Most   *int              `yaml:"most"`
}

// TestDecode: what does not decode is worded by key and line; what does is kept.
func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		name, text, want string
	}{
		{"empty", "", ""},
		{"comment only", "# nothing\n", ""},
		{"good", "wait: 3s\nitems:\n- {name: a, size: 4}\nnest: {on: true}\ntags: {x: y}\n", ""},
		{"number for a time", "wait: 30\n", `f.yaml:1: wait is "30"; want a time with its unit, such as "30s" or "250ms"`},
		{"unknown beside an inlined struct", "waits: 3s\n", `f.yaml:1: waits is not a key here; want wait, on, items, nest, tags, counts or most`},
		{"unknown behind a pointer", "nest:\n  off: true\n", `f.yaml:2: nest.off is not a key here; want wait or on`},
		{"section for text", "items:\n- name: a\n  url:\n    host: b\n", `f.yaml:4: items[0] "a": url is a section of keys; want text`},
		{"text for a bool", "nest:\n  on: maybe\n", `f.yaml:2: nest.on is "maybe"; want true or false`},
		{"number too large", "items:\n- name: a\n  size: 70000\n  share: x\n", "f.yaml:3: items[0] \"a\": size is \"70000\"; want a whole number, 0 or more\nf.yaml:4: items[0] \"a\": share is \"x\"; want a number"},
		{"a fraction for a whole number", "items:\n- {name: a, size: 4.7, share: .5}\n- {size: 4e1}\ncounts: {a: 1.5, b: 2}\nmost: -.5\n", "f.yaml:2: items[0] \"a\": size is 4.7; want a whole number, 0 or more\nf.yaml:4: counts.a is 1.5; want a whole number\nf.yaml:5: most is -.5; want a whole number"},
		{"not a section at all", "- a\n", `f.yaml:1: the file is a list; want a section of keys: wait, on, items, nest, tags, counts or most`},
		{"broken", "wait: [\n", "f.yaml:1: is not YAML: did not find expected node content"},
		{"broken behind lists over several lines", "items: [\n{name: a},\n{name: b}]\nnest:\n  on: true\n wait: 1s\non: true\n", "f.yaml:6: is not YAML: did not find expected key"},
		{"value in flow style beside a deeper key", "nest: {wait: 3s, on: maybe}\ntags: {x: {wait: y}, wait: z}\n", "f.yaml:1: nest.on is \"maybe\"; want true or false\nf.yaml:2: tags.x is a section of keys; want text"},
		{"text for a section in flow style", "{tags: {wait: soon}, nest: soon, items: [{name: a}]}\n", `f.yaml:1: nest is "soon"; want a section of keys: wait or on`},
		{"unknown in flow style", "{nest: {on: true, name: x}, items: [{name: a}, {name: b}]}\n", `f.yaml:1: nest.name is not a key here; want wait or on`},
		{"the same mistake twice on a line", "items: [{size: x}, {size: 3}, {size: y}]\n", "f.yaml:1: items[0].size is \"x\"; want a whole number, 0 or more\nf.yaml:1: items[2].size is \"y\"; want a whole number, 0 or more"},
		{"the same unknown key twice on a line", "items: [{port: 1}, {size: 3}, {port: 2}]\n", "f.yaml:1: items[0].port is not a key here; want name, url, share or size\nf.yaml:1: items[2].port is not a key here; want name, url, share or size"},
		{"alias that holds itself", "items: &a [*a]\n", `f.yaml:1: items[0] is an alias of a; want a section of keys: name, url, share or size`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var o outer
			got := ""
			if err := Decode("f.yaml", []byte(tt.text), &o).Err(); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(got, tt.want); diff != "" {
				t.Error("messages (-got +want):\n" + diff)
			}
		})
	}
}

func TestDecodeKeepsWhatItRead(t *testing.T) {
	var o outer
	if err := Decode("f.yaml", []byte("wait: 3s\non: maybe\nitems: [{name: a}]\n"), &o).Err(); err == nil {
		t.Fatal("a bad value was taken")
	}
	if o.Wait != 3*time.Second || len(o.Items) != 1 || o.Items[0].Name != "a" {
		t.Errorf("got %+v", o)
	}
}

// TestCheck: a message finds the line of its key, of the section around a key that is left out, and is not
// repeated where the key did not decode.
func TestCheck(t *testing.T) {
	text := "nest:\n  wait: soon\n  on: true\nitems:\n- name: a\n  url: x\n- url: y\n"
	var o outer
	f := Decode("f.yaml", []byte(text), &o)
	f.Check(errors.Join(
		field.Errorf("items[0].url", "is %q; want a URL", "x"),
		errors.Join(field.Errorf("items[1].name", "is missing"), nil),
		field.Errorf("items[1]", "is of no use"),
		field.Errorf("nest.wait", "is 0s; want more"),
		field.Errorf("tags", "is missing"),
		errors.New("nest.on is not typed: it has no line"),
	))
	f.Check(field.Under("nest", field.Errorf("on", "is true; want false")))
	f.Check(nil)
	want := `f.yaml: nest.on is not typed: it has no line
f.yaml:1: tags is missing
f.yaml:2: nest.wait is "soon"; want a time with its unit, such as "30s" or "250ms"
f.yaml:3: nest.on is true; want false
f.yaml:6: items[0] "a": url is "x"; want a URL
f.yaml:7: items[1].name is missing
f.yaml:7: items[1] is of no use`
	if diff := cmp.Diff(f.Err().Error(), want); diff != "" {
		t.Error("messages (-got +want):\n" + diff)
	}
	var got []Mistake
	for _, err := range field.Split(f.Err())[1:3] {
		m, _ := errors.AsType[Mistake](err)
		got = append(got, Mistake{m.File, m.Line, m.Path, m.Msg, ""})
	}
	parts := []Mistake{{"f.yaml", 1, "tags", "is missing", ""}, {"f.yaml", 2, "nest.wait", `is "soon"; want a time with its unit, such as "30s" or "250ms"`, ""}}
	if diff := cmp.Diff(got, parts, cmp.AllowUnexported(Mistake{})); diff != "" {
		t.Error("parts (-got +want):\n" + diff)
	}
}

// TestCheckZeros: a 0 that would be taken for a key that is left out is a mistake; one that a pointer keeps apart is none.
func TestCheckZeros(t *testing.T) {
	type bounds struct {
		Size  int            `yaml:"size"`
		Wait  time.Duration  `yaml:"wait"`
		Share float64        `yaml:"share"`
		Queue *int           `yaml:"queue"`
		Pause *time.Duration `yaml:"pause"`
		On    bool           `yaml:"on"`
	}
	var o struct {
		Limits bounds `yaml:"limits"`
		Other  bounds `yaml:"other"`
	}
	f := Decode("f.yaml", []byte("limits:\n  size: 0\n  wait: 0s\n  share: 0.0\n  queue: 0\n  pause: 0s\n  on: false\nother: {size: 0}\n"), &o)
	f.CheckZeros("limits")
	want := `f.yaml:2: limits.size is 0; want more than 0, or no such key for the default
f.yaml:3: limits.wait is 0s; want more than 0, or no such key for the default
f.yaml:4: limits.share is 0.0; want more than 0, or no such key for the default`
	if diff := cmp.Diff(f.Err().Error(), want); diff != "" {
		t.Error("messages (-got +want):\n" + diff)
	}
	f = Decode("f.yaml", []byte("limits: {size: 0, wait: 0s}\n"), &o)
	f.CheckZeros("limits.wait")
	if got, want := fmt.Sprint(f.Err()), "f.yaml:1: limits.wait is 0s; want more than 0, or no such key for the default"; got != want {
		t.Errorf("of one key: %s; want %s", got, want)
	}
	f = Decode("f.yaml", []byte("limits:\n  size: 1\n  wait:\n"), &o)
	if f.CheckZeros("limits"); f.Err() != nil {
		t.Error(f.Err())
	}
}

func TestLine(t *testing.T) {
	f := Decode("f.yaml", []byte("nest:\n  wait: 1s\nitems:\n- name: a\n"), &outer{})
	for key, want := range map[string]int{
		"nest": 1, "nest.wait": 2, "nest.on": 1, "items[0].name": 4, "items[0].url": 4, "items[7].url": 3, "tags.x": 1,
	} {
		if got := f.Line(key); got != want {
			t.Errorf("%s: line %d; want %d", key, got, want)
		}
	}
}

// TestVariables: a value that another program would replace is a mistake, on its line, without what stands beside the name.
func TestVariables(t *testing.T) {
	for text, want := range map[string]string{
		"nest: {}\nitems:\n- name: a\n  url: http://${HOST}:8000\n": `f.yaml:4: items[0] "a": url has ${HOST}; variables`,
		"items:\n- name: ${NAME:-hidden}\n":                         "f.yaml:2: items[0].name has ${NAME}; variables",
		"items:\n- name: a$b{c}\n":                                  "",
		"x-hosts: [\"${HOST}\"]\n":                                  "",
	} {
		err := Decode("f.yaml", []byte(text), &outer{}).Err()
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%q: got %v; want %q", text, err, want)
		case err != nil && strings.Contains(err.Error(), "hidden"):
			t.Errorf("%v tells the default", err)
		}
	}
}

// TestFreeKeys: a key of the document that begins with x- holds anchors for the rest, and nothing else does.
func TestFreeKeys(t *testing.T) {
	var o outer
	f := Decode("f.yaml", []byte("x-common: &common {wait: 3s}\nnest:\n  <<: *common\n  on: true\n"), &o)
	if f.Err() != nil || !o.Nest.On || o.Nest.Wait != 3*time.Second {
		t.Errorf("got %+v, %v; want the anchor's wait", o.Nest, f.Err())
	}
	if f = Decode("f.yaml", []byte("nest: {x-common: 1}\n"), &o); f.Err() == nil {
		t.Error("a key x-common was taken inside of a section")
	}
}

// TestSize: a size is a number of bytes, or has a unit, and is written in its largest one.
func TestSize(t *testing.T) {
	var o struct {
		Max Size `yaml:"max"`
	}
	for text, want := range map[string]Size{"7": 7, "32MiB": 32 << 20, `"64KiB"`: 64 << 10, "1GiB": 1 << 30, "0": 0, "-1": -1, "0x20": 32, "1_000": 1000} {
		if f := Decode("f.yaml", []byte("max: "+text+"\n"), &o); f.Err() != nil || o.Max != want {
			t.Errorf("%s: got %d, %v; want %d", text, o.Max, f.Err(), want)
		}
	}
	for _, text := range []string{"32MB", "MiB", "1.5GiB", "many", "[1]", "99999999999GiB", "1KiBMiB", "true"} {
		err := Decode("f.yaml", []byte("max: "+text+"\n"), &o).Err()
		if err == nil || !strings.Contains(err.Error(), "f.yaml:1: max is ") || !strings.HasSuffix(err.Error(), `want a whole number of bytes, or of KiB, MiB or GiB, such as "32MiB"`) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	for size, want := range map[Size]string{32 << 20: "32MiB", 1500: "1500", 0: "0", 3 << 30: "3GiB"} {
		if v, err := size.MarshalYAML(); err != nil || fmt.Sprint(v) != want {
			t.Errorf("%d is written %v, %v; want %s", size, v, err, want)
		}
	}
}
