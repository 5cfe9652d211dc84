package harness

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

	"pdrouter/internal/proc"
)

// Child is one process of a run.
type Child struct {
	Name       string
	Process    *proc.Process // nil: the run did not start it, and knows its address only
	Address    string        // of the listener it told of, if it was asked to, or that it was told to have
	Operations string        // the gateway's other listener
	Entry      string        // of an engine: what the gateway is told of it besides name and URL
	Files      []string      // removed when it is stopped
	abrupt     bool          // killed without being asked to end: some take seconds for that
	Said       *LastBytes
}

// Spawn starts argv on the given CPUs ("" leaves the choice to the kernel) and, when tells is set, reads the address
// it listens on from its first line. The last words of its standard error are kept, unless quiet throws them away. The
// process is asked to end with ctx.
func Spawn(ctx context.Context, name, cpus string, tells, quiet bool, argv ...string) (*Child, error) {
	if cpus != "" {
		argv = append([]string{"taskset", "-c", cpus}, argv...)
	}
	c := &Child{Name: name, Said: &LastBytes{Keep: 4096}}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if !quiet {
		cmd.Stderr = c.Said
	}
	var out *os.File
	if tells {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		cmd.Stdout, out = w, r
	}
	err := c.begin(cmd)
	if w, ok := cmd.Stdout.(*os.File); ok {
		w.Close() // the child has its own
	}
	if err != nil {
		return nil, err
	}
	if tells {
		_ = out.SetReadDeadline(time.Now().Add(20 * time.Second)) // a pipe takes deadlines
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			c.Stop()
			return nil, fmt.Errorf("bench: %s did not tell its address: %w: %s", name, err, c.Said)
		}
		c.Address = strings.TrimSpace(line)
	}
	return c, nil
}

// begin starts the process.
func (c *Child) begin(cmd *exec.Cmd) (err error) {
	if c.Process, err = proc.Begin(c.Name, cmd); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// Stop ends the process, waits for it and removes its files.
func (c *Child) Stop() {
	defer func() {
		for _, f := range c.Files {
			_ = os.RemoveAll(f) // temporary files: an error changes nothing
		}
	}()
	if c.abrupt {
		_ = c.Process.Cmd.Process.Kill()
	}
	_ = c.Process.Stop(10 * time.Second) // a process that has failed before is noticed by its requests
}

// Alive returns an error with the process's last words if it has ended.
func (c *Child) Alive() error {
	if c.Process == nil {
		return nil
	}
	if ended, _ := c.Process.Ended(); ended {
		return fmt.Errorf("bench: %s has ended: %s", c.Name, c.Said)
	}
	return nil
}

// CPU is the CPU time the process has used.
func (c *Child) CPU() (time.Duration, error) { return CPUOf("/proc", c.Process.PID()) }

// PinSelf moves every thread of this process to the given CPUs.
func PinSelf(ctx context.Context, cpus string) error {
	out, err := exec.CommandContext(ctx, "taskset", "-a", "-c", "-p", cpus, fmt.Sprint(os.Getpid())).CombinedOutput()
	if err != nil {
		return fmt.Errorf("bench: taskset: %w: %s", err, out)
	}
	return nil
}

// CanPin reports whether taskset is installed.
func CanPin() bool {
	_, err := exec.LookPath("taskset")
	return !errors.Is(err, exec.ErrNotFound)
}

// LastBytes keeps the end of what was written to it. It is safe for concurrent use.
type LastBytes struct {
	Keep int

	mu  sync.Mutex
	end []byte
}

func (l *LastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, p...)
	if len(l.end) > l.Keep {
		l.end = bytes.Clone(l.end[len(l.end)-l.Keep:])
	}
	return len(p), nil
}

func (l *LastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.end)
}
