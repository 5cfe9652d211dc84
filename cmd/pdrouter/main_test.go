package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestCommandLinesRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // in the message
		code int
	}{
		{[]string{"sevre"}, `unknown command "sevre"; did you mean "serve"?`, 2},
		{[]string{"keys", "rotat"}, `unknown command "rotat"; did you mean "rotate"?`, 2},
		{[]string{"serve", "--confg", "x"}, "unknown flag: --confg", 2},
		{[]string{"serve", "x", "y"}, "accepts at most 1 arg", 2},
		{[]string{"help", "sevre"}, `no help on "sevre"`, 2},
		{[]string{"help", "keys", "rotat"}, `no help on "keys rotat"`, 2},
		{[]string{"serve", "-c", "x", "y"}, "named twice", 2},
		{[]string{"serve", "--prefill", "http://e:1"}, "--prefill and --decode are only of use together", 2},
		{[]string{"serve", "--engine", "http://e:1", "--prefill", "http://e:2", "--decode", "http://e:3"}, "--engine is set beside --prefill", 2},
		{[]string{"serve", "--engine", "http://e:1", "x.yaml"}, "a configuration file is named beside engines", 2},
		{[]string{"serve", "--engine", "10.0.0.7:8000"}, `want a base URL such as http://10.0.0.7:8000`, 2},
		{[]string{"serve", "--engine", "http://e:1/v1"}, "want it without /v1", 2},
		{[]string{"serve", "--print-config"}, "--print-config is only of use with --prefill and --decode, or with --engine", 2},
		{[]string{"serve", "--engine", "http://e:1", "--wait", "0s"}, "--wait is 0s; want more than 0", 2},
		{[]string{"serve"}, "no configuration: give -c FILE, or engines by --prefill and --decode or by --engine", 1},
		{[]string{"config", "schema", "polices"}, `invalid argument "polices"`, 2},
		{[]string{"validate", "-c", "one.yaml", "two.yaml"}, "named twice", 2},
		{[]string{"validate", "one.yaml", "two.yaml"}, "accepts at most 1 arg", 2},
		{[]string{"keys", "new"}, `required flag(s) "out" not set`, 2},
		{[]string{"token", "mint"}, "at least one of the flags in the group [key development-secret]", 2},
		{[]string{"version", "-o", "xml"}, "want text or json", 2},
		{[]string{"admin", "engines", "list"}, `required flag(s) "token-file" not set`, 2},
		{[]string{"validate", "-c", "none.yaml"}, "no such file", 1},
		{[]string{"bench", "no-such-suite"}, "no-such-suite", 1},
	} {
		err := run(t.Context(), c.args, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("%q: got %v, exit code %d; want %q, %d", c.args, err, exitCode(err), c.want, c.code)
		}
		var usage usageError
		if errors.As(err, &usage) && strings.Count(err.Error(), usage.command) == 0 {
			t.Errorf("%q: %v does not say which command has help", c.args, err)
		}
	}
}

// TestUsageErrorsOnStandardError: a usage error is told once, on standard error, with exit code 2.
func TestUsageErrorsOnStandardError(t *testing.T) {
	cmd := exec.Command(os.Args[0], "validate", "--nope")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || stdout.Len() > 0 || strings.Count(stderr.String(), "--nope") != 1 {
		t.Errorf("got %v, %q on standard output, %q on standard error", err, stdout.String(), stderr.String())
	}
}

func TestFlagsStandAnywhere(t *testing.T) {
	const file = "../../configs/aggregated.yaml"
	for _, args := range [][]string{
		{"validate", "-c", file, "--skip-files"}, {"validate", "--skip-files", "--config=" + file}, {"validate", file, "--skip-files"},
		{"validate", "--help"}, {"help", "validate"}, {"check", "--skip-files", file},
	} {
		if out := call(t, args...); !strings.Contains(out, "is sound") && !strings.Contains(out, "--skip-files") {
			t.Errorf("%q printed %s", args, out)
		}
	}
	t.Setenv("PDROUTER_CONFIG", file)
	if out := call(t, "validate", "--skip-files"); !strings.Contains(out, "aggregated.yaml is sound") {
		t.Errorf("with PDROUTER_CONFIG: %s", out)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out := call(t, "completion", shell); !strings.Contains(out, "pdrouter") {
			t.Errorf("%s: %s", shell, out)
		}
	}
	if out := call(t, "__complete", "va"); !strings.Contains(out, "validate") {
		t.Errorf("completing va: %s", out)
	}
}

func TestVersion(t *testing.T) {
	var b build
	if err := json.Unmarshal([]byte(call(t, "version", "-o", "json")), &b); err != nil {
		t.Fatal(err)
	}
	if b.Version == "" || !strings.HasPrefix(b.Go, "go1.") || b.OS == "" || b.Arch == "" {
		t.Errorf("got %+v", b)
	}
	text := call(t, "version")
	for _, want := range []string{"pdrouter ", b.Go, "NIXL ", "tested with " + vllmTested} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in %s", want, text)
		}
	}
	if short := call(t, "--version"); !strings.HasPrefix(text, short) {
		t.Errorf("--version printed %q, version %q", short, text)
	}
}

// TestVersionNamesTheVLLMThatIsTested holds the constant against what the end-to-end tests install.
func TestVersionNamesTheVLLMThatIsTested(t *testing.T) {
	lock, err := os.ReadFile("../../internal/e2e/requirements.lock")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^vllm[_-]cpu==(\S+)`).FindSubmatch(lock)
	if len(found) != 2 || string(found[1]) != vllmTested {
		t.Errorf("the lock has %q; version says %s", found, vllmTested)
	}
}

// TestHelpOfEveryCommand: every command says in one line what it does.
func TestHelpOfEveryCommand(t *testing.T) {
	commands := []string{}
	queue := newRoot().Commands()
	for len(queue) > 0 {
		c := queue[0]
		queue = append(queue[1:], c.Commands()...)
		commands = append(commands, c.CommandPath())
		if c.Short == "" {
			t.Errorf("%s has no help", c.CommandPath())
		}
	}
	for _, want := range []string{"pdrouter serve", "pdrouter validate", "pdrouter mock-engine", "pdrouter admin engines drain", "pdrouter keys rotate"} {
		if !slices.Contains(commands, want) {
			t.Errorf("no command %q in %v", want, commands)
		}
	}
}
