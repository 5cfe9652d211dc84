package lint

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestNoConflictMarkers: no file that git tracks has a marker that a merge left.
func TestNoConflictMarkers(t *testing.T) {
	marker := regexp.MustCompile(`(?m)^(<{7}|>{7}) .*$`)
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("not a checkout of git: ", err)
	}
	for name := range bytes.SplitSeq(bytes.TrimRight(out, "\x00"), []byte{0}) {
		text, err := os.ReadFile(filepath.Join("../..", string(name)))
		if err != nil {
			continue // removed, or a link
		}
		if m := marker.Find(text); m != nil {
			t.Errorf("%s: %s", name, m)
		}
	}
}
