package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestValidateJSON: each mistake has its file, line, path and message, also those of other files that the configuration names.
func TestValidateJSON(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.yaml": `models:
- {name: tiny, engines: [{name: e, url: "e:1"}]}
- {name: more, engines_from: {file: engines.yaml}}
timeouts: {prefil: 1s, request: soon}
policy: {file: policy.yaml}
`,
		"engines.yaml": "engines:\n- {name: e, url: x}\n",
		"policy.yaml":  "default: {decode: best}\n",
		"sound.yaml":   "listen: {clients: \"0.0.0.0:8080\"}\nmodels: [{name: tiny, engines: [{name: e, url: \"http://e:1\"}]}]\n",
		"named.yaml":   "models: [{name: more, engines_from: {file: engines.yaml}}]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		file string
		want []validationError
	}{
		{"config.yaml", []validationError{
			{"config.yaml", 2, "models[0].engines[0].url", `is "e:1"; want a base URL such as http://10.0.0.7:8000`},
			{"config.yaml", 4, "timeouts.prefil", "is not a key here"},
			{"config.yaml", 4, "timeouts.request", `is "soon"; want a time with its unit, such as "30s" or "250ms"`},
			{"policy.yaml", 1, "default.decode.policy", `is "best"; want round_robin, random, least_load, power_of_two, prefix or session`},
		}},
		{"named.yaml", []validationError{{"engines.yaml", 2, "engines[0].url", `is "x"; want a base URL such as http://10.0.0.7:8000`}}},
		{"none.yaml", []validationError{{Message: "config: open none.yaml: no such file or directory"}}},
		{"sound.yaml", []validationError{}},
	} {
		var out strings.Builder
		err := run(t.Context(), []string{"validate", "-o", "json", filepath.Join(dir, row.file)}, &out)
		if (err == nil) != (len(row.want) == 0) {
			t.Errorf("%s: error %v; want one where there are mistakes", row.file, err)
		}
		var got validation
		if err := json.Unmarshal([]byte(strings.ReplaceAll(out.String(), dir+"/", "")), &got); err != nil {
			t.Fatal(err)
		}
		for i, e := range got.Errors {
			if e.Path == "timeouts.prefil" {
				got.Errors[i].Message, _, _ = strings.Cut(e.Message, ";")
			}
		}
		if diff := cmp.Diff(got.Errors, row.want); diff != "" {
			t.Errorf("%s: errors (-got +want):\n%s", row.file, diff)
		}
		if (len(got.Warnings) > 0) != (err == nil) { // sound.yaml has an open listener without keys
			t.Errorf("%s: warnings %q", row.file, got.Warnings)
		}
	}
}

func TestValidateArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"-c", "none.yaml"}, {"-c", "none.yaml", "more"}, {"one.yaml", "more"}, {"-x"}} {
		var out strings.Builder
		if err := run(context.Background(), append([]string{"validate"}, args...), &out); err == nil {
			t.Errorf("%q were taken", args)
		}
	}
	for _, args := range [][]string{{"--skip-files", "../../configs/production.yaml"}, {"--skip-files", "-c", "../../configs/production.yaml"}} {
		var out strings.Builder
		if err := run(context.Background(), append([]string{"validate"}, args...), &out); err != nil || !strings.Contains(out.String(), "production.yaml is sound") {
			t.Errorf("%q: %v\n%s", args, err, out.String())
		}
	}
}
