package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is one process of a run.
type child struct {
	name       string
	cmd        *exec.Cmd
	address    string   // of the listener it told of, if it was asked to, or that it was told to have
	operations string   // the gateway's other listener
	entry      string   // of an engine: what the gateway is told of it besides name and URL
	files      []string // that are removed behind it
	abrupt     bool     // killed without being asked to end: some take seconds for that
	said       *lastBytes
	ended      chan struct{}
}

// spawn starts argv on the given CPUs ("" leaves the choice to the kernel) and, when tells is set, reads the address
// it listens on from its first line. The last words of its standard error are kept, unless quiet throws them away. The
// process is asked to end with ctx.
func spawn(ctx context.Context, name, cpus string, tells, quiet bool, argv ...string) (*child, error) {
	if cpus != "" {
		argv = append([]string{"taskset", "-c", cpus}, argv...)
	}
	c := &child{name: name, said: &lastBytes{keep: 4096}, ended: make(chan struct{})}
	c.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = 10 * time.Second
	if !quiet {
		c.cmd.Stderr = c.said
	}
	var out *os.File
	if tells {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		c.cmd.Stdout, out = w, r
	}
	err := c.begin()
	if w, ok := c.cmd.Stdout.(*os.File); ok {
		w.Close() // the child has its own
	}
	if err != nil {
		return nil, err
	}
	if tells {
		_ = out.SetReadDeadline(time.Now().Add(20 * time.Second)) // a pipe takes deadlines
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			c.stop()
			return nil, fmt.Errorf("bench: %s did not tell its address: %w: %s", name, err, c.said)
		}
		c.address = strings.TrimSpace(line)
	}
	return c, nil
}

// begin starts the process and has somebody wait for its end.
func (c *child) begin() error {
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("bench: %s: %w", c.name, err)
	}
	go func() {
		_ = c.cmd.Wait() // how it ended matters only while it is needed, and then its requests tell
		close(c.ended)
	}()
	return nil
}

// stop ends the process, waits for it and removes its files.
func (c *child) stop() {
	defer func() {
		for _, f := range c.files {
			_ = os.RemoveAll(f) // in the temporary folder: nobody misses it
		}
	}()
	if c.abrupt {
		_ = c.cmd.Process.Kill()
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}

// alive returns an error with the process's last words if it has ended.
func (c *child) alive() error {
	select {
	case <-c.ended:
		return fmt.Errorf("bench: %s has ended: %s", c.name, c.said)
	default:
		return nil
	}
}

// cpu is the CPU time the process has used.
func (c *child) cpu() (time.Duration, error) { return cpuOf("/proc", c.cmd.Process.Pid) }

// pinSelf moves every thread of this process to the given CPUs.
func pinSelf(ctx context.Context, cpus string) error {
	out, err := exec.CommandContext(ctx, "taskset", "-a", "-c", "-p", cpus, fmt.Sprint(os.Getpid())).CombinedOutput()
	if err != nil {
		return fmt.Errorf("bench: taskset: %w: %s", err, out)
	}
	return nil
}

// canPin reports whether taskset is installed.
func canPin() bool {
	_, err := exec.LookPath("taskset")
	return !errors.Is(err, exec.ErrNotFound)
}

// lastBytes keeps the end of what was written to it. It is safe for concurrent use.
type lastBytes struct {
	keep int

	mu  sync.Mutex
	end []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, p...)
	if len(l.end) > l.keep {
		l.end = bytes.Clone(l.end[len(l.end)-l.keep:])
	}
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.end)
}
