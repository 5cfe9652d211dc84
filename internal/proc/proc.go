// Package proc runs this binary again as a process of its own, which ends with this one.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is another pdrouter process, started by this one, its output in a file of its own.
type Process struct {
	Name string
	Cmd  *exec.Cmd
	Log  string
	Done chan struct{} // closed when it has been reaped
	Err  error         // how it ended; valid after done
}

// Start runs this same binary with args. The child dies with this process, also when it is killed.
func Start(dir, name string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{Name: name, Log: filepath.Join(dir, name+".log"), Done: make(chan struct{})}
	log, err := os.Create(p.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.Cmd = exec.Command(self, args...)
	p.Cmd.Stdout, p.Cmd.Stderr = log, log
	p.Cmd.SysProcAttr = dieWithParent()
	if err := p.Cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.Err = p.Cmd.Wait()
		close(p.Done)
	}()
	return p, nil
}

// Ended reports that the process has ended, and how.
func (p *Process) Ended() (bool, error) {
	select {
	case <-p.Done:
		return true, p.Err
	default:
		return false, nil
	}
}

// Stop asks the process to end, waits at most patience, and kills it then. Only an end of its own with status 0 is
// no error.
func (p *Process) Stop(patience time.Duration) error {
	if ended, err := p.Ended(); ended {
		if err != nil {
			return fmt.Errorf("%s ended by itself: %w", p.Name, err)
		}
		return nil
	}
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	select {
	case <-p.Done:
	case <-time.After(patience):
		_ = p.Cmd.Process.Kill()
		<-p.Done
		return fmt.Errorf("%s did not stop within %s of SIGTERM and was killed", p.Name, patience)
	}
	if p.Err != nil {
		return fmt.Errorf("%s: %w", p.Name, p.Err)
	}
	return nil
}

// Tail returns the last lines of what the process printed.
func (p *Process) Tail(lines int) string {
	raw, err := os.ReadFile(p.Log)
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
