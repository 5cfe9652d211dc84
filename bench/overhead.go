package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// overheadSuites measure what a request of two legs costs, by the size of its body.
func overheadSuites() []Suite {
	var suites []Suite
	for _, size := range []struct {
		name  string
		bytes int
		many  int // connections of the second view
	}{{"1k", 1 << 10, 32}, {"16k", 16 << 10, 32}, {"220k", 220 << 10, 16}} {
		suites = append(suites, Suite{
			Name:  "overhead/cpu-" + size.name,
			Brief: "CPU time and rate of requests of two legs with prompts of " + strings.TrimSuffix(size.name, "k") + " KB, engines that answer at once",
			run: func(ctx context.Context, r *Run) error {
				for _, row := range overheadRows(size.bytes, size.many) {
					if err := r.overhead(ctx, row); err != nil {
						return err
					}
				}
				r.noteCeiling()
				return nil
			},
		})
	}
	return append(suites, latencySuite(), syscallsSuite())
}

// overheadRow is a load of a suite.
type overheadRow struct {
	name, connector, where string
	load                   load
}

// rowOf is a load of so many connections with bodies of so many bytes.
func rowOf(connector, where string, size, connections int, stream bool) overheadRow {
	name := fmt.Sprintf("%s c=%d", strings.TrimPrefix(connector, "vllm-nixl-"), connections)
	if stream {
		name += " stream"
	}
	return overheadRow{name, connector, where, load{connections: connections, body: chatBody(size, stream), stream: stream}}
}

func overheadRows(size, many int) []overheadRow {
	return []overheadRow{
		rowOf("vllm-nixl-pull", oneCPU, size, 1, false),
		rowOf("vllm-nixl-pull", aloneCPU, size, many, false),
		rowOf("vllm-nixl-pull", aloneCPU, size, many, true),
		rowOf("vllm-nixl-push", oneCPU, size, 1, false),
		rowOf("vllm-nixl-push", aloneCPU, size, many, false),
		rowOf("sglang", oneCPU, size, 1, false),
		rowOf("sglang", aloneCPU, size, many, false),
	}
}

// overhead measures one load.
func (r *Run) overhead(ctx context.Context, row overheadRow) error {
	if !r.wants(row.name) {
		return nil
	}
	s, err := r.open(ctx, cast{connector: row.connector, where: row.where, targets: allTargets()})
	if err != nil {
		return err
	}
	defer s.close()
	figures := []reads{{metric{what: cpuMetric, unit: "µs", goals: []Goal{{Beside: "floor", Times: 1.5}, {Beside: bestPeer, Times: 1.0 / 3}}}, measured.micros}}
	if row.load.connections > 1 {
		figures = append(figures, reads{metric{what: rateMetric, unit: "1/s", goals: []Goal{{Beside: bestPeer, Times: 2, AtLeast: true}}}, measured.rate})
	}
	c := s.contest(row.name, row.load, figures...)
	if row.load.connections > 1 {
		c.contenders = append(c.contenders, s.noRouter(row.load, len(figures)))
	}
	return r.contest(ctx, c)
}

// noRouter is the load with its legs made by its own client: the rate that engines and client have at most, on the CPU that they
// share.
func (s *stage) noRouter(l load, metrics int) contender {
	return contender{of: noRouter, only: rateMetric, round: func(ctx context.Context, d time.Duration) (sample, error) {
		m, err := s.watch(ctx, nil, func() (loaded, Counts, error) { return s.direct(l, 2).run(ctx, d) })
		if err != nil {
			return sample{}, err
		}
		return sample{disturbance: m.disturbance, figures: slices.Repeat([]float64{m.rate()}, metrics), done: m.completed}, nil
	}}
}

const (
	noRouter   = "no router"
	cpuMetric  = "CPU a request"
	rateMetric = "requests"
)

// noteCeiling says how far the engines' own rate is from pdrouter's: a rate that comes near it is the engines', not a router's.
func (r *Run) noteCeiling() {
	var each []string
	for _, row := range r.report.Rows {
		if f := row.beside(Goal{Beside: noRouter}); f != nil && f.Ratio != nil {
			each = append(each, fmt.Sprintf("%s: %.1f", row.Name, 1/f.Ratio.Median))
		}
	}
	if len(each) > 0 {
		r.report.Notes = append(r.report.Notes, "Without a router, client and engines reach, as multiples of pdrouter's rate: "+strings.Join(each, ", ")+". Where that is below 2, a rate says as much of them as of the router.")
	}
	if waited := notBusy(r.report.Rows); len(waited) > 0 {
		r.report.Notes = append(r.report.Notes, "Whose rate is the client's and the engines', as its own CPU had time left (CPU a request × requests a second): "+strings.Join(waited, ", ")+".")
	}
}

// notBusy names those whose CPU was not busy with their requests, with how much of it was.
func notBusy(rows []Row) []string {
	var names []string
	for _, cpu := range rows {
		at := slices.IndexFunc(rows, func(r Row) bool { return r.Name == cpu.Name && r.What == rateMetric })
		if cpu.What != cpuMetric || at < 0 {
			continue
		}
		for _, f := range append([]Figure{cpu.Ours}, cpu.Beside...) {
			rate := rows[at].of(f.Of)
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
func allTargets() []target {
	return slices.Concat([]target{gatewayTarget(), floorTarget()}, proxyTargets(), peerTargets())
}

// open starts the processes of a contest, and has the report name the versions of what runs beside pdrouter.
func (r *Run) open(ctx context.Context, c cast) (*stage, error) {
	s, err := c.open(ctx, r.Config)
	if err != nil {
		return nil, err
	}
	for i, x := range s.targets {
		if s.running[i] != nil {
			r.names(x)
		}
	}
	return s, nil
}

// names has the report name the version of a target.
func (r *Run) names(x target) {
	if x.version == nil {
		return
	}
	if v := x.version(); !slices.Contains(r.report.Versions.Beside, v) {
		r.report.Versions.Beside = append(r.report.Versions.Beside, v)
	}
}
