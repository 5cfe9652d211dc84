package harness

import (
	"context"
	"syscall"
	"time"

	"pdrouter/bench/report"
)

// Versus is one operation and what stands beside it, both small enough to be repeated: a figure is the mean CPU time of as
// many of them as fill a slice.
type Versus struct {
	Name   string
	Unit   string // "ns", "µs", "ms" or "s"
	Beside string
	Run    func(n int) error // does the operation n times
	Limit  func(n int) error // does the other n times
	Goal   float64           // in unit; 0 is none
	Times  float64           // so many times what stands beside at most; 0 is no such goal
	Slice  time.Duration     // 0 is once a figure
	Wall   bool              // it waits for other processes: time on the clock counts, else this process's CPU time
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

// Contest is the row as two contenders.
func (v Versus) Contest() Comparison {
	one := func(of string, f func(int) error) System {
		n := 0 // of operations that fill a slice
		return System{Of: of, Round: func(context.Context, time.Duration) (Sample, error) {
			if n == 0 {
				var err error
				if n, err = v.Count(f); err != nil {
					return Sample{}, err
				}
			}
			took, err := v.Time(f, n)
			return Sample{Figures: []float64{float64(took) / float64(n) / float64(per(v.Unit))}}, err
		}}
	}
	return Comparison{
		Name: v.Name, Metrics: []Metric{{Unit: v.Unit, Goals: v.goals()}},
		Systems: []System{one(report.Us, v.Run), one(v.Beside, v.Limit)},
	}
}

// goals are those of the row.
func (v Versus) goals() []report.Goal {
	goals := AtMost(v.Goal)
	if v.Times != 0 {
		goals = append(goals, report.Goal{Beside: v.Beside, Times: v.Times})
	}
	return goals
}

// Count finds how many operations fill a slice.
func (v Versus) Count(f func(int) error) (int, error) {
	if v.Slice == 0 {
		return 1, nil
	}
	for n := 1; ; n *= 2 {
		took, err := v.Time(f, n)
		if err != nil {
			return 0, err
		}
		if took > v.Slice/4 || n > 1<<28 {
			return max(1, int(float64(n)*float64(v.Slice)/float64(took))), nil
		}
	}
}

// Time returns what n operations take.
func (v Versus) Time(f func(int) error, n int) (time.Duration, error) {
	now := OwnCPU
	if v.Wall {
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

// OwnCPU is the CPU time that this process has used.
func OwnCPU() (time.Duration, error) { return cpuUsed(syscall.RUSAGE_SELF) }

// CompareEach measures rows, each with twice the rounds that others have: they are short.
func (r *Run) CompareEach(ctx context.Context, rows []Versus) error {
	r.SetRounds(2 * r.Rounds)
	for _, v := range rows {
		if err := r.Compare(ctx, v.Contest()); err != nil {
			return err
		}
	}
	return nil
}

// AtMost is the goal of so many of the row's units; of none for 0.
func AtMost(units float64) []report.Goal {
	if units == 0 {
		return nil
	}
	return []report.Goal{{Plus: units}}
}
