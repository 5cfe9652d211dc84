// Package golden compares what a test made with a file of the repository: a page of docs/ that is written from a table, or the expected
// output beside the test. A test binary that links it has the flag -update, which writes the files anew.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that the tests compare with")

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
