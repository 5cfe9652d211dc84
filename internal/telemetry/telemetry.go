// Package telemetry is the table of the metrics that the gateway exports, and the registry that is made from the table. It is a
// leaf: it knows no part of the gateway. docs/metrics.md is written from the table.
package telemetry

import "slices"

// Kind is the type of a metric.
type Kind uint8

// The kinds of metrics.
const (
	Counter Kind = iota
	Gauge
	Histogram
)

func (k Kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

// Metric is one row of the table.
type Metric struct {
	Name   string
	Kind   Kind
	Unit   string   // of the value; "boolean" is 0 or 1, "info" is always 1
	Labels []string // every value of a label comes from the configuration or from the code, never from a client
	Help   string
	Use    string // what an operator does with it; may be empty

	// AtStart says which series of a counter or a histogram exist at 0 from the start, so that rate() sees their first event. If it
	// is empty, a series begins with its first event. It is empty for gauges.
	AtStart string
}

// Subject is a group of metrics about one thing.
type Subject struct {
	Title   string
	Intro   string
	Metrics []Metric
}

// Subjects returns the whole table. The caller owns the result.
func Subjects() []Subject {
	return slices.Concat(requests(), engines(), state())
}
