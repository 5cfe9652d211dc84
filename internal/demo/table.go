package demo

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"pdrouter/router/report"
)

// Row is one request of the demo: what the client saw and what the gateway knows of it.
type Row struct {
	label   string
	summary report.Summary
	ttft    time.Duration // seen by the client
	equal   bool
}

// Table prints a row for each answer.
type Table struct {
	out         io.Writer
	rows, equal int
}

// NewTable returns an empty table.
func NewTable(out io.Writer) *Table { return &Table{out: out} }

const demoFormat = "%2s  %-17s %-20s %-33s %6s %8s  %-14s %6s  %-40s %s\n"

// say prints what the rows below it show.
func (t *Table) say(about string) {
	if t.rows == 0 {
		fmt.Fprintln(t.out, "counted: decode ranks whose writers have all finished, of all ranks; 4/4 (1/1 each): 4 ranks with one writer each")
		fmt.Fprintln(t.out, "times in ms: TTFT as the client saw it, the others from the request's arrival at the gateway. transfer: decode's event")
		fmt.Fprintln(t.out, "stream said that all blocks are there, perhaps after the answer's first bytes. why: what the policy says of its choice; P and D are the roles")
		fmt.Fprintf(t.out, demoFormat, "#", "request", "prefill → decode", "why", "blocks", "bytes", "counted",
			"TTFT", "plan · pair · prefill · transfer · first", "answer")
	}
	fmt.Fprintf(t.out, "\n%s\n", about)
}

func (t *Table) print(r Row) {
	t.rows++
	s := r.summary
	pair := s.Decode + " alone"
	if s.Prefill != "" {
		pair = s.Prefill + " → " + s.Decode
	}
	blocks, bytes, counted := "–", "–", "–"
	if s.Transfer != nil {
		blocks, bytes, counted = fmt.Sprint(s.Transfer.Blocks), byteCount(s.Transfer.Bytes), countedAll(s.Transfer.Counted)
	}
	answer := "DIFFERS"
	if r.equal {
		t.equal++
		answer = "equal"
	}
	p := s.Phases
	phases := []string{}
	for _, d := range []time.Duration{p.Plan, p.Pair, p.Prefill, p.Transfer, p.FirstToken} {
		phases = append(phases, milliseconds(d))
	}
	fmt.Fprintf(t.out, demoFormat, fmt.Sprint(t.rows), r.label, pair, shortWhy(s.Why), blocks, bytes, counted,
		milliseconds(r.ttft), strings.Join(phases, " · "), answer)
}

// countedAll prints the completions counted at each consumer, in order of rank: "2/2", "1/1 1/1 1/1 1/1 4/4".
func countedAll(counted map[string]string) string {
	ranks := make([]string, 0, len(counted))
	for rank := range counted {
		ranks = append(ranks, rank)
	}
	sort.Strings(ranks)
	got, want := 0, 0
	each := []string{}
	for _, rank := range ranks {
		var k, n int
		if _, err := fmt.Sscanf(counted[rank], "%d/%d", &k, &n); err == nil {
			got, want = got+k, want+n
		}
		each = append(each, counted[rank])
	}
	switch len(each) {
	case 0:
		return "–"
	case 1:
		return each[0]
	}
	return fmt.Sprintf("%d/%d (%s each)", got, want, each[0])
}

func milliseconds(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond))
}

func byteCount(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// shortWhy is the reason for a pair, short enough for its column.
func shortWhy(why string) string {
	return clip(strings.NewReplacer("prefill ", "P ", "decode ", "D ").Replace(why), 33)
}

// clip cuts s to n runes for a column.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
