package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

func measureCold(ctx context.Context, r *Run) error {
	for _, which := range pairTransports {
		if err := r.pairs(ctx, which, func(f *pairFleet) []contest { return coldRows(which, f) }); err != nil {
			return err
		}
		if err := r.gateways(ctx, which); err != nil {
			return err
		}
	}
	return nil
}

func measureWarm(ctx context.Context, r *Run) error {
	for _, which := range pairTransports {
		if err := r.pairs(ctx, which, func(f *pairFleet) []contest { return warmRows(which, f) }); err != nil {
			return err
		}
	}
	row, err := pairLookup()
	if err != nil {
		return err
	}
	row.name = "lookup"
	return r.contest(ctx, row.contest())
}

// pairFigure is a contender whose round gives one figure.
func pairFigure(of string, round func(context.Context) (float64, error)) contender {
	return contender{of: of, round: func(ctx context.Context, _ time.Duration) (sample, error) {
		x, err := round(ctx)
		return sample{figures: []float64{x}, done: 1}, err
	}}
}

func coldRows(which string, f *pairFleet) []contest {
	metrics := func(goals ...Goal) []metric {
		return []metric{{what: "until ready", unit: "ms", goals: goals}, {what: "CPU of all processes", unit: "ms"}}
	}
	shaking := func(of string, n int, serial bool) contender {
		return contender{of: of, round: func(context.Context, time.Duration) (sample, error) {
			took, cpu, err := f.handshakes(n, serial)
			return sample{figures: []float64{took, cpu}, done: n}, err
		}}
	}
	return []contest{
		{name: fmt.Sprintf("%s %d pairs at once", which, pairsAtOnce), metrics: metrics(Goal{Beside: "one pair", Times: 1.2}, Goal{Beside: "serial handshakes", Times: 1}), contenders: []contender{
			shaking(us, pairsAtOnce, false), shaking("one pair", 1, false), shaking("serial handshakes", pairsAtOnce, true),
		}},
		{name: which + " request meanwhile", metrics: []metric{{unit: "µs", goals: []Goal{{Beside: "handshake", Times: 0.01}}}}, contenders: []contender{
			pairFigure(us, f.meanwhile),
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
	took = millis(time.Since(start))
	after, err := f.cpu()
	return took, millis(after - before), errors.Join(append(errs, err, f.counted(n))...)
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
			return 0, fmt.Errorf("%w: a handshake has failed", errVoid)
		}
	}
	return median(took, micro), errors.Join(ctx.Err(), err, f.counted(1))
}

func warmRows(which string, f *pairFleet) []contest {
	return []contest{
		{name: which + " first transfer", metrics: []metric{{unit: "ms"}}, contenders: []contender{
			pairFigure(us, func(context.Context) (float64, error) {
				if _, _, err := f.handshakes(1, false); err != nil {
					return 0, err
				}
				took, err := f.transfer(0, 1)
				return median(took, time.Millisecond), err
			}),
			pairFigure("those that follow", func(context.Context) (float64, error) {
				took, err := f.transfer(0, 20)
				return median(took, time.Millisecond), err
			}),
		}},
		{name: which + " engine anew", metrics: []metric{{unit: "ms", goals: []Goal{{Beside: "both anew", Times: 1.2}}}}, contenders: []contender{
			pairFigure(us, f.anew),
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
	took := millis(time.Since(start))
	if registry.Ready(old) || old == f.pair(0) {
		return 0, fmt.Errorf("%w: a pair of an old generation is ready", errVoid)
	}
	return took, f.counted(1)
}
