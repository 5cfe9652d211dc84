package benchtest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pdrouter/bench/fake"
)

// Listen starts one of the package's servers and returns its address.
func Listen(t *testing.T, serve func(ctx context.Context, out io.Writer) error) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, w) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line := make([]byte, 64)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(line[:n]))
}

// Behind starts two fakes of a mode and the baseline proxy in front of them.
func Behind(t *testing.T, mode string) (baseline string, fakes [2]string) {
	t.Helper()
	for i, role := range []string{"prefill", "decode"} {
		fakes[i] = Listen(t, func(ctx context.Context, out io.Writer) error { return fake.Serve(ctx, mode, role, out) })
	}
	baseline = Listen(t, func(ctx context.Context, out io.Writer) error {
		return fake.ServeBaseline(ctx, mode, fakes[0], fakes[1], out)
	})
	return baseline, fakes
}

func NewPipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Begun waits until a group has begun, and returns what waits until all of it are gone: then the pipe ends.
func Begun(t *testing.T, pipe string) (gone func()) {
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

// Counted asks a fake what it was asked.
func Counted(t *testing.T, address string) (c fake.Counts) {
	t.Helper()
	answer, err := http.Get("http://" + address + fake.CountsPath)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}
