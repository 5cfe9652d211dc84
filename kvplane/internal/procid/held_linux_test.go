package procid

import (
	"errors"
	"os/exec"
	"strconv"
	"testing"
)

// TestHeldProcess: a number counts only while it is the process's, with the kernel's handle and without it.
func TestHeldProcess(t *testing.T) {
	for name, handle := range map[string]bool{"handle": true, "number": false} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sleep", "60")
			if err := cmd.Start(); err != nil {
				t.Skip("SKIPPED:", err)
			}
			ended := false
			defer func() {
				if !ended {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				}
			}()
			p := Self()
			st, err := readStat(strconv.Itoa(cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			p.PID, p.Started = st.pid, st.started+1
			if _, err := Hold(p); !errors.Is(err, errAnother) {
				t.Errorf("held though it began at another time: %v", err)
			}
			p.Started--
			h, err := Hold(p)
			if err != nil {
				t.Fatal(err)
			}
			if !handle {
				h.Close()
			}
			defer h.Close()
			if err := h.Alive(); err != nil {
				t.Errorf("it lives: %v", err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // killed
			ended = true
			if err := h.Alive(); err == nil {
				t.Error("it has ended, and counts as alive")
			}
		})
	}
}
