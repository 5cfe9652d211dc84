package pair

import (
	"context"
	"errors"
	"fmt"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/suites/plane"
	"sync"
	"time"
)

func measureCold(ctx context.Context, r *harness.Run) error {
	for _, which := range PairTransports {
		if err := pairs(ctx, r, which, func(f *pairFleet) []harness.Comparison { return coldRows(which, f) }); err != nil {
			return err
		}
		if err := gateways(ctx, r, which); err != nil {
			return err
		}
	}
	return nil
}

func measureWarm(ctx context.Context, r *harness.Run) error {
	for _, which := range PairTransports {
		if err := pairs(ctx, r, which, func(f *pairFleet) []harness.Comparison { return warmRows(which, f) }); err != nil {
			return err
		}
	}
	return nil
}

// pairFigure is a system whose round gives one figure.
func pairFigure(of string, round func(context.Context) (float64, error)) harness.System {
	return harness.System{Of: of, Round: func(ctx context.Context, _ time.Duration) (harness.Sample, error) {
		x, err := round(ctx)
		return harness.Sample{Figures: []float64{x}, Done: 1}, err
	}}
}

func coldRows(which string, f *pairFleet) []harness.Comparison {
	metrics := func(goals ...report.Goal) []harness.Metric {
		return []harness.Metric{{What: "until ready", Unit: "ms", Goals: goals}, {What: "CPU of all processes", Unit: "ms"}}
	}
	shaking := func(of string, n int, serial bool) harness.System {
		return harness.System{Of: of, Round: func(context.Context, time.Duration) (harness.Sample, error) {
			took, cpu, err := f.handshakes(n, serial)
			return harness.Sample{Figures: []float64{took, cpu}, Done: n}, err
		}}
	}
	return []harness.Comparison{
		{Name: fmt.Sprintf("%s %d pairs at once", which, pairsAtOnce), Metrics: metrics(report.Goal{Beside: "one pair", Times: 1.2}, report.Goal{Beside: "serial handshakes", Times: 1}), Systems: []harness.System{
			shaking(report.Us, pairsAtOnce, false), shaking("one pair", 1, false), shaking("serial handshakes", pairsAtOnce, true),
		}},
		{Name: which + " request meanwhile", Metrics: []harness.Metric{{Unit: "µs", Goals: []report.Goal{{Beside: "handshake", Times: 0.01}}}}, Systems: []harness.System{
			pairFigure(report.Us, f.meanwhile),
			pairFigure("handshake", func(context.Context) (float64, error) {
				x, _, err := f.handshakes(1, false)
				return 1000 * x, err
			}),
		}},
	}
}

// handshakes makes n pairs cold and returns in how many ms requests for all of them may go on, and how much CPU time
// that took.
func (f *pairFleet) handshakes(n int, serial bool) (took, cpu float64, err error) {
	registry, err := f.strangers(n)
	if err != nil {
		return 0, 0, err
	}
	defer registry.Close()
	before, err := f.cpu()
	if err != nil {
		return 0, 0, err
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	start := time.Now()
	for i := range n {
		all.Go(func() { errs[i] = registry.Wait(context.Background(), f.pair(i)) })
		if serial {
			all.Wait()
		}
	}
	all.Wait()
	took = report.Millis(time.Since(start))
	after, err := f.cpu()
	return took, report.Millis(after - before), errors.Join(append(errs, err, f.counted(n))...)
}

// meanwhile is how many µs a request spends on a pair whose handshake is under way.
func (f *pairFleet) meanwhile(ctx context.Context) (float64, error) {
	registry, err := f.strangers(1)
	if err != nil {
		return 0, err
	}
	defer registry.Close()
	pair := f.pair(0)
	var took []time.Duration
	for ctx.Err() == nil {
		start := time.Now()
		ready := registry.Ready(pair)
		if !ready {
			err = registry.Start(pair, 1)
		}
		took = append(took, time.Since(start))
		if ready || err != nil {
			break
		}
		time.Sleep(20 * time.Microsecond) // the next request
		if s := registry.Stats(); s.InFlight == 0 && !registry.Ready(pair) {
			return 0, fmt.Errorf("%w: a handshake has failed", load.ErrVoid)
		}
	}
	return plane.Median(took, plane.Micro), errors.Join(ctx.Err(), err, f.counted(1))
}

func warmRows(which string, f *pairFleet) []harness.Comparison {
	return []harness.Comparison{
		{Name: which + " first transfer", Metrics: []harness.Metric{{Unit: "ms"}}, Systems: []harness.System{
			pairFigure(report.Us, func(context.Context) (float64, error) {
				if _, _, err := f.handshakes(1, false); err != nil {
					return 0, err
				}
				took, err := f.transfer(0, 1)
				return plane.Median(took, time.Millisecond), err
			}),
			pairFigure("those that follow", func(context.Context) (float64, error) {
				took, err := f.transfer(0, 20)
				return plane.Median(took, time.Millisecond), err
			}),
		}},
		{Name: which + " engine anew", Metrics: []harness.Metric{{Unit: "ms", Goals: []report.Goal{{Beside: "both anew", Times: 1.2}}}}, Systems: []harness.System{
			pairFigure(report.Us, f.anew),
			pairFigure("both anew", func(context.Context) (float64, error) {
				took, _, err := f.handshakes(1, false)
				return took, err
			}),
		}},
	}
}

// anew starts decode of a warm pair anew, and returns in how many ms a request for the new pair may go on.
func (f *pairFleet) anew(ctx context.Context) (float64, error) {
	registry, err := f.strangers(1)
	if err != nil {
		return 0, err
	}
	defer registry.Close()
	old := f.pair(0)
	if err := registry.Wait(ctx, old); err != nil {
		return 0, err
	}
	if err := errors.Join(f.renew(f.decode[0]), f.publish(1)); err != nil {
		return 0, err
	}
	clear(f.shaken)
	start := time.Now()
	registry.Retire(f.decode[0].record.Incarnation)
	if err := registry.Wait(ctx, f.pair(0)); err != nil {
		return 0, err
	}
	took := report.Millis(time.Since(start))
	if registry.Ready(old) || old == f.pair(0) {
		return 0, fmt.Errorf("%w: a pair of an old generation is ready", load.ErrVoid)
	}
	return took, f.counted(1)
}
