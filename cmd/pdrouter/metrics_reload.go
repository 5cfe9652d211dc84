package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// configMetrics reads which configuration is in use, and how reading it again is doing, whenever somebody scrapes.
type configMetrics struct {
	stats  func() reloadCount
	digest func() string

	reloads, applied, behind, info *prometheus.Desc
}

func newConfigMetrics(stats func() reloadCount, digest func() string) *configMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, labels, nil)
	}
	return &configMetrics{
		stats: stats, digest: digest,
		reloads: desc("config_reloads_total", "Times the configuration was read again, by what became of it.", "result"),
		applied: desc("config_applied_timestamp_seconds", "When the configuration in use was taken into use."),
		behind:  desc("config_refused", "1 while the configuration in use is not the one in the file, because that has mistakes."),
		info:    desc("config_info", "Always 1; the label is a digest of the file in use.", "digest"),
	}
}

// Describe implements prometheus.Collector.
func (m *configMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.reloads, m.applied, m.behind, m.info} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *configMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.stats()
	out <- prometheus.MustNewConstMetric(m.reloads, prometheus.CounterValue, float64(s.Applied), "applied")
	out <- prometheus.MustNewConstMetric(m.reloads, prometheus.CounterValue, float64(s.Refused), "refused")
	out <- prometheus.MustNewConstMetric(m.applied, prometheus.GaugeValue, float64(s.At.UnixMilli())/float64(time.Second/time.Millisecond))
	out <- prometheus.MustNewConstMetric(m.behind, prometheus.GaugeValue, oneIf(s.Behind))
	out <- prometheus.MustNewConstMetric(m.info, prometheus.GaugeValue, 1, m.digest())
}
