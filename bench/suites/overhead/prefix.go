package overhead

import (
	"context"
	"fmt"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

// PrefixSuite measures a gateway with the policy that looks at prefixes.
func PrefixSuite() harness.Suite {
	return harness.Suite{Name: "route/prefix", Brief: "a gateway with policy prefix beside one with round_robin", Run: func(ctx context.Context, r *harness.Run) error {
		for _, size := range []int{1 << 10, 16 << 10, 220 << 10} {
			if err := byPrefix(ctx, r, size); err != nil {
				return err
			}
		}
		return nil
	}}
}

// byPrefix measures a gateway whose policy is prefix beside one that has round robin, with bodies of so many bytes.
func byPrefix(ctx context.Context, r *harness.Run, size int) error {
	many := 32
	if size > 100<<10 {
		many = 16
	}
	row := rowOf("vllm-nixl-pull", harness.AloneCPU, size, many, false)
	row.Name = fmt.Sprintf("gateway, %d KB c=%d", size>>10, many)
	if !r.Wants(row.Name) {
		return nil
	}
	const usual = "round_robin"
	ours, beside := gatewayBy(report.Us, "prefix"), gatewayBy(usual, usual)
	s, err := r.Open(ctx, harness.Setup{Connector: row.Connector, Where: row.Where, Prefill: 4, Decode: 4, Targets: []harness.Target{ours, beside}})
	if err != nil {
		return err
	}
	defer s.Close()
	return r.Compare(ctx, s.Comparison(row.Name, row.Load,
		harness.Reads{Metric: harness.Metric{What: rateMetric, Unit: "1/s", Goals: []report.Goal{{Beside: usual, Times: 0.9, AtLeast: true}}}, Of: harness.Measured.Rate},
		harness.Reads{Metric: harness.Metric{What: cpuMetric, Unit: "µs"}, Of: harness.Measured.Micros}))
}

// gatewayBy is pdrouter with a policy for prefill, round_robin for decode.
func gatewayBy(of, policy string) harness.Target {
	x := harness.GatewayTarget()
	x.Of = of
	x.Start = func(ctx context.Context, s *harness.Stage) (*harness.Child, error) {
		with := *s
		with.Settings += fmt.Sprintf("policy: {default: {prefill: %s, decode: round_robin}}\n", policy)
		return harness.StartGateway(ctx, &with)
	}
	return x
}
