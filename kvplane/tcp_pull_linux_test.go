package kvplane

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
			p := thisProcess()
			st, err := readStat(strconv.Itoa(cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			p.PID, p.Started = st.pid, st.started+1
			if _, err := holdProcess(p); !errors.Is(err, errAnotherProcess) {
				t.Errorf("held though it began at another time: %v", err)
			}
			p.Started--
			h, err := holdProcess(p)
			if err != nil {
				t.Fatal(err)
			}
			if !handle {
				h.close()
			}
			defer h.close()
			if err := h.alive(); err != nil {
				t.Errorf("it lives: %v", err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // killed
			ended = true
			if err := h.alive(); err == nil {
				t.Error("it has ended, and counts as alive")
			}
		})
	}
}
