package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
			Brief: "CPU time and rate of two-leg requests of " + size.name + "B, in front of engines that answer at once",
			About: fmt.Sprintf(overheadAbout, size.name+"B"),
			run: func(ctx context.Context, r *Run) error {
				for _, row := range overheadRows(size.bytes, size.many) {
					if err := r.overhead(ctx, row); err != nil {
						return err
					}
				}
				return nil
			},
		})
	}
	return suites
}

const overheadAbout = "CPU time that one two-leg request of %s costs a router, and how many it carries. The floor is a bare fasthttp proxy (`bench/floor.go`) that makes the same three exchanges by joining bytes. All stand in front of the same fake engines, which answer at once, and are measured in turns, in another order each round. CPU time is the sum of `/proc/PID/task/*/schedstat` of the router's process, divided by the requests that the client completed. A round is repeated when anything else used more CPU than `-others` allows, and the run is void unless every answer was right and the engines counted two legs for each (one for a plain proxy).\n"

// overheadRow is a load of a suite.
type overheadRow struct {
	name, connector, where string
	load                   load
}

func overheadRows(size, many int) []overheadRow {
	row := func(connector, where string, connections int, stream bool) overheadRow {
		name := fmt.Sprintf("%s c=%d", strings.TrimPrefix(connector, "vllm-nixl-"), connections)
		if stream {
			name += " stream"
		}
		return overheadRow{name, connector, where, load{connections: connections, body: chatBody(size, stream), stream: stream}}
	}
	return []overheadRow{
		row("vllm-nixl-pull", oneCPU, 1, false),
		row("vllm-nixl-pull", aloneCPU, many, false),
		row("vllm-nixl-pull", aloneCPU, many, true),
		row("vllm-nixl-push", oneCPU, 1, false),
		row("vllm-nixl-push", aloneCPU, many, false),
		row("sglang", oneCPU, 1, false),
		row("sglang", aloneCPU, many, false),
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
	figures := []reads{{metric{what: "CPU a request", unit: "µs", goals: []Goal{{Beside: "floor", Times: 1.5}, {Beside: bestPeer, Times: 1.0 / 3}}}, measured.micros}}
	if row.load.connections > 1 {
		figures = append(figures, reads{metric{what: "requests", unit: "1/s", goals: []Goal{{Beside: bestPeer, Times: 2, AtLeast: true}}}, measured.rate})
	}
	return r.contest(ctx, s.contest(row.name, row.load, figures...))
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
		if x.version == nil || s.running[i] == nil {
			continue
		}
		if v := x.version(); !slices.Contains(r.report.Versions.Beside, v) {
			r.report.Versions.Beside = append(r.report.Versions.Beside, v)
		}
	}
	return s, nil
}
