package planevllm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/harness"
	"pdrouter/bench/internal/benchtest"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/suites/stock"
)

// madeProcess is a process of a made-up /proc.
type madeProcess struct {
	name, title string
	group       int
	threads     map[int]time.Duration
}

func (p madeProcess) write(t *testing.T, proc string, pid int) {
	t.Helper()
	put := func(text string, path ...string) {
		t.Helper()
		file := filepath.Join(append([]string{proc, strconv.Itoa(pid)}, path...)...)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(fmt.Sprintf("%d (%s) S 1 %d 1 0 -1 4194304 0 0\n", pid, p.name, p.group), "stat")
	put(p.title, "cmdline")
	for thread, used := range p.threads {
		put(fmt.Sprintf("%d 1 1\n", used), "task", strconv.Itoa(thread), "schedstat")
	}
}

// TestVLLMProcesses tells an engine's processes apart, and adds up what they have used.
func TestVLLMProcesses(t *testing.T) {
	proc := t.TempDir()
	for pid, p := range map[int]madeProcess{
		10: {"sh", "sh\x00-c\x00", 10, map[int]time.Duration{10: 1}},
		11: {"sh", "sh\x00-c\x00", 10, map[int]time.Duration{11: 1}},
		12: {"vllm", "python\x00vllm\x00serve\x00", 10, map[int]time.Duration{12: 1_000, 13: 2_000}},
		14: {"VLLM::EngineCor", "VLLM::EngineCore\x00", 10, map[int]time.Duration{14: 40_000, 15: 100_000}},
		16: {"VLLM) (::Worker", "VLLM::Worker\x00", 10, map[int]time.Duration{16: 1_000_000, 17: 6_000_000}},
		18: {"VLLM::EngineCor", "VLLM::EngineCore\x00", 18, map[int]time.Duration{18: 1 << 40}},
	} {
		p.write(t, proc, pid)
	}
	v, err := vllmProcessesOf(proc, 10)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(v.all)
	if d := cmp.Diff(vllmProcesses{all: []int{12, 14, 16}, core: 14, ranks: []int{16}}, v, cmp.AllowUnexported(vllmProcesses{})); d != "" {
		t.Error(d)
	}
	before, err := v.used(proc)
	if want := (vllmUse{all: 7_143_000, ranks: 7_000_000, core: 40_000}); err != nil || before != want {
		t.Errorf("used %+v, %v; want %+v", before, err, want)
	}
	after := vllmUse{all: before.all + 600, ranks: before.ranks + 400, core: before.core + 20}
	if got, err := after.since(before, 2); err != nil || !slices.Equal(got, []float64{300, 200, 10}) {
		t.Errorf("since: %v, %v; want 300, 200, 10", got, err)
	}
	if got, err := before.since(after, 2); !errors.Is(err, load.ErrVoid) {
		t.Errorf("less than before: %v, %v; want that it is void", got, err)
	}
	if got, err := vllmProcessesOf(proc, 18); err == nil {
		t.Errorf("a group without a rank: %+v; want an error", got)
	}
}

// TestStopPair stops the processes of two groups and has them go on. The shells that end a group when this process ends are not
// stopped.
func TestStopPair(t *testing.T) {
	p := &vllmPair{StockPair: &stock.StockPair{Stage: &harness.Stage{Running: []*harness.Child{nil}}}}
	var leaders []int
	for range 2 {
		pipe := benchtest.NewPipe(t)
		c, err := harness.SpawnGroup(t.Context(), "a group", "sh", "-c", `exec 9>"$0"; echo begun >&9; exec sleep 600`, pipe)
		if err != nil {
			t.Fatal(err)
		}
		gone := benchtest.Begun(t, pipe)
		t.Cleanup(func() {
			c.EndGroup()
			gone()
		})
		leaders = append(leaders, c.Process.PID())
		p.processes = append(p.processes, vllmProcesses{all: sleepers(t, c.Process.PID())})
	}
	if err := p.stop(false); err != nil || p.asleep {
		t.Errorf("one that is not stopped goes on: %v", err)
	}
	for _, asleep := range []bool{true, false} {
		if err := errors.Join(p.stop(asleep), p.stop(asleep)); err != nil {
			t.Fatal(err)
		}
		for _, v := range p.processes {
			for _, pid := range v.all {
				for (state(t, pid) == "T") != asleep { // a signal takes its time
					if t.Context().Err() != nil {
						t.Fatal(t.Context().Err())
					}
				}
			}
		}
		for _, pid := range leaders {
			if state(t, pid) == "T" {
				t.Error("the shell that ends the group is stopped")
			}
		}
	}
	p.processes = append(p.processes, vllmProcesses{all: []int{1 << 30}})
	if err := p.stop(true); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("a process that is gone: %v; want that it is told", err)
	}
	if err := p.processes[0].signal(syscall.SIGCONT); err != nil {
		t.Error(err)
	}
	if err := p.processes[1].signal(syscall.SIGCONT); err != nil {
		t.Error(err)
	}
}

// sleepers are the processes of a group that are no shells.
func sleepers(t *testing.T, group int) (pids []int) {
	t.Helper()
	for len(pids) == 0 { // the last shell becomes it behind its first word
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
		v, _ := vllmProcessesOf("/proc", group) // which is no engine
		pids = v.all
	}
	return pids
}

func state(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))[0]
}

// TestTokenSources reads what vLLM counts, and judges it.
func TestTokenSources(t *testing.T) {
	const text = `# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 3.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 1024.0
vllm:prompt_tokens_by_source_created{engine="0",model_name="m",source="local_cache_hit"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 99.0
`
	got, err := parseSources(text)
	if want := (tokenSources{external: 1024, computed: 3}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if got, err := parseSources(`vllm:prompt_tokens_by_source_total{source="local_compute"} many`); err == nil {
		t.Errorf("no number: %+v; want an error", got)
	}
	for _, x := range []struct {
		of           tokenSources
		over, atHand bool // whether that is right for two prompts of 65 tokens
	}{
		{tokenSources{external: 130}, true, false},
		{tokenSources{external: 128, computed: 2}, true, false},
		{tokenSources{external: 127, computed: 3}, false, false},
		{tokenSources{external: 65, computed: 65}, false, false},
		{tokenSources{external: 98, cached: 32}, false, false},
		{tokenSources{external: 129}, false, false},
		{tokenSources{external: 195}, false, false},
		{tokenSources{cached: 128, computed: 2}, false, true},
		{tokenSources{cached: 128, computed: 3}, false, false},
		{tokenSources{cached: 96, computed: 34}, false, false},
		{tokenSources{external: 32, cached: 96, computed: 2}, false, false},
	} {
		if err := x.of.handedOver(2, 65); (err == nil) != x.over {
			t.Errorf("%+v: handed over: %v; want that it is right: %t", x.of, err, x.over)
		}
		if err := x.of.atHand(2, 65); (err == nil) != x.atHand {
			t.Errorf("%+v: at hand: %v; want that it is right: %t", x.of, err, x.atHand)
		}
	}
}

// TestVLLMPrompt has prompts of the length that is asked for, and none begins with a block of another one.
func TestVLLMPrompt(t *testing.T) {
	firsts := map[string]bool{}
	for i := range 2000 {
		for _, n := range vllmLengths {
			if got := len(vllmPrompt(i, n)); got != n {
				t.Fatalf("prompt %d has %d bytes; want %d", i, got, n)
			}
		}
		firsts[vllmPrompt(i, 32)] = true
	}
	if len(firsts) != 2000 {
		t.Errorf("2000 prompts begin in %d ways: %v", len(firsts), slices.Collect(maps.Keys(firsts))[:1])
	}
}

// TestFirstRow holds starts against starts.
func TestFirstRow(t *testing.T) {
	s := &planeVLLM{Run: &harness.Run{Report: &report.Report{}}}
	s.first[0].first, s.first[0].later = []float64{120, 100}, []float64{100, 100}
	s.first[1].first, s.first[1].later = []float64{240, 400}, []float64{100, 200}
	s.firstRow()
	row := s.Report.Rows[0]
	if got, want := *row.Of(nixlByHand).Ratio, (report.Spread{Min: 0.25, Median: 0.375, Max: 0.5}); got != want || row.Ours.Median != 110 {
		t.Errorf("%+v, and of ours %+v; want %+v, and a median of 110", got, row.Ours.Spread, want)
	}
	if want := "pdrouter +10.0 ms over later requests, NixlPushConnector by hand +170.0 ms"; !strings.Contains(s.Report.Notes[0], want) {
		t.Errorf("%q; want %q", s.Report.Notes, want)
	}
}

// TestPlaneVLLMNote has an interval only where enough rounds hold one.
func TestPlaneVLLMNote(t *testing.T) {
	s := &planeVLLM{Run: &harness.Run{Report: &report.Report{}}}
	s.note("two", []float64{1, 3}, []float64{2, 5}, "ms")
	s.note("six", []float64{1, 2, 3, 4, 5, 6}, []float64{2, 2, 2, 2, 2, 2}, "ms")
	want := []string{
		"two: pdrouter 2.00, NixlPushConnector 3.50, pdrouter less that -1.50 ms, of 2 rounds.",
		"six: pdrouter 3.50 (1.00 to 6.00), NixlPushConnector 2.00 (2.00 to 2.00), pdrouter less that 1.50 (-1.00 to 4.00) ms, of 6 rounds.",
	}
	if d := cmp.Diff(want, s.Report.Notes); d != "" {
		t.Error(d)
	}
}

// TestPlaneVLLMMissing says what is not installed, and is no error.
func TestPlaneVLLMMissing(t *testing.T) {
	dir := t.TempDir()
	cfg := harness.Config{Peers: filepath.Join(dir, "peers"), Binary: filepath.Join(dir, "pdrouter")}
	told := func(want string) {
		t.Helper()
		r := &harness.Run{Config: cfg, Report: &report.Report{}}
		if err := measurePlaneVLLM(t.Context(), r); err != nil || len(r.Report.Notes) != 1 || !strings.Contains(r.Report.Notes[0], want) {
			t.Errorf("%v, %q; want a note of %q", err, r.Report.Notes, want)
		}
	}
	told("make e2e-vllm")
	python := filepath.Join(dir, "vllm", "bin", "python")
	if err := errors.Join(os.MkdirAll(filepath.Dir(python), 0o755), os.WriteFile(python, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	told("make lib")
}
