// Package otlptest is for tests: a collector of OpenTelemetry that receives traces by OTLP, over gRPC and HTTP, and keeps them.
package otlptest

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Collector receives traces. Its fields may be changed before the first request.
type Collector struct {
	collectorpb.UnimplementedTraceServiceServer
	GRPC, HTTP string // the URLs of both receivers

	mu      sync.Mutex
	spans   []*tracepb.Span
	last    *tracepb.ResourceSpans
	headers []string // values of the header authorization, of each request
	refuse  bool
	hold    chan struct{} // requests wait until it is closed; nil: they do not
	held    int           // requests that have waited, or wait
}

// Start returns a collector that runs until the test ends.
func Start(t *testing.T) *Collector {
	t.Helper()
	c := new(Collector)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	c.GRPC = "http://" + ln.Addr().String()
	web := httptest.NewServer(http.HandlerFunc(c.serveHTTP))
	t.Cleanup(web.Close)
	c.HTTP = web.URL
	t.Cleanup(c.Release) // before the servers stop
	return c
}

// Refuse has the collector refuse what comes from now on, or take it again.
func (c *Collector) Refuse(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = on
}

// Hold has requests wait until Release is called.
func (c *Collector) Hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = make(chan struct{})
}

// Release ends Hold. It may be called twice.
func (c *Collector) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hold != nil {
		close(c.hold)
		c.hold = nil
	}
}

// Held is how many requests have waited for Release, or wait.
func (c *Collector) Held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// Spans returns the spans that have come.
func (c *Collector) Spans() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*tracepb.Span(nil), c.spans...)
}

// Resource returns the attributes of the process that the last spans came from.
func (c *Collector) Resource() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for _, a := range c.last.GetResource().GetAttributes() {
		out[a.Key] = a.Value.GetStringValue()
	}
	return out
}

// Authorizations returns the header authorization of each request.
func (c *Collector) Authorizations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.headers...)
}

// Export implements the service of gRPC.
func (c *Collector) Export(ctx context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	authorization := ""
	if v := md.Get("authorization"); len(v) > 0 {
		authorization = v[0]
	}
	if !c.take(ctx, r, authorization) {
		return nil, status.Error(codes.PermissionDenied, "refused")
	}
	return new(collectorpb.ExportTraceServiceResponse), nil
}

func (c *Collector) serveHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	in := new(collectorpb.ExportTraceServiceRequest)
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(b, in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if !c.take(r.Context(), in, r.Header.Get("Authorization")) {
		w.WriteHeader(http.StatusForbidden)
	}
}

func (c *Collector) take(ctx context.Context, r *collectorpb.ExportTraceServiceRequest, authorization string) bool {
	c.mu.Lock()
	hold := c.hold
	if hold != nil {
		c.held++
	}
	c.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = append(c.headers, authorization)
	if c.refuse {
		return false
	}
	for _, of := range r.ResourceSpans {
		c.last = of
		for _, scope := range of.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return true
}
