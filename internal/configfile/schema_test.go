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
	"pdrouter/policies"
)

// schemaFiles are the files that an editor has a schema for.
var schemaFiles = []struct {
	name, title string
	of          reflect.Type
	schema      string
	examples    string
}{
	{"schema.json", "The configuration of pdrouter serve", reflect.TypeFor[File](), Schema, "../../configs/*.yaml"},
	{"schema-policy.json", "A policy file of pdrouter", reflect.TypeFor[policies.Config](), PolicySchema, "../../configs/policy.yaml"},
	{"schema-engines.json", "A file of engines of pdrouter", reflect.TypeFor[engineFile](), EnginesSchema, "../../configs/engines/*.yaml"},
}

// TestConfigurationSchema holds the schemas that pdrouter config schema prints against the configuration's own types and their
// comments. go test ./internal/configfile -run Schema -update writes them.
func TestConfigurationSchema(t *testing.T) {
	for _, f := range schemaFiles {
		schemaOf(t, f.name, f.title, f.of)
	}
}

func schemaOf(t *testing.T, name, title string, file reflect.Type) {
	t.Helper()
	r := &reference{t: t, root: "../..", comments: map[string]map[string]string{}, seen: map[reflect.Type]string{}, fields: map[string]string{}}
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
	for _, short := range []string{"policies.Role", "policies.Part"} { // whose name alone is short for the section
		if section := schema.Definitions[short]; section != nil {
			schema.Definitions[short] = &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, section}, Description: section.Description}
			section.Description = ""
		}
	}
	schema.ID, schema.Title = "", title
	if file == reflect.TypeFor[File]() {
		schema.PatternProperties = map[string]*jsonschema.Schema{"^x-": jsonschema.TrueSchema}
	}
	got, err := json.MarshalIndent(schema, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, name, string(got)+"\n")
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
	cost := filepath.Join(t.TempDir(), "cost.yaml")
	if err := os.WriteFile(cost, []byte(`models: [{name: m, connector: none, engines: [{name: e, url: "http://e:1"}]}]
policy:
  rules:
  - {name: few, models: [few], decode: {filters: [prompt_tokens], scorers: [load]}}
  - {name: whole, models: [whole], objective: {itl: 9ms}}
  default: {policy: cost, objective: {ttft: 1s}}
  shadow: {default: {policy: cost}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, zero, cost) {
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
		if !reflect.DeepEqual(got.Routing, want.Routing) || !reflect.DeepEqual(got.Shadow, want.Shadow) {
			t.Errorf("%s: what was dumped chooses in another way:\n%s", path, text)
		}
		if file == cost && !strings.Contains(text, "    objective:\n      ttft: 1s\n      itl: 50ms\n") {
			t.Errorf("the default of an objective is left out:\n%s", text)
		}
		if changed := want.Changes(got); len(changed) > 0 && file != zero {
			for _, key := range changed {
				if !strings.HasPrefix(key, "timeouts") && !strings.HasPrefix(key, "limits") && !strings.HasPrefix(key, "health") && !strings.HasPrefix(key, "queue") && !strings.HasPrefix(key, "migration") && !strings.HasPrefix(key, "policy") && !strings.HasPrefix(key, "metadata.redis") {
					t.Errorf("%s: %s differs", path, key)
				}
			}
		}
		if file == zero && !strings.Contains(text, "keep_alive: 0s") {
			t.Errorf("a zero that is no default was lost:\n%s", text)
		}
	}
}

// TestExamplesFitTheSchema: an editor that uses the schemas marks nothing in the examples, and marks a mistake.
func TestExamplesFitTheSchema(t *testing.T) {
	checks := map[string]func([]byte) error{}
	for _, f := range schemaFiles {
		document, err := validator.UnmarshalJSON(strings.NewReader(f.schema))
		if err != nil {
			t.Fatal(err)
		}
		compiler := validator.NewCompiler()
		if err := compiler.AddResource(f.name, document); err != nil {
			t.Fatal(err)
		}
		schema, err := compiler.Compile(f.name)
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
		checks[f.name] = check
		files, err := filepath.Glob(f.examples)
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, path := range files {
			if f.name == "schema.json" && filepath.Base(path) == "policy.yaml" {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			up := strings.Repeat("../", strings.Count(path, "/")-2)
			if !bytes.HasPrefix(text, []byte("# yaml-language-server: $schema="+up+"internal/configfile/"+f.name+"\n")) {
				t.Errorf("%s does not name its schema for editors", path)
			}
			if err := check(text); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	for _, role := range []string{"prefix", "{policy: prefix}", "{scorers: [load, {name: prefix, weight: 2}]}"} {
		for name, text := range map[string]string{"schema.json": "policy: {default: {decode: " + role + "}}", "schema-policy.json": "default: {decode: " + role + "}"} {
			if err := checks[name]([]byte(text)); err != nil {
				t.Errorf("%s: %s: %v", name, text, err)
			}
		}
	}
	for name, all := range map[string][]string{
		"schema.json":         {"modells: []", "policy: {default: {decode: {polcy: prefix}}}", "policy: {default: {decode: [prefix]}}", "models: [{name: m, engines: [{nam: e}]}]", "timeouts: {prefill: soon}", "limits: {attempts: many}"},
		"schema-policy.json":  {"defaults: {}", "default: {decode: [prefix]}", "default: {decode: {scorers: [{nam: load}]}}", "models: []"},
		"schema-engines.json": {"engines: [{nam: e}]", "models: []"},
	} {
		for _, wrong := range all {
			if checks[name]([]byte(wrong)) == nil {
				t.Errorf("%s fits %s", wrong, name)
			}
		}
	}
}
