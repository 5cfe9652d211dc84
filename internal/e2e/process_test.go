package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/demo"
)

// process is one program under test, with the processes it starts, in a process group of its own.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string        // the file its output goes to
	ended chan struct{} // closed when it has ended, after err was set
	err   error
}

// start runs argv with env added to the environment. When the test ends the process group is killed, and the last
// lines of its output are shown if the test failed.
func start(t *testing.T, name string, env []string, argv ...string) *process {
	t.Helper()
	p := &process{name: name, log: filepath.Join(t.TempDir(), name+".log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		out.Close()
		close(p.ended)
	}()
	t.Cleanup(func() {
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
		if t.Failed() {
			t.Logf("%s said last:\n%s", p.name, p.tail(30))
		}
	})
	return p
}

// tail returns the last n lines of the process's output.
func (p *process) tail(n int) string {
	said, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(said), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// ready waits until url answers 200, or fails the test when the process ends first or the time is over.
func (p *process) ready(t *testing.T, url string, within time.Duration) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), within)
	defer stop()
	for {
		if _, err := read(ctx, url); err == nil {
			return
		} else if ctx.Err() != nil {
			t.Fatalf("%s: %s is not ready after %s: %v", p.name, url, within, err)
		}
		select {
		case <-p.ended:
			t.Fatalf("%s: ended before it was ready: %v", p.name, p.err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// stop asks the process to end and waits for it. It returns how the process ended: nil is exit status 0.
func (p *process) stop(t *testing.T, within time.Duration) error {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("%s: %v", p.name, err)
	}
	select {
	case <-p.ended:
		return p.err
	case <-time.After(within):
		return fmt.Errorf("e2e: %s: still running %s after SIGTERM", p.name, within)
	}
}

// read fetches url; an answer other than 200 is an error.
func read(ctx context.Context, url string) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("e2e: %s: status %d", url, a.StatusCode)
	}
	return body, err
}

// freeAddresses returns n loopback addresses nobody listens on, all different ones at each call. No outgoing connection takes them: an engine listens
// only after seconds.
func freeAddresses(t *testing.T, n int) (addresses []string) {
	t.Helper()
	for len(addresses) < n {
		free, err := demo.FreeAddresses(1)
		if err != nil {
			t.Fatal(err)
		}
		if _, given := givenAddresses.LoadOrStore(free[0], true); !given {
			addresses = append(addresses, free[0])
		}
	}
	return addresses
}

// givenAddresses are those that engines of this run have, or are to have once they listen.
var givenAddresses sync.Map

// root returns the repository's root folder.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// build compiles the binary under test and returns its path.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pdrouter")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/pdrouter")
	cmd.Dir = root(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// runs executes argv with its output in the test's log, and fails the test when it fails.
func runs(t *testing.T, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v", strings.Join(argv, " "), err)
	}
}
