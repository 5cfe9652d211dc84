package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/router"
)

// pressureMetrics reads the queues and the retries of every model whenever somebody scrapes.
type pressureMetrics struct {
	read func() router.Stats

	running, places, waiting, waited, denied, retries *prometheus.Desc
}

func newPressureMetrics(read func() router.Stats) *pressureMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, append([]string{"model"}, labels...), nil)
	}
	return &pressureMetrics{
		read:    read,
		running: desc("queue_in_flight", "Requests that have a place with the model's engines."),
		places:  desc("queue_places", "How many may have one."),
		waiting: desc("queue_waiting", "Requests that wait for a place."),
		waited:  desc("queue_waited_total", "Requests that had to wait for a place."),
		denied:  desc("queue_denied_total", "Requests that got no place, by why.", "reason"),
		retries: desc("retries_total", "Retries that were begun, and requests that failed because there might be no more.", "result"),
	}
}

// Describe implements prometheus.Collector.
func (m *pressureMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.running, m.places, m.waiting, m.waited, m.denied, m.retries} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *pressureMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.read()
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for _, q := range s.Queues {
		tell(m.running, prometheus.GaugeValue, float64(q.InFlight), q.Model)
		tell(m.places, prometheus.GaugeValue, float64(q.Places), q.Model)
		tell(m.waiting, prometheus.GaugeValue, float64(q.Waiting), q.Model)
		tell(m.waited, prometheus.CounterValue, float64(q.Waited), q.Model)
		for why, n := range q.Denied {
			tell(m.denied, prometheus.CounterValue, float64(n), q.Model, why)
		}
	}
	for _, r := range s.Retries {
		tell(m.retries, prometheus.CounterValue, float64(r.Made), r.Model, "made")
		tell(m.retries, prometheus.CounterValue, float64(r.Refused), r.Model, "refused")
	}
}
