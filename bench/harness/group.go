package harness

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"syscall"
	"time"
)

// Healthy waits until the engine answers GET /health, which it is asked every so often.
func (c *Child) Healthy(ctx context.Context, within, every time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if err := c.Alive(); err != nil {
			return err
		}
		if status, _, err := Get(ctx, "http://"+c.Address+"/health"); err == nil && status == http.StatusOK {
			return nil
		}
		if err := Pause(ctx, every); err != nil {
			return fmt.Errorf("bench: %s is not healthy: %w: %s", c.Name, err, c.Said)
		}
	}
}

// SpawnGroup starts a process that starts others, in a group of its own that ends with ctx and with this process.
func SpawnGroup(ctx context.Context, name string, argv ...string) (*Child, error) {
	c := &Child{Name: name, Said: &LastBytes{Keep: 4096}}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", guarded, "sh"}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Stdout, cmd.Stderr = c.Said, c.Said
	cmd.WaitDelay = 10 * time.Second           // processes that it started may hold its output open
	if _, err := cmd.StdinPipe(); err != nil { // closed when it ends, so that no process of the group outlives it
		return nil, fmt.Errorf("bench: %s: %w", name, err)
	}
	return c, c.begin(cmd)
}

// EndGroup asks all processes of a group to end, and kills those that have not after 15 s.
func (c *Child) EndGroup() {
	group := -c.Process.PID()
	_ = syscall.Kill(group, syscall.SIGTERM)
	select {
	case <-c.Process.Done:
	case <-time.After(15 * time.Second):
	}
	_ = syscall.Kill(group, syscall.SIGKILL)
	<-c.Process.Done
}

// guarded runs a command in the shell's process group, which is killed when the other end of the shell's standard input is closed:
// by whoever started it, or by the kernel when that one has died, however it did.
const guarded = `trap : TERM; exec 3<&0 </dev/null; (read -r _ <&3; kill -9 0) & exec 3<&-; "$@"`
