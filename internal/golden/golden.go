// Package golden compares what a test made with a file of the repository: a page of docs/ that is written from a table, or the expected
// output beside the test. A test binary that links it has the flag -update, which writes the files anew.
package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that the tests compare with")

// Recorded are the contents of the files that match the pattern, by their names without what stands behind the last dot. There is one at least.
func Recorded(t testing.TB, pattern string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("nothing recorded in %s: %v", pattern, err)
	}
	out := map[string][]byte{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))] = b
	}
	return out
}

// Updating reports whether the test runs with -update.
func Updating() bool { return *update }

// Equal fails t unless the file at path holds got. With -update it writes the file instead.
func Equal(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not what the test made; -update writes it (-file +test):\n%s", path, diff)
	}
}

// Scripts runs the scripts in the file at path against a state machine, and compares what was written behind them with what it did. Scripts are
// separated by an empty line; each is lines of words, of which those whose first word is # are comments, and then ---- and one line for each step.
// begin makes the state machine of one script. It returns a function that does what a line says and describes that; "" if nothing is to be written.
func Scripts(t *testing.T, path string, begin func() (step func(words []string) string)) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for i, script := range strings.Split(strings.TrimRight(string(raw), "\n"), "\n\n") {
		input, _, _ := strings.Cut(script, "\n----")
		if i > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "%s\n----\n", input)
		step := begin()
		for _, line := range strings.Split(input, "\n") {
			words := strings.Fields(line)
			if len(words) == 0 || words[0] == "#" {
				continue
			}
			if did := step(words); did != "" {
				fmt.Fprintf(&out, "%s:%s\n", line, did)
			}
		}
	}
	Equal(t, path, out.String())
}
