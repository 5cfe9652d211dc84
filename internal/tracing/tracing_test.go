package tracing

import (
	"context"
	"encoding/hex"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"pdrouter/internal/otlptest"
	"pdrouter/router/trace"
)

// start runs an exporter until the test ends. stop ends it earlier, and waits.
func start(t *testing.T, c Config) (e *Exporter, stop func()) {
	t.Helper()
	e, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.Run(ctx)
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return e, stop
}

// request makes and finishes a trace of two spans.
func request(e *Exporter, parent trace.Context) {
	at := time.Now()
	_, t := trace.Begin(e, parent, at)
	leg := new(int)
	t.Begin(leg, "prefill", trace.Client, at, trace.Attribute{Key: "server.port", Value: int64(8000)})
	t.Event(leg, "first token", at.Add(time.Millisecond))
	t.End(leg, at.Add(2*time.Millisecond), "prefill_failed")
	t.Finish("chat \xff", at.Add(3*time.Millisecond), "", trace.Attribute{Key: "empty", Value: ""}, trace.Attribute{Key: "pdrouter.prefill", Value: "p0"})
}

func find(spans []*tracepb.Span, name string) *tracepb.Span {
	for _, s := range spans {
		if s.Name == name {
			return s
		}
	}
	return new(tracepb.Span)
}

const parent = trace.Context("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\na=1")

func TestExport(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other")
	file := filepath.Join(t.TempDir(), "headers")
	if err := os.WriteFile(file, []byte("Authorization: Bearer one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{ProtocolGRPC, ProtocolHTTP} {
		t.Run(protocol, func(t *testing.T) {
			to := otlptest.Start(t)
			c := Config{Endpoint: to.GRPC, Protocol: protocol, HeadersFile: file, ServiceName: "gateway", Version: "v1"}
			if protocol == ProtocolHTTP {
				c.Endpoint = to.HTTP
			}
			e, stop := start(t, c)
			request(e, parent)
			stop()
			spans := to.Spans()
			root, leg := find(spans, "chat ?"), find(spans, "prefill")
			if len(spans) != 2 || e.Stats() != (Stats{Exported: 2}) {
				t.Fatalf("%d spans, %+v", len(spans), e.Stats())
			}
			if hex.EncodeToString(root.TraceId) != "4bf92f3577b34da6a3ce929d0e0e4736" || hex.EncodeToString(root.ParentSpanId) != "00f067aa0ba902b7" ||
				root.TraceState != "a=1" || root.Kind != tracepb.Span_SPAN_KIND_SERVER || root.EndTimeUnixNano-root.StartTimeUnixNano != 3e6 || root.Status != nil {
				t.Errorf("the request's span is %v", root)
			}
			if len(root.Attributes) != 1 || root.Attributes[0].Value.GetStringValue() != "p0" {
				t.Errorf("attributes %v; want those that say something", root.Attributes)
			}
			if string(leg.TraceId) != string(root.TraceId) || string(leg.ParentSpanId) != string(root.SpanId) || leg.Kind != tracepb.Span_SPAN_KIND_CLIENT ||
				len(leg.Events) != 1 || leg.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || leg.Attributes[0].Value.GetIntValue() != 8000 {
				t.Errorf("the leg's span is %v", leg)
			}
			if got := to.Resource(); got["service.name"] != "gateway" || got["service.version"] != "v1" || got["deployment.environment.name"] != "test" {
				t.Errorf("resource %v", got)
			}
			if got := to.Authorizations(); len(got) != 1 || got[0] != "Bearer one" {
				t.Errorf("authorization %q", got)
			}
		})
	}
}

// TestExportByEnvironment: what users of OpenTelemetry set in the environment holds where the configuration says nothing.
func TestExportByEnvironment(t *testing.T) {
	to := otlptest.Start(t)
	if (Config{}).On() {
		t.Error("traces are exported without an endpoint")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", to.HTTP)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", ProtocolHTTP)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20env")
	t.Setenv("OTEL_SERVICE_NAME", "by-env")
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
	if !(Config{}).On() {
		t.Error("OTEL_EXPORTER_OTLP_ENDPOINT does not count")
	}
	e, stop := start(t, Config{})
	request(e, parent)
	if _, sampled := trace.Begin(e, "", time.Now()); sampled != nil {
		t.Error("OTEL_TRACES_SAMPLER does not count")
	}
	stop()
	if got := to.Authorizations(); len(to.Spans()) != 2 || to.Resource()["service.name"] != "by-env" || len(got) != 1 || got[0] != "Bearer env" {
		t.Errorf("%d spans of %v by %q", len(to.Spans()), to.Resource(), got)
	}
	for name, value := range map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "none"} {
		t.Run(name, func(t *testing.T) {
			if t.Setenv(name, value); (Config{}).On() {
				t.Errorf("%s=%s does not count", name, value)
			}
		})
	}
	for name, value := range map[string]string{"OTEL_TRACES_SAMPLER": "jaeger_remote", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if _, err := New(Config{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), value) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestRotatedHeaders: the file of headers is read again, so that a credential can be replaced.
func TestRotatedHeaders(t *testing.T) {
	to := otlptest.Start(t)
	file := filepath.Join(t.TempDir(), "headers")
	e, err := New(Config{Endpoint: to.GRPC, HeadersFile: file}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.close(t.Context())
	send := func() {
		request(e, parent)
		e.send(t.Context(), []*trace.Trace{<-e.queue})
	}
	send() // there is no file yet
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte("Authorization: "+token), 0o600); err != nil {
			t.Fatal(err)
		}
		send()
	}
	if got := to.Authorizations(); len(got) != 2 || got[0] != "one" || got[1] != "two" || e.Stats() != (Stats{Exported: 4, Failed: 2}) {
		t.Errorf("authorization %q, %+v", got, e.Stats())
	}
}

// TestCollectorHangs: a collector that takes connections and does not answer holds up nothing: what does not fit into the queue is dropped and
// counted, and the exporter ends in time.
func TestCollectorHangs(t *testing.T) {
	to := otlptest.Start(t)
	to.Hold()
	e, stop := start(t, Config{Endpoint: to.GRPC})
	const n = maxQueue + 2*maxBatch
	for range n {
		request(e, parent)
	}
	if e.Stats().Dropped == 0 {
		t.Error("nothing is dropped")
	}
	stop()
	if got := e.Stats(); got.Exported != 0 || got.Dropped+got.Failed+2*uint64(len(e.queue)) < 2*n {
		t.Errorf("%+v and %d that wait, of %d spans", got, 2*len(e.queue), 2*n)
	}
}

// TestBatchOfTheEnd: a batch that is being sent when the exporter ends is sent still, if the collector takes it in time.
func TestBatchOfTheEnd(t *testing.T) {
	to := otlptest.Start(t)
	to.Hold()
	e, err := New(Config{Endpoint: to.HTTP, Protocol: ProtocolHTTP}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	for range maxBatch {
		request(e, parent)
	}
	go func() {
		defer close(ended)
		_ = e.Run(ctx)
	}()
	for to.Held() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	time.Sleep(10 * time.Millisecond) // a batch that is given up fails meanwhile
	to.Release()
	<-ended
	if got := e.Stats(); got != (Stats{Exported: 2 * maxBatch}) {
		t.Errorf("%+v", got)
	}
}

func TestCollectorRefuses(t *testing.T) {
	to := otlptest.Start(t)
	to.Refuse(true)
	e, err := New(Config{Endpoint: to.GRPC}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.close(t.Context())
	for _, refuse := range []bool{true, false} {
		to.Refuse(refuse)
		request(e, parent)
		e.send(t.Context(), []*trace.Trace{<-e.queue})
	}
	if got := e.Stats(); got != (Stats{Exported: 2, Failed: 2}) {
		t.Errorf("%+v", got)
	}
}

// TestSamples: the part of ids that is sampled is the ratio, and a larger ratio samples all that a smaller one does.
func TestSamples(t *testing.T) {
	const n = 20000
	ids := make([]trace.ID, n)
	all := &Exporter{bound: math.MaxUint64}
	for i := range ids {
		_, one := trace.Begin(all, "", time.Now())
		ids[i] = one.ID
	}
	was := map[trace.ID]bool{}
	for _, ratio := range []float64{0, .01, .5, 1} {
		e, got := &Exporter{bound: boundOf(ratio)}, 0
		for _, id := range ids {
			switch sampled := e.Samples(id); {
			case sampled:
				got++
				was[id] = true
			case was[id]:
				t.Fatalf("ratio %v does not sample what a smaller one does", ratio)
			}
		}
		if share := float64(got) / n; math.Abs(share-ratio) > 4*math.Sqrt(ratio*(1-ratio)/n) {
			t.Errorf("ratio %v samples %v", ratio, share)
		}
	}
}

func TestParseHeaders(t *testing.T) {
	got, err := ParseHeaders("\nAuthorization: Basic a:b=\r\n x-scope : 1\n")
	if err != nil || len(got) != 2 || got["authorization"] != "Basic a:b=" || got["x-scope"] != "1" {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"secret", "a b: secret", ": secret", "a:"} {
		if _, err := ParseHeaders(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}
