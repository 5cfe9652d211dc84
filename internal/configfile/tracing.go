package configfile

import (
	"errors"
	"net/url"

	"pdrouter/internal/field"
)

// Tracing exports traces of requests to an OpenTelemetry collector. It is on if an endpoint is set, here or by the variables of the
// environment that OpenTelemetry has for the keys. What stands here goes before the environment.
type Tracing struct {
	// Endpoint is the collector's URL, such as http://collector:4317; default OTEL_EXPORTER_OTLP_ENDPOINT. With https it is asked by TLS.
	Endpoint string `yaml:"endpoint"`
	Protocol string `yaml:"protocol"` // grpc or http/protobuf; default OTEL_EXPORTER_OTLP_PROTOCOL, else grpc
	// HeadersFile has headers for the collector, such as credentials: a line "name: value" for each. It is read again for each export. Default
	// OTEL_EXPORTER_OTLP_HEADERS.
	HeadersFile string `yaml:"headers_file"`
	// SampleRatio is the part of requests that are traced, from 0 to 1. A client that sends traceparent decides itself. Default by
	// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG, else 1.
	SampleRatio *float64 `yaml:"sample_ratio"`
	ServiceName string   `yaml:"service_name"` // default OTEL_SERVICE_NAME, else pdrouter
}

func (t Tracing) validate() error {
	var errs []error
	if u, err := url.Parse(t.Endpoint); t.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil) {
		errs = append(errs, field.Errorf("tracing.endpoint", "is not a URL of a collector; want one such as http://127.0.0.1:4317, without credentials"))
	}
	switch t.Protocol {
	case "", "grpc", "http/protobuf":
	default:
		errs = append(errs, field.Errorf("tracing.protocol", "is %q; want grpc or http/protobuf", t.Protocol))
	}
	if r := t.SampleRatio; r != nil && !(*r >= 0 && *r <= 1) {
		errs = append(errs, field.Errorf("tracing.sample_ratio", "is %v; want a number from 0 to 1", *r))
	}
	return errors.Join(errs...)
}
