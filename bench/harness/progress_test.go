package harness

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/report"
)

// screens are what a terminal shows, each time before its last line is rewritten, and at the end.
func screens(written string) []string {
	var all []string
	above, line := "", ""
	for _, r := range strings.ReplaceAll(written, "\r\x1b[K", "\x00") {
		switch r {
		case 0:
			if line != "" {
				all = append(all, above+line)
			}
			line = ""
		case '\n':
			above += line + "\n"
			line = ""
		default:
			line += string(r)
		}
	}
	return append(all, above+line)
}

// timed is a system whose rounds take a time of the bubble.
func timed(of string, takes time.Duration, others ...float64) System {
	n := 0
	return System{Of: of, Round: func(context.Context, time.Duration) (Sample, error) {
		time.Sleep(takes)
		got := Sample{Figures: []float64{1}}
		if n++; n <= len(others) {
			got.others = others[n-1]
		}
		return got, nil
	}}
}

// TestProgressOnATerminal: one line that is rewritten says what is measured and how long it will take, and a line for the row is
// all that is left of it.
func TestProgressOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &progress{out: &out, terminal: true, width: 80, suite: "overhead/cpu-1k"}
		c := Comparison{Name: "pull c=1", Metrics: []Metric{{}}, Systems: []System{timed(report.Us, 2*time.Second), timed("nginx", 4*time.Second, 0, 1), {Of: "absent", Cannot: "not installed"}}}
		if _, err := c.Measure(t.Context(), Config{Rounds: 2, Others: .5, Refuse: 3}, p); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Write([]byte("a word in between\n")); err != nil {
			t.Fatal(err)
		}
		p.clear()
		const row = "  pull c=1                     r.. 22 s\n"
		want := []string{
			"  overhead/cpu-1k › pull c=1 · warming up pdrouter · 0 s",
			"  overhead/cpu-1k › pull c=1 · warming up nginx · 2 s",
			"  overhead/cpu-1k › pull c=1 · round 1/2 pdrouter · 6 s",
			"  overhead/cpu-1k › pull c=1 · round 1/2 nginx · 8 s, 6 s left",
			"  overhead/cpu-1k › pull c=1 · round 1/2 nginx · 12 s, 18 s left · 1 repeated",
			"  overhead/cpu-1k › pull c=1 · round 2/2 pdrouter · 16 s, 10 s left · 1 repeat…",
			"  overhead/cpu-1k › pull c=1 · round 2/2 nginx · 18 s, 4 s left · 1 repeated",
			row + "  overhead/cpu-1k · starting what comes next",
			row + "a word in between\n",
		}
		if d := cmp.Diff(want, screens(out.String())); d != "" {
			t.Error(d)
		}
	})
}

// TestProgressElsewhere: a mark a round, and no control characters.
func TestProgressElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		bad := System{Of: "peer", Peer: true, Round: func(context.Context, time.Duration) (Sample, error) { return Sample{}, errors.New("no") }}
		c := Comparison{Name: "pull c=1", Metrics: []Metric{{}}, Systems: []System{timed(report.Us, time.Second, 0, 1), timed("nginx", time.Second), bad}}
		if _, err := c.Measure(t.Context(), Config{Rounds: 3, Others: .5, Refuse: 3}, progressOn(&out, "overhead/cpu-1k")); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff("  pull c=1                     xr... 9 s\n", out.String()); d != "" {
			t.Error(d)
		}
	})
}

// TestProgressKnowsATerminal: a file and a pipe are none.
func TestProgressKnowsATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("COLUMNS", "132")
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p := progressOn(f, ""); p.terminal || p.width != 132 {
		t.Errorf("%+v", p)
	}
	if p := progressOn(&bytes.Buffer{}, ""); p.terminal {
		t.Error("a buffer is taken for a terminal")
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0 s", 1600 * time.Millisecond: "2 s", 119 * time.Second: "119 s", 125 * time.Second: "2 min 5 s"} {
		if got := seconds(d); got != want {
			t.Errorf("%v: got %q; want %q", d, got, want)
		}
	}
}
