package pair

import (
	"context"
	"slices"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
	"pdrouter/bench/suites/plane"
)

// gateways measures requests through a gateway. None of its rows is wanted: nothing is started.
func gateways(ctx context.Context, r *harness.Run, which string) error {
	if which == "nixl" && plane.NoNIXL() != nil {
		return nil // the other rows have said so
	}
	for _, row := range gatewayRows(which) {
		if !r.Wants(row.name) {
			continue
		}
		f, err := OpenGatewayFleet(ctx, r.Config, which, row.decode, FleetShape{})
		if err != nil {
			return err
		}
		c := row.of(f)
		c.Name, c.Where = row.name, which
		err = r.Compare(ctx, c)
		if closeErr := f.Close(); err == nil {
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
	of     func(*GatewayFleet) harness.Comparison
}

func gatewayRows(which string) []gatewayRow {
	return []gatewayRow{
		{which + " first request", 1, func(f *GatewayFleet) harness.Comparison {
			return harness.Comparison{
				Metrics: []harness.Metric{{What: "its time", Unit: "ms"}, {What: "its wait for the pair", Unit: "ms"}},
				Systems: []harness.System{gatewayFigures(report.Us, f.first), gatewayFigures("warm pair", f.asWarm)},
			}
		}},
		{which + " request beside a cold pair", 2, func(f *GatewayFleet) harness.Comparison {
			return harness.Comparison{
				Metrics: []harness.Metric{
					{What: "its time", Unit: "ms", Goals: []report.Goal{{Beside: "all pairs warm", Times: 1.2}}},
					{What: "longest wait for a pair", Unit: "ms", Goals: []report.Goal{{Beside: "its handshake", Times: 0.01}}},
				},
				Systems: []harness.System{gatewayFigures(report.Us, f.beside), gatewayFigures("all pairs warm", f.severalWarm), gatewayFigures("its handshake", f.handshake)},
			}
		}},
	}
}

// gatewayFigures is a system whose round gives two figures.
func gatewayFigures(of string, round func(context.Context) (first, second float64, err error)) harness.System {
	return harness.System{Of: of, Round: func(ctx context.Context, _ time.Duration) (harness.Sample, error) {
		first, second, err := round(ctx)
		return harness.Sample{Figures: []float64{first, second}, Done: 1}, err
	}}
}

// anew stops the last decode engine and starts it anew, and returns when the gateway sees that it is there.
func (f *GatewayFleet) anew(ctx context.Context) (*GatewayEngine, error) {
	e := f.Engines[len(f.Engines)-1]
	e.stop()
	if err := f.until(ctx, e.Name+" is gone", func(s GatewayState) bool { return !s.Up(e.Name) }); err != nil {
		return e, err
	}
	if err := f.start(ctx, e); err != nil {
		return e, err
	}
	return e, f.until(ctx, e.Name+" is there", func(s GatewayState) bool { return s.usable(e.Name) })
}

// pairsWarm waits until every pair is.
func (f *GatewayFleet) pairsWarm(ctx context.Context) error { return f.warm(ctx, len(f.Engines)-1) }

// first is the first request to an engine that was started anew, in ms, and of that the wait for the pair.
func (f *GatewayFleet) first(ctx context.Context) (took, paired float64, err error) {
	if _, err := f.anew(ctx); err != nil {
		return 0, 0, err
	}
	a, err := f.ask(ctx)
	if err != nil {
		return 0, 0, err
	}
	return report.Millis(a.took), report.Millis(a.paired), f.pairsWarm(ctx)
}

// asWarm is the same over a warm pair.
func (f *GatewayFleet) asWarm(ctx context.Context) (took, paired float64, err error) {
	all, waits, err := f.several(ctx, 5)
	return plane.Median(all, time.Millisecond), plane.Median(waits, time.Millisecond), err
}

// several asks so often, and returns what that took and the waits for pairs.
func (f *GatewayFleet) several(ctx context.Context, n int) (took, paired []time.Duration, err error) {
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
func (f *GatewayFleet) severalWarm(ctx context.Context) (mid, waited float64, err error) {
	took, waits, err := f.several(ctx, 10)
	if err != nil {
		return 0, 0, err
	}
	return plane.Median(took, time.Millisecond), report.Millis(slices.Max(waits)), nil
}

// beside is the same of requests that begin while the pair of an engine that was started anew is cold.
func (f *GatewayFleet) beside(ctx context.Context) (mid, waited float64, err error) {
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
		var s GatewayState
		if err := f.get(ctx, "/ready", &s); err != nil {
			return 0, 0, err
		}
		if s.PairsWarm == len(f.Engines)-1 {
			return plane.Median(took, time.Millisecond), report.Millis(slices.Max(waits)), nil
		}
	}
}

// handshake is for how many ms the pair of an engine that was started anew is cold.
func (f *GatewayFleet) handshake(ctx context.Context) (took, same float64, err error) {
	if _, err := f.anew(ctx); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	err = f.pairsWarm(ctx)
	took = report.Millis(time.Since(start))
	return took, took, err
}
