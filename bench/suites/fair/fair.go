// Package fair measures what the order of the queue does for short sessions when long ones fill a fleet. Engines are modelled, and everything is
// in virtual time: the same seed gives the same figures on any machine. The queue is the gateway's own (router/admission); nothing else of a gateway
// is there.
package fair

import (
	"context"
	"fmt"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

// Suite compares the two orders of the queue.
func Suite() harness.Suite {
	return harness.Suite{Name: "fair/short-sessions", Brief: "short sessions beside long ones on full engines: the queue's order fair against fifo, in virtual time", Run: measure}
}

// The orders.
const (
	fair = "fair"
	fifo = "fifo"
)

// metrics are the figures of a run.
var metrics = []struct {
	what, unit string
	of         func(outcome) float64
	goals      []report.Goal // of fair
}{
	{"TTFT p99 of short sessions", "ms", func(o outcome) float64 { return report.Millis(o.short.P99) }, []report.Goal{{Beside: fifo, Times: .2}}},
	{"TTFT p50 of short sessions", "ms", func(o outcome) float64 { return report.Millis(o.short.P50) }, nil},
	{"TTFT p99 of long sessions", "ms", func(o outcome) float64 { return report.Millis(o.long.P99) }, nil},
	{"TTFT p50 of long sessions", "ms", func(o outcome) float64 { return report.Millis(o.long.P50) }, nil},
	{"throughput", "tokens/s", func(o outcome) float64 { return o.tokens }, []report.Goal{{Beside: fifo, Times: .98, AtLeast: true}}},
}

// measure runs each case with both orders, with the seeds 1 to the number of rounds.
func measure(ctx context.Context, r *harness.Run) error {
	r.Report.Settings = fmt.Sprintf("seeds 1 to %d", r.Rounds)
	r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("%d engines %s, %d places; %d long sessions, each with one turn at a time and %v of thought between two; %g short sessions a second; what came in %v after %v is counted.",
		engines, costs, places, longSessions, think, shortRate, window, warmUp))
	for _, c := range cases {
		if !r.Wants(c.name) {
			continue
		}
		rows, done := make([]report.Row, len(metrics)), 0
		for k, m := range metrics {
			rows[k] = report.Row{Name: c.name, What: m.what, Where: "virtual time", Unit: m.unit, Ours: report.Figure{Of: fair}, Beside: []report.Figure{{Of: fifo}}}
		}
		for seed := range uint64(r.Rounds) {
			for _, order := range []string{fair, fifo} {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				o, err := run(c, order == fair, window, seed+1)
				if err != nil {
					return err
				}
				done += o.done
				for k, m := range metrics {
					f := &rows[k].Ours
					if order == fifo {
						f = &rows[k].Beside[0]
					}
					f.Rounds = append(f.Rounds, m.of(o))
				}
			}
		}
		for k, m := range metrics {
			rows[k].Done = done
			rows[k].Sum(m.goals...)
		}
		r.Report.Rows = append(r.Report.Rows, rows...)
		r.Report.Found = append(r.Report.Found, fmt.Sprintf("%s: the p99 TTFT of short sessions is %.0f ms in place of %.0f ms; throughput is %.3f times that of fifo.",
			c.name, rows[0].Ours.Median, rows[0].Beside[0].Median, rows[len(rows)-1].Beside[0].Ratio.Median))
	}
	return nil
}

const (
	costs        = "llama-3.3-70b-4xh100"
	engines      = 4
	places       = 64 // of all engines
	longSessions = 256
	shortRate    = 1.5 // sessions that begin in a second
	think        = time.Second
	warmUp       = 2 * time.Minute // at first all sessions are new
	window       = 5 * time.Minute // after it
)

// cases say what the queue knows of the two kinds of sessions.
var cases = []workload{
	{"sessions of one tenant", false},
	{"two tenants without session names", true},
}
