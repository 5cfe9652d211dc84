package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// CPUOf is the CPU time that all threads of a process have used, read from schedstat, which counts nanoseconds where
// /proc/PID/stat counts ticks of 10 ms. A thread that ends takes its time along; Go's runtime keeps its threads.
func CPUOf(proc string, pid int) (time.Duration, error) {
	files, err := filepath.Glob(filepath.Join(proc, strconv.Itoa(pid), "task", "*", "schedstat"))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	read := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has ended since
		} else if err != nil {
			return 0, fmt.Errorf("bench: process %d: %w", pid, err)
		}
		ran, err := ParseSchedstat(string(b))
		if err != nil {
			return 0, fmt.Errorf("bench: process %d: %s: %w", pid, f, err)
		}
		sum += ran
		read++
	}
	if read == 0 {
		return 0, fmt.Errorf("bench: process %d has no schedstat; is it gone, or the kernel built without it?", pid)
	}
	return sum, nil
}

// familyCPU is the CPU time of a process and of all that descend from it and still run, by their stat: in ticks, as the machine's is,
// and with that of threads that have ended.
func familyCPU(proc string, pid int) (time.Duration, error) {
	stats, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	if err != nil {
		return 0, err
	}
	children, used := map[int][]int{}, map[int]time.Duration{}
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the process has ended since
		}
		one, _ := strconv.Atoi(filepath.Base(filepath.Dir(f))) // the pattern has let no other through
		if parent, cpu, ok := parseProcess(string(b)); ok {
			children[parent], used[one] = append(children[parent], one), cpu
		}
	}
	sum, ok := used[pid]
	if !ok {
		return 0, fmt.Errorf("bench: process %d has no stat in %s", pid, proc)
	}
	for next := children[pid]; len(next) > 0; next = next[1:] {
		sum += used[next[0]]
		next = append(next, children[next[0]]...)
	}
	return sum, nil
}

// parseProcess reads the parent of a process and its CPU time from its stat: PID (COMMAND) STATE PARENT, nine more, then ticks in
// user and in kernel mode; a command may hold anything.
func parseProcess(stat string) (parent int, cpu time.Duration, ok bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	user, userErr := strconv.ParseInt(fields[11], 10, 64)
	system, systemErr := strconv.ParseInt(fields[12], 10, 64)
	return parent, time.Duration(user+system) * jiffy, err == nil && userErr == nil && systemErr == nil
}

// cpuUsed is the CPU time that this process has used, or those of its children that have ended.
func cpuUsed(who int) (time.Duration, error) {
	var use syscall.Rusage
	if err := syscall.Getrusage(who, &use); err != nil {
		return 0, fmt.Errorf("bench: getrusage: %w", err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano()), nil
}

// ParseSchedstat reads the first of the three numbers of a schedstat line: nanoseconds on a CPU. The others are
// nanoseconds waiting for one and the number of turns.
func ParseSchedstat(line string) (time.Duration, error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return 0, fmt.Errorf("%q has %d numbers; want 3", line, len(fields))
	}
	ns, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || ns < 0 {
		return 0, fmt.Errorf("%q does not begin with nanoseconds", line)
	}
	return time.Duration(ns), nil
}

// jiffy is the unit of /proc/stat.
const jiffy = 10 * time.Millisecond

// jiffies is what all CPUs together have spent since the machine started.
type jiffies struct {
	busy, steal time.Duration
}

// machineJiffies reads /proc/stat.
func machineJiffies(proc string) (jiffies, error) {
	b, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return jiffies{}, fmt.Errorf("bench: %w", err)
	}
	return parseStat(string(b))
}

// parseStat reads the line "cpu" of /proc/stat: user nice system idle iowait irq softirq steal …; what guests used is
// in user already.
func parseStat(text string) (jiffies, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return jiffies{}, fmt.Errorf("bench: /proc/stat begins with %q", line)
	}
	var n [8]time.Duration
	for i := range n {
		v, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return jiffies{}, fmt.Errorf("bench: /proc/stat: %w", err)
		}
		n[i] = time.Duration(v) * jiffy
	}
	return jiffies{busy: n[0] + n[1] + n[2] + n[5] + n[6], steal: n[7]}, nil
}

// Disturbance is what took CPU during a round besides the bench, in CPUs (1 is one CPU all the time), and what came of it where the
// bench itself was to do things at their time.
type Disturbance struct {
	others, steal float64
	Late          time.Duration // 0 where it had none
}

// Calm reports whether a round with it counts.
func (d Disturbance) Calm(cfg Config) bool {
	return d.others <= cfg.Others && d.steal <= maxSteal && d.Late <= maxLate
}

func (d Disturbance) String() string {
	s := fmt.Sprintf("others used %.2f CPUs and %.2f were stolen", d.others, d.steal)
	if d.Late > 0 {
		s += fmt.Sprintf(", and the bench was %v late", d.Late.Round(10*time.Microsecond))
	}
	return s
}

// disturbed compares two readings of the machine. own is the CPU time of all processes of the bench between them.
func disturbed(before, after jiffies, own, elapsed time.Duration) Disturbance {
	return Disturbance{
		others: max(0, float64(after.busy-before.busy-own)/float64(elapsed)),
		steal:  float64(after.steal-before.steal) / float64(elapsed),
	}
}

// The load above which a round is not counted.
const (
	maxOthers = 0.10
	maxSteal  = 0.02
	maxLate   = 10 * time.Millisecond
)
