package configfile

import (
	"bytes"
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"pdrouter/internal/golden"
	"pdrouter/internal/yamlfile"
)

// TestConfigurationSchema holds schema.json, which pdrouter config schema prints, against the configuration's own types and their
// comments. go test ./internal/configfile -run Schema -update writes it.
func TestConfigurationSchema(t *testing.T) {
	r := &reference{t: t, root: "../..", comments: map[string]map[string]string{}, seen: map[reflect.Type]string{}, fields: map[string]string{}}
	file := reflect.TypeFor[File]()
	r.collect(file)
	comments := map[string]string{}
	r.describe(file, comments)
	reflector := jsonschema.Reflector{
		FieldNameTag: "yaml", ExpandedStruct: true, RequiredFromJSONSchemaTags: true, CommentMap: comments,
		Namer: func(of reflect.Type) string {
			if of.Name() == "" {
				return "" // as it is
			}
			return path.Base(of.PkgPath()) + "." + of.Name() // two types are called Limits
		},
		Mapper: func(of reflect.Type) *jsonschema.Schema {
			if of == reflect.TypeFor[yamlfile.Size]() {
				return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "integer"}, {Type: "string", Pattern: `^[0-9]+(KiB|MiB|GiB)$`}}}
			}
			if of == reflect.TypeFor[time.Duration]() {
				return &jsonschema.Schema{Type: "string", Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`}
			}
			return nil
		},
	}
	schema := reflector.ReflectFromType(file)
	role := schema.Definitions["policies.Role"]
	schema.Definitions["policies.Role"] = &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, role}, Description: role.Description}
	role.Description = ""
	schema.ID, schema.Title = "", "The configuration of pdrouter serve"
	schema.PatternProperties = map[string]*jsonschema.Schema{"^x-": jsonschema.TrueSchema}
	got, err := json.MarshalIndent(schema, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, "schema.json", string(got)+"\n")
}

// describe collects the comments of a type's fields, and of the types below, under the names that jsonschema looks for.
func (r *reference) describe(s reflect.Type, out map[string]string) {
	at := s.PkgPath() + "." + s.Name()
	if _, again := out[at]; again {
		return
	}
	out[at] = r.comment(s, "")
	for i := range s.NumField() {
		f := s.Field(i)
		if text := r.comment(s, f.Name); text != "" {
			out[at+"."+f.Name] = text
		}
		inner := f.Type
		for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Map {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && strings.HasPrefix(inner.PkgPath(), "pdrouter") {
			r.describe(inner, out)
		}
	}
}

// TestSchemaNamesEveryKey: the schema has the keys that the reference page has.
func TestSchemaNamesEveryKey(t *testing.T) {
	for _, want := range []string{`"prefill_from"`, `"side_channel"`, `"api_keys_file"`, `"min_prompt_tokens"`, `"sentinel"`, `"additionalProperties": false`} {
		if !strings.Contains(Schema, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestConfigDump: what is dumped is a configuration, and means what the file means with its defaults.
func TestConfigDump(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	zero := filepath.Join(t.TempDir(), "zero.yaml")
	if err := os.WriteFile(zero, []byte("models: [{name: m, engines: [{name: e, url: \"http://e:1\"}]}]\ntimeouts: {keep_alive: 0s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, zero) {
		if filepath.Base(file) == "policy.yaml" {
			continue
		}
		path, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		dumped, err := want.Dump()
		if err != nil {
			t.Fatal(err)
		}
		text := string(dumped)
		got, err := Parse(path, dumped)
		if err != nil {
			t.Errorf("%s: %v\n%s", path, err, text)
			continue
		}
		again, err := got.Dump()
		if err != nil || string(again) != text {
			t.Errorf("%s: dumped again it differs, %v:\n%s", path, err, cmp.Diff(string(again), text))
		}
		if diff := cmp.Diff(got.WithDefaults(), want.WithDefaults()); diff != "" {
			t.Errorf("%s: what was dumped differs (-got +want):\n%s", path, diff)
		}
		if changed := want.Changes(got); len(changed) > 0 && file != zero {
			for _, key := range changed {
				if !strings.HasPrefix(key, "timeouts") && !strings.HasPrefix(key, "limits") && !strings.HasPrefix(key, "health") && !strings.HasPrefix(key, "metadata.redis") {
					t.Errorf("%s: %s differs", path, key)
				}
			}
		}
		if file == zero && !strings.Contains(text, "keep_alive: 0s") {
			t.Errorf("a zero that is no default was lost:\n%s", text)
		}
	}
}

// TestExamplesFitTheSchema: an editor that uses the schema marks nothing in the examples, and marks a mistake.
func TestExamplesFitTheSchema(t *testing.T) {
	document, err := validator.UnmarshalJSON(strings.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := validator.NewCompiler()
	if err := compiler.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	check := func(text []byte) error {
		var value any
		if err := yaml.Unmarshal(text, &value); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(value)
	}
	files, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		if filepath.Base(path) == "policy.yaml" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(text, []byte("# yaml-language-server: $schema=../internal/configfile/schema.json\n")) {
			t.Errorf("%s does not name the schema for editors", path)
		}
		if err := check(text); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, role := range []string{"prefix", "{policy: prefix}"} {
		if err := check([]byte("policy: {default: {decode: " + role + "}}")); err != nil {
			t.Errorf("decode: %s: %v", role, err)
		}
	}
	for _, wrong := range []string{"modells: []", "policy: {default: {decode: {polcy: prefix}}}", "policy: {default: {decode: [prefix]}}", "models: [{name: m, engines: [{nam: e}]}]", "timeouts: {prefill: soon}", "limits: {attempts: many}"} {
		if check([]byte(wrong)) == nil {
			t.Errorf("%s fits the schema", wrong)
		}
	}
}
