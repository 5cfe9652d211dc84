package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/internal/shared"
)

// sharedMetrics reads what is counted of the facts that gateways tell each other whenever somebody scrapes.
type sharedMetrics struct {
	responses func() shared.FactsStats
	refused   func() uint64 // of the board of engines

	known, waiting, failures, dropped, late, behind, ignored *prometheus.Desc
}

func newSharedMetrics(responses func() shared.FactsStats, refused func() uint64) *sharedMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_shared_"+name, help, labels, nil)
	}
	return &sharedMetrics{
		responses: responses,
		refused:   refused,
		known:     desc("responses", "Stored responses that this gateway knows the engine of."),
		waiting:   desc("waiting", "Facts about stored responses that are still to be written to Redis."),
		failures:  desc("failures_total", "Reads and rounds of writes of such facts that failed."),
		dropped:   desc("dropped_total", "Such facts that no other gateway will know."),
		late:      desc("late_total", "Answers that were sent before the other gateways could know of their stored response."),
		behind:    desc("behind", "1 while such facts cannot be written."),
		ignored:   desc("refused_total", "Facts in Redis that were ignored because no gateway had signed them so.", "what"),
	}
}

// Describe implements prometheus.Collector.
func (m *sharedMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.known, m.waiting, m.failures, m.dropped, m.late, m.behind, m.ignored} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *sharedMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.responses()
	out <- prometheus.MustNewConstMetric(m.known, prometheus.GaugeValue, float64(s.Known))
	out <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(s.Waiting))
	out <- prometheus.MustNewConstMetric(m.failures, prometheus.CounterValue, float64(s.Failures))
	out <- prometheus.MustNewConstMetric(m.dropped, prometheus.CounterValue, float64(s.Dropped))
	out <- prometheus.MustNewConstMetric(m.late, prometheus.CounterValue, float64(s.Late))
	out <- prometheus.MustNewConstMetric(m.behind, prometheus.GaugeValue, oneIf(s.Behind))
	out <- prometheus.MustNewConstMetric(m.ignored, prometheus.CounterValue, float64(s.Refused), "responses")
	out <- prometheus.MustNewConstMetric(m.ignored, prometheus.CounterValue, float64(m.refused()), "engines")
}
