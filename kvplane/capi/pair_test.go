package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// compile builds a C program of testdata against the library.
func compile(t *testing.T, name string) string {
	t.Helper()
	lib := pdkvtest.Library(t)
	out := filepath.Join(t.TempDir(), name)
	cmd := exec.Command(pdkvtest.CC(t), "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I.", "-o", out, filepath.Join("testdata", name+".c"), lib, "-Wl,-rpath,"+filepath.Dir(lib))
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, b)
	}
	return out
}

// run runs a program; one that hangs ends, with what its goroutines did.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "GOTRACEBACK=all")
	cmd.WaitDelay = time.Second
	limit := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(name), err, b)
	}
	return string(b)
}

// legs are the arguments that describe two transfers between two runs of the engines.
func legs(t *testing.T, g *pdkvtest.Gateway) []string {
	t.Helper()
	p := metadata.Incarnation{Engine: "prefill-0", Generation: uint64(time.Now().UnixNano())}
	d := metadata.Incarnation{Engine: "decode-0", Generation: uint64(time.Now().UnixNano())}
	args := []string{strconv.FormatUint(p.Generation, 10), strconv.FormatUint(d.Generation, 10)}
	for range 2 {
		id := kvplane.NewTransferID()
		both := g.Ticket(t, id, p, d)
		args = append(args, id.String(), both, both)
	}
	return args
}

// TestPair: a C program hands KV over between two engines of its own, cancels, forks, keeps its signals and closes, twice.
func TestPair(t *testing.T) {
	program := compile(t, "pair")
	for _, transport := range []string{"tcp", "nixl"} {
		t.Run(transport, func(t *testing.T) {
			if _, err := nixl.Find(); err != nil && transport == "nixl" {
				t.Skip(err)
			}
			g := pdkvtest.NewGateway(t)
			args := append([]string{g.URL, g.Token(t, "prefill-0", metadata.Prefill), g.Token(t, "decode-0", metadata.Decode), transport, g.Keys}, append(legs(t, g), legs(t, g)...)...)
			if got := run(t, program, args...); got != "ok\n" {
				t.Errorf("got %q", got)
			}
		})
	}
}
