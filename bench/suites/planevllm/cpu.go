package planevllm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
)

// vllmProcesses are those of one engine: the server of its routes, the core that schedules, a worker for each rank, and what Python
// needs beside them. They are looked up once: an engine that runs starts no others.
type vllmProcesses struct {
	all   []int
	core  int
	ranks []int
}

// vllmProcessesOf finds the processes of a group by the titles that vLLM gives them. Shells are left out: one of them is what ends
// the group.
func vllmProcessesOf(proc string, group int) (v vllmProcesses, err error) {
	stats, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	if err != nil {
		return v, err
	}
	for _, f := range stats {
		dir := filepath.Dir(f)
		stat, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended since
		}
		name, of, ok := parseGroup(string(stat))
		if !ok || of != group || name == "sh" {
			continue
		}
		title, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir)) // the pattern has let no other through
		v.all = append(v.all, pid)
		switch {
		case strings.HasPrefix(string(title), "VLLM::EngineCore"):
			v.core = pid
		case strings.HasPrefix(string(title), "VLLM::Worker"):
			v.ranks = append(v.ranks, pid)
		}
	}
	if v.core == 0 || len(v.ranks) == 0 {
		return v, fmt.Errorf("bench: of the processes %v of group %d %d is an engine's core, and %v are its ranks; want one, and some", v.all, group, v.core, v.ranks)
	}
	return v, nil
}

// parseGroup reads the name of a process and the group that it is of from its stat: PID (NAME) STATE PARENT GROUP ….
func parseGroup(stat string) (name string, group int, ok bool) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", 0, false
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 3 {
		return "", 0, false
	}
	group, err := strconv.Atoi(fields[2])
	return stat[open+1 : end], group, err == nil
}

// signal sends one to all of them.
func (v vllmProcesses) signal(s syscall.Signal) error {
	var errs []error
	for _, pid := range v.all {
		if err := syscall.Kill(pid, s); err != nil {
			errs = append(errs, fmt.Errorf("bench: process %d of an engine: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// vllmUse is CPU time that engines have used.
type vllmUse struct {
	all   time.Duration // all processes
	ranks time.Duration // those of ranks: what computes, and what moves KV, with all its threads
	core  time.Duration // main threads of cores alone: what schedules, and its side of the connector
}

func (u vllmUse) plus(v vllmUse) vllmUse {
	return vllmUse{u.all + v.all, u.ranks + v.ranks, u.core + v.core}
}

// used reads what an engine has used.
func (v vllmProcesses) used(proc string) (u vllmUse, err error) {
	for _, pid := range v.all {
		cpu, err := harness.CPUOf(proc, pid)
		if err != nil {
			return u, err
		}
		u.all += cpu
		if slices.Contains(v.ranks, pid) {
			u.ranks += cpu
		}
	}
	line, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(v.core), "task", strconv.Itoa(v.core), "schedstat"))
	if err != nil {
		return u, fmt.Errorf("bench: an engine's core: %w", err)
	}
	u.core, err = harness.ParseSchedstat(string(line))
	return u, err
}

// since is the part of it in so many parts: requests, or time. Of less than before a thread has ended, which takes its time along.
func (u vllmUse) since(was vllmUse, parts float64) ([]float64, error) {
	figures := make([]float64, 0, 3)
	for _, d := range []time.Duration{u.all - was.all, u.ranks - was.ranks, u.core - was.core} {
		if d < 0 {
			return nil, fmt.Errorf("%w: engines have used %v less than before", load.ErrVoid, -d)
		}
		figures = append(figures, float64(d)/parts)
	}
	return figures, nil
}

// vllmMetrics are the figures of vllmUse.since.
func vllmMetrics(unit string) []harness.Metric {
	return []harness.Metric{{What: "all of both engines", Unit: unit}, {What: "ranks", Unit: unit}, {What: "main threads of cores", Unit: unit}}
}
