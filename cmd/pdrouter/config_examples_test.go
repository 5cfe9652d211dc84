package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/configfile"
)

// TestExampleFiles: the comment at the top of each example has the commands that make the files which it names. With them the example
// is sound, but for what its platform mounts at absolute paths.
func TestExampleFiles(t *testing.T) {
	examples, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, path := range examples {
		name := filepath.Base(path)
		if name == "policy.yaml" {
			continue // a part of vllm-pull.yaml
		}
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.CopyFS(filepath.Join(root, "configs"), os.DirFS("../../configs")); err != nil {
				t.Fatal(err)
			}
			if script := setUp(t, path); script != "" {
				runSetUp(t, root, self, script)
				ran++
			}
			_, err := configfile.Validate(filepath.Join(root, "configs", name), false)
			for one := range strings.Lines(errorText(err)) {
				if !strings.Contains(one, " /var/run/secrets/") {
					t.Error(one)
				}
			}
		})
	}
	if ran < 5 {
		t.Errorf("%d examples have commands; want at least 5", ran)
	}
}

// setUp returns the commands of the comment at the top of an example: the indented lines from the one with umask to the next that is not
// indented.
func setUp(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var script []string
	for line := range strings.Lines(string(b)) {
		command, indented := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "#   ")
		command = strings.TrimSpace(command)
		switch {
		case len(script) == 0 && command == "umask 077", len(script) > 0 && indented:
			script = append(script, command)
		case len(script) > 0:
			return strings.Join(script, "\n")
		}
		if !strings.HasPrefix(line, "#") {
			break
		}
	}
	return strings.Join(script, "\n")
}

// runSetUp runs the commands of an example in a folder, with a pdrouter and with what the comment says comes from elsewhere.
func runSetUp(t *testing.T, root, self, script string) {
	t.Helper()
	if strings.Contains(script, "openssl ") {
		if _, err := exec.LookPath("openssl"); err != nil {
			t.Skip("no openssl on this machine")
		}
	}
	bin, ca := t.TempDir(), filepath.Join(t.TempDir(), "ca.pem")
	if err := os.Symlink(self, filepath.Join(bin, "pdrouter")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca, []byte("of your Redis\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := exec.Command("sh", "-eu", "-c", script)
	sh.Dir = root
	sh.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "REDIS_PASSWORD=secret", "REDIS_CA="+ca)
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\nof\n%s", err, out, script)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
