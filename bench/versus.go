package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"
)

// versus is one operation and what stands beside it, both small enough to be repeated: a figure is the mean CPU time of as
// many of them as fill a slice.
type versus struct {
	name   string
	unit   string // "ns", "µs", "ms" or "s"
	beside string
	run    func(n int) error // does the operation n times
	limit  func(n int) error // does the other n times
	goal   float64           // in unit; 0 is none
	slice  time.Duration     // 0 is once a figure
	wall   bool              // it waits for other processes: time on the clock counts, else this process's CPU time
}

// per is how long a unit is.
func per(unit string) time.Duration {
	switch unit {
	case "ns":
		return time.Nanosecond
	case "µs":
		return time.Microsecond
	case "ms":
		return time.Millisecond
	}
	return time.Second
}

// measure alternates both for some rounds.
func (v versus) measure(ctx context.Context, rounds int, out io.Writer) (BesideRow, error) {
	row := BesideRow{Name: v.name, Unit: v.unit, Beside: v.beside, Goal: "–", Met: true}
	fmt.Fprintf(out, "  %-28s ", v.name)
	defer fmt.Fprintln(out)
	both := [2]func(int) error{v.limit, v.run}
	var counts [2]int
	for i, f := range both {
		var err error
		if counts[i], err = v.count(f); err != nil {
			return row, fmt.Errorf("bench: %s: %w", v.name, err)
		}
	}
	figures := [2][]float64{make([]float64, rounds), make([]float64, rounds)}
	for _, at := range schedule(rounds) {
		if ctx.Err() != nil {
			return row, ctx.Err()
		}
		n := counts[at.target]
		took, err := v.time(both[at.target], n)
		if err != nil {
			return row, fmt.Errorf("bench: %s: %w", v.name, err)
		}
		figures[at.target][at.pair] = float64(took) / float64(n) / float64(per(v.unit))
		if at.target == 1 {
			fmt.Fprint(out, ".")
		}
	}
	row.sum(figures[1], figures[0])
	if v.goal > 0 {
		row.Goal, row.Met = fmt.Sprintf("< %g %s", v.goal, v.unit), row.Figure.Median < v.goal
	}
	return row, nil
}

// count finds how many operations fill a slice.
func (v versus) count(f func(int) error) (int, error) {
	if v.slice == 0 {
		return 1, nil
	}
	for n := 1; ; n *= 2 {
		took, err := v.time(f, n)
		if err != nil {
			return 0, err
		}
		if took > v.slice/4 || n > 1<<28 {
			return max(1, int(float64(n)*float64(v.slice)/float64(took))), nil
		}
	}
}

// time returns what n operations take.
func (v versus) time(f func(int) error, n int) (time.Duration, error) {
	now := ownCPU
	if v.wall {
		begun := time.Now()
		now = func() (time.Duration, error) { return time.Since(begun), nil }
	}
	start, err := now()
	if err == nil {
		err = f(n)
	}
	if err != nil {
		return 0, err
	}
	end, err := now()
	return end - start, err
}

// ownCPU is the CPU time that this process has used.
func ownCPU() (time.Duration, error) {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0, fmt.Errorf("bench: getrusage: %w", err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano()), nil
}

// besides runs a suite of such rows.
func besides(ctx context.Context, suite, about string, cfg BesideConfig, rows []versus, out io.Writer) (*BesideReport, error) {
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	r := &BesideReport{Suite: suite, About: about, Machine: machine(len(cpus)), Versions: versions()}
	r.Settings = fmt.Sprintf("%d rounds a row, alternating with what stands beside it", cfg.Rounds)
	for _, v := range rows {
		if !strings.Contains(v.name, cfg.Only) {
			continue
		}
		row, err := v.measure(ctx, cfg.Rounds, out)
		if err != nil {
			return nil, err
		}
		r.Rows = append(r.Rows, row)
	}
	fmt.Fprintln(out)
	r.table(out)
	return r, nil
}

// BesideConfig says how to measure a suite whose rows stand beside something in the same process.
type BesideConfig struct {
	Rounds int    // of each row; 12 for figures worth quoting
	Only   string // rows whose name contains it; "" is all
}
