package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSchedstat(t *testing.T) {
	for line, want := range map[string]time.Duration{
		"1234567 89 10\n":    1234567,
		"0 0 0":              0,
		"99999999999999 1 1": 99999999999999,
	} {
		if got, err := ParseSchedstat(line); got != want || err != nil {
			t.Errorf("%q: got %d, %v; want %d", line, got, err, want)
		}
	}
	for _, line := range []string{"", "1 2", "1 2 3 4", "x 2 3", "-5 2 3", "1.5 2 3"} {
		if got, err := ParseSchedstat(line); err == nil {
			t.Errorf("%q: got %d; want an error", line, got)
		}
	}
}

// TestCPUOfSumsThreads reads a made-up /proc: the main thread's file alone would miss what the others used.
func TestCPUOfSumsThreads(t *testing.T) {
	proc := t.TempDir()
	for thread, line := range map[string]string{"7": "100 1 1\n", "8": "2000 1 1\n", "9": "30000 1 1\n"} {
		dir := filepath.Join(proc, "7", "task", thread)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "schedstat"), []byte(line), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := CPUOf(proc, 7); got != 32100 || err != nil {
		t.Errorf("got %d, %v; want 32100", got, err)
	}
	if got, err := CPUOf(proc, 8); err == nil {
		t.Errorf("a process that is gone: got %d; want an error", got)
	}
}

// TestCPUOfItself sees this very process use CPU.
func TestCPUOfItself(t *testing.T) {
	before, err := CPUOf("/proc", os.Getpid())
	if err != nil {
		t.Skip("this kernel has no schedstat: ", err)
	}
	for x := 0; ; x++ {
		if after, err := CPUOf("/proc", os.Getpid()); err != nil {
			t.Fatal(err)
		} else if after > before {
			return
		} else if x > 1_000_000 {
			t.Fatal("a million readings used no CPU")
		}
	}
}

// TestFamilyCPU sums over children of children, whose commands may hold anything.
func TestFamilyCPU(t *testing.T) {
	proc := t.TempDir()
	for pid, head := range map[string]string{"7": "7 (bench) S 1", "8": "8 (a) b) R 7", "9": "9 (c) S 8", "10": "10 (stranger) S 1"} {
		if err := os.Mkdir(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		stat := head + " 7 7 0 -1 4194304 100 0 0 0 " + pid + " 1 99 99 20 0 1 0 5 6 7\n"
		if err := os.WriteFile(filepath.Join(proc, pid, "stat"), []byte(stat), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := familyCPU(proc, 7); got != (7+8+9+3)*jiffy || err != nil {
		t.Errorf("got %v, %v; want 270ms", got, err)
	}
	if _, err := familyCPU(proc, 11); err == nil {
		t.Error("a process that is not there has used nothing")
	}
}

// TestChildThatHasEnded: its CPU time is the bench's, though it is there at neither reading.
func TestChildThatHasEnded(t *testing.T) {
	others, err := cpuUsed(syscall.RUSAGE_CHILDREN) // of other tests
	if err != nil {
		t.Fatal(err)
	}
	before, err := watch()
	if err != nil {
		t.Skip("this kernel does not tell: ", err)
	}
	if err := exec.Command("sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").Run(); err != nil {
		t.Fatal(err)
	}
	after, err := watch()
	if err != nil {
		t.Fatal(err)
	}
	ended, err := cpuUsed(syscall.RUSAGE_CHILDREN)
	if used := ended - others; err != nil || after.own-before.own < used-2*jiffy || used == 0 {
		t.Errorf("own time grew by %v, of which a child that has ended used %v (%v)", after.own-before.own, used, err)
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("cpu  100 20 30 4000 500 6 7 8 90 1\ncpu0 1 2 3\n")
	if err != nil {
		t.Fatal(err)
	}
	want := jiffies{busy: 163 * jiffy, steal: 8 * jiffy} // idle and iowait are not busy; guest is in user
	if d := cmp.Diff(want, got, cmp.AllowUnexported(jiffies{})); d != "" {
		t.Error(d)
	}
	for _, text := range []string{"", "cpu 1 2 3\n", "intr 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"} {
		if got, err := parseStat(text); err == nil {
			t.Errorf("%q: got %v; want an error", text, got)
		}
	}
}

func TestDisturbed(t *testing.T) {
	before := jiffies{busy: 10 * time.Second, steal: time.Second}
	after := jiffies{busy: 13 * time.Second, steal: time.Second + 100*time.Millisecond}
	got := disturbed(before, after, 2500*time.Millisecond, 2*time.Second)
	if d := cmp.Diff(Disturbance{others: 0.25, steal: 0.05}, got, cmp.AllowUnexported(Disturbance{})); d != "" {
		t.Error(d)
	}
	if got := disturbed(before, before, time.Second, time.Second); got.others != 0 {
		t.Errorf("own time beyond the machine's ticks counts as %v CPUs of others; want 0", got.others)
	}
}
