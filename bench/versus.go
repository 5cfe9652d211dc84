package bench

import (
	"context"
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
	times  float64           // so many times what stands beside at most; 0 is no such goal
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

// contest is the row as two contenders.
func (v versus) contest() contest {
	one := func(of string, f func(int) error) contender {
		n := 0 // of operations that fill a slice
		return contender{of: of, round: func(context.Context, time.Duration) (sample, error) {
			if n == 0 {
				var err error
				if n, err = v.count(f); err != nil {
					return sample{}, err
				}
			}
			took, err := v.time(f, n)
			return sample{figures: []float64{float64(took) / float64(n) / float64(per(v.unit))}}, err
		}}
	}
	return contest{
		name: v.name, metrics: []metric{{unit: v.unit, goals: v.goals()}},
		contenders: []contender{one(us, v.run), one(v.beside, v.limit)},
	}
}

// goals are those of the row.
func (v versus) goals() []Goal {
	goals := atMost(v.goal)
	if v.times != 0 {
		goals = append(goals, Goal{Beside: v.beside, Times: v.times})
	}
	return goals
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
func ownCPU() (time.Duration, error) { return cpuUsed(syscall.RUSAGE_SELF) }

// versus measures rows, each with twice the rounds that others have: they are short.
func (r *Run) versus(ctx context.Context, rows []versus) error {
	r.rounds(2 * r.Rounds)
	for _, v := range rows {
		if err := r.contest(ctx, v.contest()); err != nil {
			return err
		}
	}
	return nil
}

// atMost is the goal of so many of the row's units; of none for 0.
func atMost(units float64) []Goal {
	if units == 0 {
		return nil
	}
	return []Goal{{Plus: units}}
}
