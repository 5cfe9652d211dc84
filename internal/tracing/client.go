package tracing

import (
	"fmt"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
)

// The protocols of OTLP.
const (
	ProtocolGRPC = "grpc"
	ProtocolHTTP = "http/protobuf"
)

// newClient returns a client that has not connected. headers is the content of the file of headers.
func (c Config) newClient(headers string) (otlptrace.Client, error) {
	fields, err := ParseHeaders(headers)
	if err != nil {
		return nil, err
	}
	protocol := c.Protocol
	if protocol == "" {
		protocol = env("PROTOCOL")
	}
	switch protocol {
	case "", ProtocolGRPC:
		var options []otlptracegrpc.Option
		if c.Endpoint != "" {
			options = append(options, otlptracegrpc.WithEndpointURL(c.Endpoint))
		}
		if len(fields) > 0 {
			options = append(options, otlptracegrpc.WithHeaders(fields))
		}
		return otlptracegrpc.NewClient(options...), nil
	case ProtocolHTTP:
		var options []otlptracehttp.Option
		if c.Endpoint != "" {
			options = append(options, otlptracehttp.WithEndpointURL(c.Endpoint))
			if u, err := url.Parse(c.Endpoint); err == nil && strings.Trim(u.Path, "/") == "" {
				options = append(options, otlptracehttp.WithURLPath("/v1/traces"))
			}
		}
		if len(fields) > 0 {
			options = append(options, otlptracehttp.WithHeaders(fields))
		}
		return otlptracehttp.NewClient(options...), nil
	}
	return nil, fmt.Errorf("tracing: OTEL_EXPORTER_OTLP_PROTOCOL is %q; want %s or %s", protocol, ProtocolGRPC, ProtocolHTTP)
}

// ParseHeaders reads a file of headers: a line "name: value" for each. Empty lines are skipped. An error does not show the values.
func ParseHeaders(text string) (map[string]string, error) {
	fields := map[string]string{}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		if !ok || name == "" || value == "" || strings.ContainsAny(name, " \t\"(),/:;<=>?@[\\]{}") {
			return nil, fmt.Errorf("tracing: line %d of the headers is not name: value", i+1)
		}
		fields[name] = value
	}
	return fields, nil
}
