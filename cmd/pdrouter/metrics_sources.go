package main

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// sourceMetrics reads how the sources of engines are doing whenever somebody scrapes.
type sourceMetrics struct {
	sources *sources

	engines, failures, age, stale, refused, rejects *prometheus.Desc
}

func newSourceMetrics(s *sources) *sourceMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, labels, nil)
	}
	return &sourceMetrics{
		sources:  s,
		engines:  desc("source_engines", "Engines of the list by where they come from: static, dns, file or admin.", "model", "list", "source"),
		failures: desc("source_failures_total", "Times the source of the list could not be looked at, or not be used.", "model", "list"),
		age:      desc("source_age_seconds", "Since the last good look at the source; missing before the first.", "model", "list"),
		stale:    desc("source_stale", "1 while the source cannot be believed: a name without a good answer for longer than max_stale, or a file that cannot be used.", "model", "list"),
		refused:  desc("source_refused_addresses", "Addresses of the last answer that the source does not allow.", "model", "list"),
		rejects:  desc("source_changes_failed_total", "Changes of engines that could not be taken into use; they are tried again."),
	}
}

// Describe implements prometheus.Collector.
func (m *sourceMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.engines, m.failures, m.age, m.stale, m.refused, m.rejects} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *sourceMetrics) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	type counted struct {
		listOf
		from string
	}
	count := map[counted]int{}
	for _, p := range m.sources.engines() {
		if !p.gone {
			count[counted{p.listOf, p.from}]++
		}
	}
	for at, n := range count {
		send(m.engines, prometheus.GaugeValue, float64(n), at.model, at.list, at.from)
	}
	one := func(at listOf, failures uint64, good time.Time, stale bool) {
		send(m.failures, prometheus.CounterValue, float64(failures), at.model, at.list)
		send(m.stale, prometheus.GaugeValue, oneIf(stale), at.model, at.list)
		if !good.IsZero() {
			send(m.age, prometheus.GaugeValue, time.Since(good).Seconds(), at.model, at.list)
		}
	}
	names, files, rejects := m.sources.stats()
	for at, s := range names {
		one(at, s.Failures, s.Good, s.Stale)
		send(m.refused, prometheus.GaugeValue, float64(s.Refused), at.model, at.list)
	}
	for at, s := range files {
		one(at, s.Failures, s.Good, s.Bad)
	}
	send(m.rejects, prometheus.CounterValue, float64(rejects))
}

// newAdminCounter counts requests of administrators about engines.
func newAdminCounter() (*prometheus.CounterVec, func(action string, status int)) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pdrouter_" + name, Help: help}, labels)
	}
	c := counter("admin_requests_total", "Requests to listen.admin by what was to be done and the status of the answer.", "action", "status")
	c.WithLabelValues("list", "200") // there from the start
	return c, func(action string, status int) { c.WithLabelValues(action, strconv.Itoa(status)).Inc() }
}
