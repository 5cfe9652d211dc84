package agent

import (
	"encoding/json"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// sleeperVariable makes the test binary a process that only says who it is.
const sleeperVariable = "PDROUTER_TEST_SLEEPER"

// TestSleepingProcess is the process that the test below kills; on its own it does nothing.
func TestSleepingProcess(t *testing.T) {
	if os.Getenv(sleeperVariable) == "" {
		t.Skip("only as the peer process of another test")
	}
	if err := json.NewEncoder(os.NewFile(3, "reports")).Encode(transporttest.Report{Kind: "ready", Record: metadata.Record{Process: procid.Self()}}); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
}

func TestDead(t *testing.T) {
	self := procid.Self()
	if self.IsZero() {
		t.Skip("this machine does not say which process is which")
	}
	w := &owner{self: metadata.Record{Process: self}, host: host{exited: procid.Exited}}
	proven := func(p metadata.Process) bool { return w.dead([]metadata.Record{{Process: p}}) }
	signal := func(p *transporttest.Process, s unix.Signal) {
		t.Helper()
		if err := unix.Kill(p.Cmd.Process.Pid, s); err != nil {
			t.Fatal(err)
		}
	}
	child := transporttest.StartProcess(t, "TestSleepingProcess", sleeperVariable+"=1")
	it := child.Record.Process
	if it.PID != child.Cmd.Process.Pid || it.Boot != self.Boot || it.Namespaces != self.Namespaces {
		t.Fatalf("the process says that it is %+v; this one is %+v", it, self)
	}
	later, elsewhere, inside, unknown := it, it, it, it
	later.Started++
	elsewhere.Boot = "7cdcf7bb-0000-0000-0000-2011b9e5aa6b"
	inside.Namespaces = "pid:[1] time:[2]"
	unknown.Started = 0
	judge := func(when string, want bool) {
		t.Helper()
		for name, p := range map[string]metadata.Process{"of another boot": elsewhere, "of other namespaces": inside, "without a start": unknown, "unknown": {}} {
			if proven(p) {
				t.Errorf("%s: a process %s is proven dead", when, name)
			}
		}
		if got := proven(it); got != want {
			t.Errorf("%s: proven dead is %v; want %v", when, got, want)
		}
		if !proven(later) {
			t.Errorf("%s: its number belongs to another process or to none; it is not proven dead", when)
		}
		if (&owner{host: w.host}).dead([]metadata.Record{{Process: it}}) || w.dead(nil) {
			t.Errorf("%s: proven dead by nobody, or nobody proven dead", when)
		}
		if w.dead([]metadata.Record{{Process: later}, {Process: self}}) {
			t.Errorf("%s: an engine is proven dead though a rank lives", when)
		}
	}
	judge("alive", false)
	signal(child, unix.SIGSTOP)
	judge("stopped", false)
	// Killed, and nobody has asked for its end yet: a zombie.
	signal(child, unix.SIGKILL)
	if err := unix.Waitid(unix.P_PID, child.Cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	judge("zombie", true)
	child.Kill()
	judge("reaped", true)
}
