package policies

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/yamlfile"
)

// TestBadFiles: each testdata/*.bad.yml is refused with the messages in the .want file beside it, one per line.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no bad files: %v", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			want, err := os.ReadFile(strings.TrimSuffix(path, ".yml") + ".want")
			if err != nil {
				t.Fatal(err)
			}
			p, err := Load(path)
			if err == nil || p != nil {
				t.Fatalf("%s was taken", path)
			}
			if diff := cmp.Diff(err.Error()+"\n", string(want)); diff != "" {
				t.Error("messages (-got +want):\n" + diff)
			}
		})
	}
}

// TestShortForm: a policy's name alone is a role, also beside the long form and through an alias.
func TestShortForm(t *testing.T) {
	var got, want Config
	for text, into := range map[string]*Config{
		"rules: [{name: r, models: [m], prefill: &p prefix, decode: *p}]\ndefault: {prefill: round_robin, decode: {policy: random}}\n":                                &got,
		"rules: [{name: r, models: [m], prefill: {policy: prefix}, decode: {policy: prefix}}]\ndefault: {prefill: {policy: round_robin}, decode: {policy: random}}\n": &want,
	} {
		if err := yamlfile.Decode("p.yaml", []byte(text), into).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(got, want); diff != "" || got.Rules[0].Decode.Policy != "prefix" {
		t.Errorf("the short form reads differently (-got +want):\n%s", diff)
	}
}

func TestLoadMissingFile(t *testing.T) {
	if _, err := Load("testdata/none.yaml"); err == nil || !strings.HasPrefix(err.Error(), "policies: open testdata/none.yaml") {
		t.Errorf("got %v", err)
	}
}

// TestExamplePolicy: the example beside the configurations says what its comments say.
func TestExamplePolicy(t *testing.T) {
	p, err := Load("../configs/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := Fleet{Prefill: engines(0), Decode: engines(0)}
	for _, tt := range []struct {
		model  string
		tokens int
		fleet  Fleet
		rule   string
		want   Reason
		served bool
	}{
		{"llama-3-70b", 2000, f, "large-models", Split, true},
		{"llama-3-70b", 100, f, "large-models", ShortPrompt, true},
		{"llama-3-70b", 2000, Fleet{Decode: engines(0)}, "large-models", NoPrefill, false},
		{"chat-small", 300, f, "chat", ShortPrompt, true},
		{"other", 300, f, "default", Split, true},
		{"other", 300, Fleet{Decode: engines(0)}, "default", NoPrefill, true},
	} {
		c := p.Choose(Request{Model: tt.model, PromptTokens: tt.tokens}, tt.fleet, Draw{})
		if rule := p.Rule(tt.model); rule != tt.rule || c.Reason != tt.want || c.Decode >= 0 != tt.served {
			t.Errorf("%s, %d tokens: rule %s, %s, decode %d; want rule %s, %s, served %v", tt.model, tt.tokens, rule, c.Reason, c.Decode, tt.rule, tt.want, tt.served)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range append(files, "../configs/policy.yaml") {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("rules: &a [*a]"))
	f.Add([]byte("a: &a {b: *a}\nrules: *a"))
	f.Add([]byte("\xff\xfe"))
	f.Add([]byte("rules: {}\n---\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse("fuzz.yaml", b)
		if (p == nil) == (err == nil) {
			t.Fatalf("policy %v, error %v", p, err)
		}
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if line == "" {
					t.Fatalf("an empty line in %q", err)
				}
			}
			return
		}
		fleet := Fleet{Prefill: engines(0, 1), Decode: engines(1, 0)}
		if c := p.Choose(Request{Model: "tiny", PromptTokens: 1 << 30, MustSplit: true}, fleet, Draw{}); !c.Split {
			t.Fatalf("the policy splits nothing: %+v", c)
		}
	})
}
