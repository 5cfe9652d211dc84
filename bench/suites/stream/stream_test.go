package stream

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestRSS(t *testing.T) {
	proc := t.TempDir()
	write := func(text string) {
		if err := errors.Join(os.MkdirAll(filepath.Join(proc, "7"), 0o755), os.WriteFile(filepath.Join(proc, "7", "status"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("Name:\tpdrouter\nVmRSS:\t   43436 kB\nRssAnon:\t    5284 kB\nRssFile:\t   38152 kB\n")
	if got, err := rssOf(proc, 7); err != nil || got != 5284<<10 {
		t.Errorf("got %d, %v; want 5284 KiB", got, err)
	}
	for _, text := range []string{"", "VmRSS:\t 43436 kB\n", "RssAnon:\t many kB\n"} {
		write(text)
		if got, err := rssOf(proc, 7); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	if got, err := rssOf(proc, 8); err == nil {
		t.Errorf("a process that is not there has %d", got)
	}
}
