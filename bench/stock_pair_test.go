package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestThrough reads whole answers, and voids those that are cut, wrong or of another length.
func TestThrough(t *testing.T) {
	const words = `data: {"choices":[{"text":"one "}]}` + "\n\n" + `data: {"choices":[{"text":"two"}]}` + "\n\n"
	usage := func(n int) string {
		return fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"completion_tokens\":%d}}\n\n", n)
	}
	for name, x := range map[string]struct{ said, want string }{
		"whole":        {words + usage(stockTokens) + "data: [DONE]\n\n", "one two"},
		"cut":          {words + usage(stockTokens), ""},
		"too short":    {words + usage(stockTokens-1) + "data: [DONE]\n\n", ""},
		"error":        {words + `data: {"error":{"message":"gone"}}` + "\n\n" + usage(stockTokens) + "data: [DONE]\n\n", ""},
		"not an event": {"data: {\n\n" + usage(stockTokens) + "data: [DONE]\n\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, x.said) }))
			defer server.Close()
			got, err := (&stockPair{}).through(t.Context(), strings.TrimPrefix(server.URL, "http://"), "say it", nil)
			if x.want == "" {
				if !errors.Is(err, errVoid) {
					t.Errorf("%+v, %v; want that it is void", got, err)
				}
			} else if err != nil || got.text != x.want || got.first.IsZero() {
				t.Errorf("%+v, %v; want %q", got, err, x.want)
			}
		})
	}
}

// TestGroupEndsWithItsStarter has a process start a group and kills that process: nobody of the group outlives it.
func TestGroupEndsWithItsStarter(t *testing.T) {
	const told = "PDROUTER_TEST_GROUP"
	if pipe := os.Getenv(told); pipe != "" {
		c, err := spawnGroup(t.Context(), "a group", "sh", "-c", holding, pipe)
		if err != nil {
			t.Fatal(err)
		}
		<-c.ended
		return
	}
	pipe := newPipe(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	starter := exec.CommandContext(t.Context(), self, "-test.run=^TestGroupEndsWithItsStarter$")
	starter.Env = append(os.Environ(), told+"="+pipe)
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	gone := begun(t, pipe)
	_ = starter.Process.Kill()
	_ = starter.Wait() // it was killed
	gone()
}

// TestEndGroup ends a group: nobody of it is left.
func TestEndGroup(t *testing.T) {
	pipe := newPipe(t)
	c, err := spawnGroup(t.Context(), "a group", "sh", "-c", holding, pipe)
	if err != nil {
		t.Fatal(err)
	}
	gone := begun(t, pipe)
	c.endGroup()
	gone()
}

// holding is what a group runs: all of it hold one end of a pipe.
const holding = `exec 9>"$0"; echo begun >&9; sleep 600 & sleep 600`

func newPipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// begun waits until a group has begun, and returns what waits until all of it are gone: then the pipe ends.
func begun(t *testing.T, pipe string) (gone func()) {
	t.Helper()
	in, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	lines := bufio.NewReader(in)
	if line, err := lines.ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("the group says %q, %v", line, err)
	}
	return func() {
		t.Helper()
		if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
			t.Errorf("the group says %q, %v; want that it ends", rest, err)
		}
	}
}
