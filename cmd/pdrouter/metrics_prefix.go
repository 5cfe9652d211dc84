package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/router"
)

// prefixMetrics reads the index of prefixes whenever somebody scrapes, where there is one.
type prefixMetrics struct {
	read func() router.Stats

	entries, bytes, lookups, hits, evicted *prometheus.Desc
}

func newPrefixMetrics(read func() router.Stats) *prefixMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_prefix_"+name, help, nil, nil)
	}
	return &prefixMetrics{
		read:    read,
		entries: desc("entries", "Pieces of prompts that are remembered with the engines that were given them."),
		bytes:   desc("bytes", "Memory for them, whether it was touched or not."),
		lookups: desc("lookups_total", "Pieces of prompts that were looked up in the index."),
		hits:    desc("hits_total", "Pieces of prompts that the index had for some engine, chosen or not."),
		evicted: desc("evicted_total", "Pieces that were forgotten to make room."),
	}
}

// Describe implements prometheus.Collector.
func (m *prefixMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.entries, m.bytes, m.lookups, m.hits, m.evicted} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *prefixMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.read().Prefixes
	if s == nil {
		return
	}
	out <- prometheus.MustNewConstMetric(m.entries, prometheus.GaugeValue, float64(s.Links))
	out <- prometheus.MustNewConstMetric(m.bytes, prometheus.GaugeValue, float64(s.Bytes))
	out <- prometheus.MustNewConstMetric(m.lookups, prometheus.CounterValue, float64(s.Looked))
	out <- prometheus.MustNewConstMetric(m.hits, prometheus.CounterValue, float64(s.Known))
	out <- prometheus.MustNewConstMetric(m.evicted, prometheus.CounterValue, float64(s.Evicted))
}
