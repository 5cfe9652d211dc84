package gateway

import (
	"pdrouter/internal/configfile"
	"pdrouter/internal/telemetry"
	"pdrouter/internal/tracing"
)

// openTracing makes what exports traces, if there is somewhere to export them to.
func (g *Gateway) openTracing(c configfile.Tracing, version string) (err error) {
	to := tracing.Config{Endpoint: c.Endpoint, Protocol: c.Protocol, HeadersFile: c.HeadersFile, SampleRatio: c.SampleRatio, ServiceName: c.ServiceName, Version: version}
	if !to.On() {
		return nil
	}
	if g.tracing, err = tracing.New(to, g.log); err == nil {
		g.parts.Tracer = g.tracing
	}
	return err
}

// collectTracing reports what has become of spans.
func collectTracing(out *telemetry.Scrape, s tracing.Stats) {
	out.Set("pdrouter_trace_spans_total", float64(s.Exported), "exported")
	out.Set("pdrouter_trace_spans_total", float64(s.Dropped), "dropped")
	out.Set("pdrouter_trace_spans_total", float64(s.Failed), "failed")
}
