package e2e

import (
	"bufio"
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// counters are the samples of one reading of /metrics: the series as written, with its labels, to its value.
type counters map[string]float64

// parseCounters reads the Prometheus text format as far as tests need it: lines it cannot read are left out.
func parseCounters(text []byte) counters {
	c := make(counters)
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		cut := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || cut < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(line[cut+1:], 64); err == nil {
			c[line[:cut]] = v
		}
	}
	return c
}

// sum adds every series of that name whose labels contain all of the given ones (`source="local_compute"`). found
// tells whether there was any: a counter that is missing must not pass for one that stands at zero.
func (c counters) sum(name string, labels ...string) (total float64, found bool) {
series:
	for series, v := range c {
		if series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(series, l) {
				continue series
			}
		}
		total, found = total+v, true
	}
	return total, found
}

func TestCounters(t *testing.T) {
	c := parseCounters([]byte(`# HELP x_total what it counts
# TYPE x_total counter
x_total{source="a",engine="0"} 3.0
x_total{source="a",engine="1"} 4
x_total{source="b",engine="0"} 100
x_total_created{source="a"} 1.7e+09
plain 1e3
`))
	type row struct {
		Sum   float64
		Found bool
	}
	got := make(map[string]row)
	for name, labels := range map[string][]string{"x_total": {`source="a"`}, "plain": nil, "y_total": nil} {
		v, found := c.sum(name, labels...)
		got[name] = row{v, found}
	}
	want := map[string]row{"x_total": {7, true}, "plain": {1000, true}, "y_total": {0, false}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
