package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/internal/limits"
)

// limitMetrics reads what the limiter has counted whenever somebody scrapes. Tenants are never labels: they are many, and
// nobody's business but theirs.
type limitMetrics struct {
	read func() limits.Stats

	limited, tenants, failures, behind *prometheus.Desc
}

func newLimitMetrics(read func() limits.Stats) *limitMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, labels, nil)
	}
	return &limitMetrics{
		read:     read,
		limited:  desc("rate_limited_total", "Requests refused because of a limit, by limit.", "limit"),
		tenants:  desc("limits_tenants", "Tenants that are counted at present."),
		failures: desc("limits_exchange_failures_total", "Exchanges of counts through Redis that failed."),
		behind:   desc("limits_alone", "1 while counts cannot be exchanged and this gateway counts alone."),
	}
}

// Describe implements prometheus.Collector.
func (m *limitMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.limited, m.tenants, m.failures, m.behind} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *limitMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.read()
	for name, n := range s.Refused {
		out <- prometheus.MustNewConstMetric(m.limited, prometheus.CounterValue, float64(n), name)
	}
	out <- prometheus.MustNewConstMetric(m.tenants, prometheus.GaugeValue, float64(s.Tenants))
	out <- prometheus.MustNewConstMetric(m.failures, prometheus.CounterValue, float64(s.Failures))
	out <- prometheus.MustNewConstMetric(m.behind, prometheus.GaugeValue, oneIf(s.Behind))
}
