//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/bench/harness"
)

// unpin lets the threads of the engine use all CPUs. The workers of two engines pin their main threads to one and the same CPU, whatever
// they are told, where these compete with a thread of NIXL that polls all the time: each waits for the others for 30 s and longer.
func (e engine) unpin(t *testing.T) {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for _, tid := range threadsOf(e.inner(t)) {
		_ = unix.SchedSetaffinity(tid, &all) // one that has ended needs none
	}
}

// lowerSpinning gives the threads of the engine that use a CPU while it has nothing to do the lowest priority. NIXL's progress thread never rests. Where
// engines share a few CPUs it takes these from the threads that compute, so that a prompt takes two or three times as long as the same one before. Where each
// engine has CPUs enough it changes nothing. The threads that compute are their processes' first ones. These spin too, for a second behind each message.
func (e engine) lowerSpinning(t *testing.T) {
	t.Helper()
	const (
		watched = 500 * time.Millisecond
		busy    = watched / 10
	)
	before, first := map[int]time.Duration{}, e.inner(t)
	for _, tid := range threadsOf(first) {
		if !slices.Contains(first, tid) {
			before[tid] = ran(tid)
		}
	}
	time.Sleep(watched)
	for tid, was := range before {
		if ran(tid)-was > busy {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 19)
		}
	}
}

// ran is for how long a thread has used a CPU; 0 if it has ended.
func ran(tid int) time.Duration {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", tid))
	if err != nil {
		return 0
	}
	used, _ := harness.ParseSchedstat(string(line))
	return used
}

// threadsOf are the threads of processes.
func threadsOf(pids []int) (tids []int) {
	for _, pid := range pids {
		paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, path := range paths {
			tid, _ := strconv.Atoi(filepath.Base(path))
			tids = append(tids, tid)
		}
	}
	return tids
}

// inner are the processes of an engine but its HTTP server: the engine core and the workers.
func (e engine) inner(t *testing.T) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if group, _ := strconv.Atoi(fields[2]); group == e.cmd.Process.Pid && pid != group {
			pids = append(pids, pid)
		}
	}
	if len(pids) < 2 {
		t.Fatalf("%s has the inner processes %v; want an engine core and a worker at least", e.name, pids)
	}
	return pids
}
