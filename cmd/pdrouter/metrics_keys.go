package main

import (
	"github.com/prometheus/client_golang/prometheus"
)

// keySetMetrics reads how issuers' key sets are doing whenever somebody scrapes.
type keySetMetrics struct {
	sets func() []issuerSet

	keys, age, stale, fetches, failures *prometheus.Desc
}

func newKeySetMetrics(sets func() []issuerSet) *keySetMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, []string{"audience", "issuer"}, nil)
	}
	return &keySetMetrics{
		sets:     sets,
		keys:     desc("jwks_keys", "Keys of the issuer's set that tokens can be checked with; 0 before its first good answer."),
		age:      desc("jwks_age_seconds", "Since the issuer's last good answer; missing before the first."),
		stale:    desc("jwks_stale", "1 while the issuer's set is too old to be believed: its tokens are answered with 503."),
		fetches:  desc("jwks_fetches_total", "Times the issuer was asked for its set."),
		failures: desc("jwks_fetch_failures_total", "Times it gave no good answer."),
	}
}

// Describe implements prometheus.Collector.
func (m *keySetMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.keys, m.age, m.stale, m.fetches, m.failures} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *keySetMetrics) Collect(out chan<- prometheus.Metric) {
	for _, set := range m.sets() {
		send := func(d *prometheus.Desc, t prometheus.ValueType, v float64) {
			out <- prometheus.MustNewConstMetric(d, t, v, set.audience, set.issuer)
		}
		s := set.Stats()
		send(m.keys, prometheus.GaugeValue, float64(s.Keys))
		if s.Age > 0 {
			send(m.age, prometheus.GaugeValue, s.Age.Seconds())
		}
		send(m.stale, prometheus.GaugeValue, oneIf(s.Stale))
		send(m.fetches, prometheus.CounterValue, float64(s.Fetches))
		send(m.failures, prometheus.CounterValue, float64(s.Failures))
	}
}

// reloadMetrics reads how reading credentials again is doing whenever somebody scrapes.
type reloadMetrics struct {
	stats func() reloadStats

	failures, age *prometheus.Desc
}

func newReloadMetrics(stats func() reloadStats) *reloadMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, nil, nil)
	}
	return &reloadMetrics{
		stats:    stats,
		failures: desc("credentials_reload_failures_total", "Times that a file of keys could not be read again, or not all of it."),
		age:      desc("credentials_reload_age_seconds", "Since all files of keys could be read."),
	}
}

// Describe implements prometheus.Collector.
func (m *reloadMetrics) Describe(out chan<- *prometheus.Desc) { out <- m.failures; out <- m.age }

// Collect implements prometheus.Collector.
func (m *reloadMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.stats()
	out <- prometheus.MustNewConstMetric(m.failures, prometheus.CounterValue, float64(s.Failures))
	out <- prometheus.MustNewConstMetric(m.age, prometheus.GaugeValue, s.Age.Seconds())
}
