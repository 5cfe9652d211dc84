// Package tracing exports the traces of requests by OTLP, over gRPC or HTTP. It implements router/trace.Tracer and is the only package that
// links OpenTelemetry. The request path never waits for it: finished traces go into a bounded queue, one goroutine (Run) sends them, and
// what does not fit is dropped and counted.
package tracing

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"pdrouter/router/trace"
)

// Config says where traces go. What it leaves out is read from the OTEL_ variables of the environment.
type Config struct {
	Endpoint    string   // a URL; "": OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT
	Protocol    string   // grpc or http/protobuf; "": OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL, else grpc
	HeadersFile string   // a line "name: value" for each header; "": OTEL_EXPORTER_OTLP_HEADERS
	SampleRatio *float64 // of requests whose client does not decide; nil: OTEL_TRACES_SAMPLER, else 1
	ServiceName string   // "": OTEL_SERVICE_NAME, else pdrouter
	Version     string   // of the service
}

// On reports whether traces are exported: there is an endpoint, here or in the environment, and the environment does not turn them off.
func (c Config) On() bool {
	if c.Endpoint != "" {
		return true
	}
	disabled, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED"))
	return !disabled && os.Getenv("OTEL_TRACES_EXPORTER") != "none" && env("ENDPOINT") != ""
}

// env is a variable of the OTLP exporter, for traces or for all signals.
func env(name string) string {
	if v := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_" + name); v != "" {
		return v
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_" + name)
}

// Bounds of what waits and of what is sent at once. A trace has five spans as a rule, of 300 bytes each.
const (
	maxQueue   = 2048        // traces
	maxBatch   = 256         // traces
	flushEvery = time.Second // a batch that is not full is sent
	// sendTimeout is how long a batch is tried for. The client tries again until then.
	sendTimeout = 10 * time.Second
	// closeTimeout is how long Run sends for after its context has ended.
	closeTimeout = 3 * time.Second
)

// Exporter sends traces. Run must run for that.
type Exporter struct {
	config   Config
	log      *slog.Logger
	bound    uint64 // ids whose last 63 bits are below it are sampled
	resource *resourcepb.Resource
	queue    chan *trace.Trace

	client  otlptrace.Client // nil before the first batch
	headers string           // what the client was made with
	failing bool             // the last batch was not taken

	exported, dropped, failed atomic.Uint64 // spans
}

// Stats is what has become of spans since the start.
type Stats struct {
	Exported uint64 // the collector has taken them
	Dropped  uint64 // the queue was full, or their trace had too many
	Failed   uint64 // the collector was away, too slow or refused them
}

// New returns an exporter that has connected to nothing yet.
func New(c Config, log *slog.Logger) (*Exporter, error) {
	ratio, err := c.ratio()
	if err != nil {
		return nil, err
	}
	if _, err := c.newClient(""); err != nil {
		return nil, err
	}
	e := &Exporter{config: c, log: log, queue: make(chan *trace.Trace, maxQueue), bound: boundOf(ratio)}
	if e.resource, err = c.resource(); err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces", "err", err) })) // else they go to standard error
	return e, nil
}

// boundOf is what the last 63 bits of a sampled id are below: as OpenTelemetry's sampler by ratio has it, so that services with the same
// ratio sample the same traces.
func boundOf(ratio float64) uint64 {
	if ratio >= 1 {
		return math.MaxUint64
	}
	return uint64(ratio * (1 << 63))
}

// Samples implements trace.Tracer.
func (e *Exporter) Samples(id trace.ID) bool { return binary.BigEndian.Uint64(id[8:])>>1 < e.bound }

// Export implements trace.Tracer. It drops the trace if too many wait.
func (e *Exporter) Export(t *trace.Trace) {
	select {
	case e.queue <- t:
	default:
		spans, omitted := t.Spans()
		e.dropped.Add(uint64(len(spans) + omitted))
	}
}

// Stats returns what has become of spans.
func (e *Exporter) Stats() Stats {
	return Stats{Exported: e.exported.Load(), Dropped: e.dropped.Load(), Failed: e.failed.Load()}
}

// Run sends traces until ctx ends, and then for at most closeTimeout the batch that is being sent and those that wait. It always returns nil.
func (e *Exporter) Run(ctx context.Context) error {
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, cancel) })()
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	batch := make([]*trace.Trace, 0, maxBatch)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			batch = e.send(sending, batch)
		case t := <-e.queue:
			if batch = append(batch, t); len(batch) == maxBatch {
				batch = e.send(sending, batch)
			}
		}
	}
	for len(e.queue) > 0 {
		if batch = append(batch, <-e.queue); len(batch) == maxBatch {
			batch = e.send(sending, batch)
		}
	}
	e.send(sending, batch)
	e.close(sending)
	return nil
}

// send sends a batch, and returns an empty one with its memory.
func (e *Exporter) send(ctx context.Context, batch []*trace.Trace) []*trace.Trace {
	if len(batch) == 0 {
		return batch
	}
	spans := make([]*tracepb.Span, 0, 8*len(batch))
	for _, t := range batch {
		all, omitted := t.Spans()
		e.dropped.Add(uint64(omitted))
		for i := range all {
			spans = append(spans, spanOf(t, i))
		}
	}
	n := uint64(len(spans))
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	err := e.connect(ctx)
	if err == nil {
		err = e.client.UploadTraces(ctx, []*tracepb.ResourceSpans{{Resource: e.resource, ScopeSpans: []*tracepb.ScopeSpans{{Scope: scope(e.config.Version), Spans: spans}}}})
	}
	if err != nil {
		e.failed.Add(n)
	} else {
		e.exported.Add(n)
	}
	if failing := err != nil; failing != e.failing {
		if e.failing = failing; failing {
			e.log.Warn("traces are not exported", "err", err)
		} else {
			e.log.Info("traces are exported again")
		}
	}
	clear(batch)
	return batch[:0]
}

// connect makes the client, and another one if the headers have changed.
func (e *Exporter) connect(ctx context.Context) error {
	headers := ""
	if e.config.HeadersFile != "" {
		b, err := os.ReadFile(e.config.HeadersFile)
		if err != nil {
			return fmt.Errorf("tracing: %w", err)
		}
		headers = string(b)
	}
	if e.client != nil && headers == e.headers {
		return nil
	}
	next, err := e.config.newClient(headers)
	if err != nil {
		return err
	}
	if err := next.Start(ctx); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	e.close(ctx)
	e.client, e.headers = next, headers
	return nil
}

func (e *Exporter) close(ctx context.Context) {
	if e.client != nil {
		_ = e.client.Stop(ctx) // it has nothing to send
		e.client = nil
	}
}

// resource is what the spans' process is: OTEL_RESOURCE_ATTRIBUTES has more of it.
func (c Config) resource() (*resourcepb.Resource, error) {
	options := []resource.Option{ // of two that say the same, the later one counts
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "pdrouter"), attribute.String("service.version", c.Version)), resource.WithFromEnv(),
	}
	if c.ServiceName != "" {
		options = append(options, resource.WithAttributes(attribute.String("service.name", c.ServiceName)))
	}
	r, err := resource.New(context.Background(), options...)
	if err != nil {
		return nil, fmt.Errorf("tracing: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	out := new(resourcepb.Resource)
	for i := r.Iter(); i.Next(); {
		out.Attributes = append(out.Attributes, attributeOf(string(i.Attribute().Key), i.Attribute().Value.AsInterface()))
	}
	return out, nil
}

// ratio is the part of requests that is sampled whose client does not decide.
func (c Config) ratio() (float64, error) {
	if c.SampleRatio != nil {
		return *c.SampleRatio, nil
	}
	switch sampler := os.Getenv("OTEL_TRACES_SAMPLER"); sampler {
	case "", "always_on", "parentbased_always_on":
		return 1, nil
	case "always_off", "parentbased_always_off":
		return 0, nil
	case "traceidratio", "parentbased_traceidratio":
		arg := os.Getenv("OTEL_TRACES_SAMPLER_ARG")
		if arg == "" {
			return 1, nil
		}
		ratio, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return 0, fmt.Errorf("tracing: OTEL_TRACES_SAMPLER_ARG is %q; want a number from 0 to 1", arg)
		}
		return ratio, nil
	default:
		return 0, fmt.Errorf("tracing: OTEL_TRACES_SAMPLER is %q; want parentbased_traceidratio, parentbased_always_on or parentbased_always_off", sampler)
	}
}
