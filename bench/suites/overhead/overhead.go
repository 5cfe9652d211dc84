package overhead

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// Suites measure what a request of two legs costs, by the size of its body.
func Suites() []harness.Suite {
	var suites []harness.Suite
	for _, size := range []struct {
		name  string
		bytes int
		many  int // connections of the second view
	}{{"1k", 1 << 10, 32}, {"16k", 16 << 10, 32}, {"220k", 220 << 10, 16}} {
		suites = append(suites, harness.Suite{
			Name:  "overhead/cpu-" + size.name,
			Brief: "CPU time and rate of requests of two legs with prompts of " + strings.TrimSuffix(size.name, "k") + " KB, engines that answer at once",
			Run: func(ctx context.Context, r *harness.Run) error {
				for _, row := range overheadRows(size.bytes, size.many) {
					if err := overhead(ctx, r, row); err != nil {
						return err
					}
				}
				noteCeiling(r)
				return nil
			},
		})
	}
	return append(suites, latencySuite(), syscallsSuite())
}

// overheadRow is a load of a suite.
type overheadRow struct {
	Name, Connector, Where string
	Load                   load.Closed
}

// rowOf is a load of so many connections with bodies of so many bytes.
func rowOf(connector, where string, size, connections int, stream bool) overheadRow {
	name := fmt.Sprintf("%s c=%d", strings.TrimPrefix(connector, "vllm-nixl-"), connections)
	if stream {
		name += " stream"
	}
	return overheadRow{name, connector, where, load.Closed{Connections: connections, Body: fake.ChatBody(size, stream), Stream: stream}}
}

func overheadRows(size, many int) []overheadRow {
	return []overheadRow{
		rowOf("vllm-nixl-pull", harness.OneCPU, size, 1, false),
		rowOf("vllm-nixl-pull", harness.AloneCPU, size, many, false),
		rowOf("vllm-nixl-pull", harness.AloneCPU, size, many, true),
		rowOf("vllm-nixl-push", harness.OneCPU, size, 1, false),
		rowOf("vllm-nixl-push", harness.AloneCPU, size, many, false),
		rowOf("sglang", harness.OneCPU, size, 1, false),
		rowOf("sglang", harness.AloneCPU, size, many, false),
	}
}

// overhead measures one load.
func overhead(ctx context.Context, r *harness.Run, row overheadRow) error {
	if !r.Wants(row.Name) {
		return nil
	}
	s, err := r.Open(ctx, harness.Setup{Connector: row.Connector, Where: row.Where, Targets: allTargets()})
	if err != nil {
		return err
	}
	defer s.Close()
	figures := []harness.Reads{{Metric: harness.Metric{What: cpuMetric, Unit: "µs", Goals: []report.Goal{{Beside: report.Baseline, Times: 1.5}, {Beside: report.BestPeer, Times: 1.0 / 3}}}, Of: harness.Measured.Micros}}
	if row.Load.Connections > 1 {
		figures = append(figures, harness.Reads{Metric: harness.Metric{What: rateMetric, Unit: "1/s", Goals: []report.Goal{{Beside: report.BestPeer, Times: 2, AtLeast: true}}}, Of: harness.Measured.Rate})
	}
	c := s.Comparison(row.Name, row.Load, figures...)
	if row.Load.Connections > 1 {
		c.Systems = append(c.Systems, withoutRouter(s, row.Load, len(figures)))
	}
	return r.Compare(ctx, c)
}

// withoutRouter is the load with its legs made by its own client: the rate that engines and client have at most, on the CPU that they
// share.
func withoutRouter(s *harness.Stage, l load.Closed, metrics int) harness.System {
	return harness.System{Of: noRouter, Only: rateMetric, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
		m, err := s.Watch(ctx, nil, func() (load.Result, fake.Counts, error) { return s.Direct(l, 2).Run(ctx, d) })
		if err != nil {
			return harness.Sample{}, err
		}
		return harness.Sample{Disturbance: m.Disturbance, Figures: slices.Repeat([]float64{m.Rate()}, metrics), Done: m.Completed}, nil
	}}
}

const (
	noRouter   = "no router"
	cpuMetric  = "CPU a request"
	rateMetric = "requests"
)

// noteCeiling says how far the engines' own rate is from pdrouter's: a rate that comes near it is the engines', not a router's.
func noteCeiling(r *harness.Run) {
	var each []string
	for _, row := range r.Report.Rows {
		if f := row.BesideOf(report.Goal{Beside: noRouter}); f != nil && f.Ratio != nil {
			each = append(each, fmt.Sprintf("%s: %.1f", row.Name, 1/f.Ratio.Median))
		}
	}
	if len(each) > 0 {
		r.Report.Notes = append(r.Report.Notes, "Without a router, client and engines reach, as multiples of pdrouter's rate: "+strings.Join(each, ", ")+". Where that is below 2, a rate says as much of them as of the router.")
	}
	if waited := notBusy(r.Report.Rows); len(waited) > 0 {
		r.Report.Notes = append(r.Report.Notes, "Whose rate is the client's and the engines', as its own CPU had time left (CPU a request × requests a second): "+strings.Join(waited, ", ")+".")
	}
}

// notBusy names those whose CPU was not busy with their requests, with how much of it was.
func notBusy(rows []report.Row) []string {
	var names []string
	for _, cpu := range rows {
		at := slices.IndexFunc(rows, func(r report.Row) bool { return r.Name == cpu.Name && r.What == rateMetric })
		if cpu.What != cpuMetric || at < 0 {
			continue
		}
		for _, f := range append([]report.Figure{cpu.Ours}, cpu.Beside...) {
			rate := rows[at].Of(f.Of)
			if f.Cannot != "" || rate == nil || rate.Cannot != "" {
				continue
			}
			if busy := f.Median * rate.Median / 1e6; busy < 0.85 {
				names = append(names, fmt.Sprintf("%s of %s %.2f", f.Of, cpu.Name, busy))
			}
		}
	}
	return names
}

// allTargets are all routers that a run knows, pdrouter first.
func allTargets() []harness.Target {
	return slices.Concat([]harness.Target{harness.GatewayTarget(), harness.BaselineTarget()}, harness.ProxyTargets(), harness.PeerTargets())
}
