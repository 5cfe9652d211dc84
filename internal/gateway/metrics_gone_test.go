package gateway

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/report"
)

// seriesOf returns the lines of the registry that begin with a word.
func seriesOf(t *testing.T, m *metrics, begin string) (series []string) {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), begin) {
			continue
		}
		for _, s := range f.GetMetric() {
			line := f.GetName()
			for _, l := range s.GetLabel() {
				line += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
			}
			series = append(series, line)
		}
	}
	return series
}

// TestSeriesOfEnginesThatAreGone has 1,000 pairs of engines come, serve requests, and go.
func TestSeriesOfEnginesThatAreGone(t *testing.T) {
	m := newMetrics("v1", "abcdef0")
	present := map[string]bool{"p": true}
	m.knows = func(engine string) bool { return present[engine] }
	serve := func(decode string) {
		for _, prefill := range []string{"p", ""} {
			s := report.Summary{Model: "m", Route: "/v1/completions", Status: 200, Outcome: dispatch.Completed, Reason: "split", Prefill: prefill, Decode: decode}
			m.observe(s)
			s.Phases.FirstToken = time.Second
			m.observe(s)
			m.observe(s)
		}
	}
	var first, firstLabels int
	for i := range 1000 {
		decode := fmt.Sprint("d", i)
		present[decode] = true
		serve(decode)
		if i == 0 {
			first, firstLabels = len(seriesOf(t, m, "pdrouter_")), len(m.series)
		}
		delete(present, decode)
		m.forget(decode)
		serve(decode) // its last request is counted late
	}
	present["d"] = true
	serve("d")
	series := seriesOf(t, m, "pdrouter_")
	if len(series) != first || len(m.series) != firstLabels {
		t.Errorf("%d series and %d sets of labels at the end, %d and %d with the first engine:\n%s", len(series), len(m.series), first, firstLabels, strings.Join(series, "\n"))
	}
	want := []string{
		`pdrouter_time_to_first_token_seconds engine="d" model="m" role="decode"`,
		`pdrouter_time_to_first_token_seconds engine="p" model="m" role="prefill"`,
	}
	if got := seriesOf(t, m, "pdrouter_time_to_first_token"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %s", strings.Join(got, "\n"))
	}
	if got := seriesOf(t, m, "pdrouter_requests_total"); len(got) != 1 {
		t.Errorf("requests of engines that are gone are counted elsewhere: %s", got)
	}
}

// TestEnginesThatComeAndGo has a gateway whose only engine is another one 1,000 times.
func TestEnginesThatComeAndGo(t *testing.T) {
	times := 1000
	if testing.Short() {
		times = 100
	}
	engine := NewFakeServing(t, "engine", "127.0.0.1:0")
	c := &Changeable{T: t, Path: filepath.Join(t.TempDir(), "pdrouter.yaml")}
	config := func(i int) string {
		return fmt.Sprintf("listen: {clients: '127.0.0.1:0', operations: '127.0.0.1:0'}\nmodels: [{name: m, engines: [{name: e-%d, url: '%s'}]}]\nlog: {level: warn}\n", i, engine.URL)
	}
	c.Write(config(0))
	c = ServeFile(t, c.Path)
	get := func(path string) string {
		resp, err := http.Get("http://" + c.operations.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	// of returns how many series there are and how many of engines that are gone, and the memory in use.
	of := func(i int) (series, gone int, heap uint64) {
		for line := range strings.SplitSeq(get("/metrics"), "\n") {
			if strings.HasPrefix(line, "pdrouter_") {
				series++
				if strings.Contains(line, `"e-`) && !strings.Contains(line, fmt.Sprintf(`"e-%d"`, i)) {
					gone++
				}
			}
		}
		runtime.GC()
		runtime.GC()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		return series, gone, mem.HeapAlloc
	}
	var before int
	var heapBefore uint64
	settled := times / 10
	for i := range times {
		if i > 0 {
			c.Write(config(i))
			if status, _, mistakes := c.Reload(); status != http.StatusOK {
				t.Fatalf("reload: %d %v", status, mistakes)
			}
		}
		resp, err := http.Post("http://"+c.clients.Addr().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hi"}`))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
		if i != settled && i != times-1 {
			continue
		}
		var series, gone int
		var heap uint64
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if series, gone, heap = of(i); gone == 0 || time.Now().After(deadline) {
				break
			}
		}
		if gone > 0 {
			t.Fatalf("%d of %d series are of engines that are gone", gone, series)
		}
		if i == settled {
			before, heapBefore = series, heap
		} else if series > before+5 || heap > heapBefore+8<<20 {
			t.Errorf("%d series and %d KiB after %d engines, %d and %d KiB after %d", series, heap>>10, times, before, heapBefore>>10, settled)
		}
		t.Logf("%d engines: %d series, %d KiB", i+1, series, heap>>10)
	}
}
