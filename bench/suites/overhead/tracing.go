package overhead

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

// TracingSuite measures what tracing costs a gateway.
func TracingSuite() harness.Suite {
	return harness.Suite{Name: "trace/overhead", Brief: "a gateway that traces 1 % of requests, or all, beside one that traces none", Run: func(ctx context.Context, r *harness.Run) error {
		for _, stream := range []bool{false, true} {
			if err := traced(ctx, r, stream); err != nil {
				return err
			}
		}
		return nil
	}}
}

// traced measures a gateway that traces beside one that does not. The collector takes what comes, in this process.
func traced(ctx context.Context, r *harness.Run, stream bool) error {
	row := rowOf("vllm-nixl-pull", harness.AloneCPU, 1<<10, 32, stream)
	if !r.Wants(row.Name) {
		return nil
	}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) }))
	defer collector.Close()
	const none, all = "not traced", "all traced"
	s, err := r.Open(ctx, harness.Setup{Connector: row.Connector, Where: row.Where, Targets: []harness.Target{
		gatewayTracing(report.Us, collector.URL, .01), gatewayTracing(none, "", 0), gatewayTracing(all, collector.URL, 1),
	}})
	if err != nil {
		return err
	}
	defer s.Close()
	return r.Compare(ctx, s.Comparison(row.Name, row.Load,
		harness.Reads{Metric: harness.Metric{What: cpuMetric, Unit: "µs", Goals: []report.Goal{{Beside: none, Times: 1.03}}}, Of: harness.Measured.Micros}))
}

// gatewayTracing is pdrouter that exports a part of its traces. No collector is none.
func gatewayTracing(of, collector string, ratio float64) harness.Target {
	x := harness.GatewayTarget()
	x.Of = of
	x.Start = func(ctx context.Context, s *harness.Stage) (*harness.Child, error) {
		with := *s
		if collector != "" {
			with.Settings += fmt.Sprintf("tracing: {endpoint: %q, protocol: http/protobuf, sample_ratio: %v}\n", collector, ratio)
		}
		return harness.StartGateway(ctx, &with)
	}
	return x
}
