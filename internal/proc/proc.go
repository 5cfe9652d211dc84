// Package proc has processes that this one starts, reaps and stops: this binary again, which ends with this process, or any command.
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

// Process is a process that was started here.
type Process struct {
	Name string
	Cmd  *exec.Cmd
	Log  string        // the file of its output, of a process of Start
	Done chan struct{} // closed when it has been reaped
	Err  error         // how it ended; valid after Done
}

// Begin starts a command, and reaps it when it ends.
func Begin(name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, Cmd: cmd, Done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.Err = cmd.Wait()
		close(p.Done)
	}()
	return p, nil
}

// Start runs this same binary with args. The child dies with this process, also when it is killed.
func Start(dir, name string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name+".log")
	log, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	p, err := Begin(name, cmd)
	if err != nil {
		return nil, err
	}
	p.Log = path
	return p, nil
}

// PID is the number of the process.
func (p *Process) PID() int { return p.Cmd.Process.Pid }

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
