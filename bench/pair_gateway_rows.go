package bench

import (
	"context"
	"slices"
	"time"
)

// gateways measures requests through a gateway. None of its rows is wanted: nothing is started.
func (r *Run) gateways(ctx context.Context, which string) error {
	if which == "nixl" && noNIXL() != nil {
		return nil // the other rows have said so
	}
	for _, row := range gatewayRows(which) {
		if !r.wants(row.name) {
			continue
		}
		f, err := openGatewayFleet(ctx, r.Config, which, row.decode, fleetShape{})
		if err != nil {
			return err
		}
		c := row.of(f)
		c.name, c.where = row.name, which
		err = r.contest(ctx, c)
		if closeErr := f.close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// gatewayRow is a row with a fleet of its own, of so many decode engines.
type gatewayRow struct {
	name   string
	decode int
	of     func(*gatewayFleet) contest
}

func gatewayRows(which string) []gatewayRow {
	return []gatewayRow{
		{which + " first request", 1, func(f *gatewayFleet) contest {
			return contest{
				metrics:    []metric{{what: "its time", unit: "ms"}, {what: "its wait for the pair", unit: "ms"}},
				contenders: []contender{gatewayFigures(us, f.first), gatewayFigures("warm pair", f.asWarm)},
			}
		}},
		{which + " request beside a cold pair", 2, func(f *gatewayFleet) contest {
			return contest{
				metrics: []metric{
					{what: "its time", unit: "ms", goals: []Goal{{Beside: "all pairs warm", Times: 1.2}}},
					{what: "longest wait for a pair", unit: "ms", goals: []Goal{{Beside: "its handshake", Times: 0.01}}},
				},
				contenders: []contender{gatewayFigures(us, f.beside), gatewayFigures("all pairs warm", f.severalWarm), gatewayFigures("its handshake", f.handshake)},
			}
		}},
	}
}

// gatewayFigures is a contender whose round gives two figures.
func gatewayFigures(of string, round func(context.Context) (first, second float64, err error)) contender {
	return contender{of: of, round: func(ctx context.Context, _ time.Duration) (sample, error) {
		first, second, err := round(ctx)
		return sample{figures: []float64{first, second}, done: 1}, err
	}}
}

// anew stops the last decode engine and starts it anew, and returns when the gateway sees that it is there.
func (f *gatewayFleet) anew(ctx context.Context) (*gatewayEngine, error) {
	e := f.engines[len(f.engines)-1]
	e.stop()
	if err := f.until(ctx, e.name+" is gone", func(s gatewayState) bool { return !s.up(e.name) }); err != nil {
		return e, err
	}
	if err := f.start(ctx, e); err != nil {
		return e, err
	}
	return e, f.until(ctx, e.name+" is there", func(s gatewayState) bool { return s.usable(e.name) })
}

// pairsWarm waits until every pair is.
func (f *gatewayFleet) pairsWarm(ctx context.Context) error { return f.warm(ctx, len(f.engines)-1) }

// first is the first request to an engine that was started anew, in ms, and of that the wait for the pair.
func (f *gatewayFleet) first(ctx context.Context) (took, paired float64, err error) {
	if _, err := f.anew(ctx); err != nil {
		return 0, 0, err
	}
	a, err := f.ask(ctx)
	if err != nil {
		return 0, 0, err
	}
	return millis(a.took), millis(a.paired), f.pairsWarm(ctx)
}

// asWarm is the same over a warm pair.
func (f *gatewayFleet) asWarm(ctx context.Context) (took, paired float64, err error) {
	all, waits, err := f.several(ctx, 5)
	return median(all, time.Millisecond), median(waits, time.Millisecond), err
}

// several asks so often, and returns what that took and the waits for pairs.
func (f *gatewayFleet) several(ctx context.Context, n int) (took, paired []time.Duration, err error) {
	for range n {
		a, err := f.ask(ctx)
		if err != nil {
			return nil, nil, err
		}
		took, paired = append(took, a.took), append(paired, a.paired)
	}
	return took, paired, nil
}

// severalWarm is the median time of requests while all pairs are warm, and their longest wait for one, in ms.
func (f *gatewayFleet) severalWarm(ctx context.Context) (mid, waited float64, err error) {
	took, waits, err := f.several(ctx, 10)
	if err != nil {
		return 0, 0, err
	}
	return median(took, time.Millisecond), millis(slices.Max(waits)), nil
}

// beside is the same of requests that begin while the pair of an engine that was started anew is cold.
func (f *gatewayFleet) beside(ctx context.Context) (mid, waited float64, err error) {
	if _, err := f.anew(ctx); err != nil {
		return 0, 0, err
	}
	var took, waits []time.Duration
	for {
		one, wait, err := f.several(ctx, 1)
		if err != nil {
			return 0, 0, err
		}
		took, waits = append(took, one...), append(waits, wait...)
		var s gatewayState
		if err := f.get(ctx, "/ready", &s); err != nil {
			return 0, 0, err
		}
		if s.PairsWarm == len(f.engines)-1 {
			return median(took, time.Millisecond), millis(slices.Max(waits)), nil
		}
	}
}

// handshake is for how many ms the pair of an engine that was started anew is cold.
func (f *gatewayFleet) handshake(ctx context.Context) (took, same float64, err error) {
	if _, err := f.anew(ctx); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	err = f.pairsWarm(ctx)
	took = millis(time.Since(start))
	return took, took, err
}
