package harness

import (
	"os"
	"os/exec"
	"testing"

	"pdrouter/bench/internal/benchtest"
)

// TestGroupEndsWithItsStarter has a process start a group and kills that process: nobody of the group outlives it.
func TestGroupEndsWithItsStarter(t *testing.T) {
	const told = "PDROUTER_TEST_GROUP"
	if pipe := os.Getenv(told); pipe != "" {
		c, err := SpawnGroup(t.Context(), "a group", "sh", "-c", holding, pipe)
		if err != nil {
			t.Fatal(err)
		}
		<-c.Process.Done
		return
	}
	pipe := benchtest.NewPipe(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	starter := exec.CommandContext(t.Context(), self, "-test.run=^TestGroupEndsWithItsStarter$")
	starter.Env = append(os.Environ(), told+"="+pipe)
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	gone := benchtest.Begun(t, pipe)
	_ = starter.Process.Kill()
	_ = starter.Wait() // it was killed
	gone()
}

// TestEndGroup ends a group: nobody of it is left.
func TestEndGroup(t *testing.T) {
	pipe := benchtest.NewPipe(t)
	c, err := SpawnGroup(t.Context(), "a group", "sh", "-c", holding, pipe)
	if err != nil {
		t.Fatal(err)
	}
	gone := benchtest.Begun(t, pipe)
	c.EndGroup()
	gone()
}

// holding is what a group runs: all of it hold one end of a pipe.
const holding = `exec 9>"$0"; echo begun >&9; sleep 600 & sleep 600`
