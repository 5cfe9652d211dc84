package report

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

func TestRevision(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for want, settings := range map[string][]debug.BuildSetting{
		"":                   {{Key: "vcs.modified", Value: "true"}},
		"0123456789ab":       {{Key: "vcs.revision", Value: commit}, {Key: "vcs.modified", Value: "false"}},
		"0123456789ab+dirty": {{Key: "vcs.revision", Value: commit}, {Key: "vcs.modified", Value: "true"}},
		"0123":               {{Key: "vcs.revision", Value: "0123"}},
	} {
		if got := revision(settings); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestCheckedOut asks in a repository of the test's own, and where there is none.
func TestCheckedOut(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(dir))
	if got := checkedOut(); got != "unknown" {
		t.Errorf("without sources: %q", got)
	}
	write := func(text string) {
		if err := os.WriteFile("go.mod", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("module pdrouter\n")
	if got := checkedOut(); got != "unknown" {
		t.Errorf("without a repository: %q", got)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "x"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Skipf("git %s: %v: %s", args[0], err, out)
		}
	}
	got := checkedOut()
	if commit, _, _ := strings.Cut(got, " "); len(commit) != 12 {
		t.Errorf("got %q, want a commit", got)
	}
	write("module pdrouter\n\ngo 1.26\n")
	if dirty := checkedOut(); !strings.Contains(dirty, "+dirty") {
		t.Errorf("changed: %q", dirty)
	}
	write("module other\n")
	if got := checkedOut(); got != "unknown" {
		t.Errorf("where other sources are: %q", got)
	}
}
