package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// resting is what the gateway holds while it has nothing to do.
type resting struct{ goroutines, descriptors float64 }

// atRest waits until what it holds does not grow less any more, and returns that.
func (s *soak) atRest(ctx context.Context) resting {
	s.t.Helper()
	http.DefaultClient.CloseIdleConnections()
	least := resting{goroutines: 1e9, descriptors: 1e9}
	for range 40 { // longer than idle connections to engines that are gone
		goroutines, err := s.Gauge(ctx, s.Operations+"/metrics", "go_goroutines")
		if err != nil {
			s.t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
		_, descriptors := s.sizes()
		least.goroutines, least.descriptors = min(least.goroutines, goroutines), min(least.descriptors, descriptors)
		if !pause(ctx, 250*time.Millisecond) {
			break
		}
	}
	return least
}

// sizes returns the gateway's resident memory in MiB, and how many descriptors it has open.
func (s *soak) sizes() (mib, descriptors float64) {
	proc := fmt.Sprintf("/proc/%d/", s.process("gateway").Cmd.Process.Pid)
	raw, err := os.ReadFile(proc + "statm")
	fields := strings.Fields(string(raw))
	if err != nil || len(fields) < 2 {
		s.t.Errorf("%sstatm: %q, %v", proc, raw, err)
		return 0, 0
	}
	pages, _ := strconv.ParseFloat(fields[1], 64)
	open, err := os.ReadDir(proc + "fd")
	if err != nil {
		s.t.Error(err)
	}
	return pages * float64(os.Getpagesize()) / (1 << 20), float64(len(open))
}

// judge prints how it went, and holds what is there in the end against what was there before.
func (s *soak) judge(before, after resting) {
	t := s.t
	t.Helper()
	t.Logf("%d kills, %d changes of the configuration", s.kills, s.reads)
	for _, how := range slices.Sorted(maps.Keys(s.ends)) {
		t.Logf("%8d  %s", s.ends[how], how)
	}
	t.Logf("at rest: goroutines %.0f, then %.0f; descriptors %.0f, then %.0f", before.goroutines, after.goroutines, before.descriptors, after.descriptors)
	if s.ends["whole and right"] == 0 || s.kills == 0 || s.reads == 0 {
		t.Error("nothing was proven: no answer, no kill or no change")
	}
	const few = 12 // connections that a client, a scrape or an engine happens to have open
	if after.goroutines > before.goroutines+few {
		t.Errorf("%.0f goroutines at rest; there were %.0f", after.goroutines, before.goroutines)
	}
	if after.descriptors > before.descriptors+few {
		t.Errorf("%.0f descriptors at rest; there were %.0f", after.descriptors, before.descriptors)
	}
	quarter := len(s.memory) / 4
	if quarter == 0 {
		return
	}
	second, last := median(s.memory[quarter:2*quarter]), median(s.memory[3*quarter:])
	t.Logf("resident memory: median of the second quarter %.1f MiB, of the last %.1f MiB", second, last)
	if last > 1.15*second+8 {
		t.Errorf("memory grew from %.1f to %.1f MiB", second, last)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
