package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/router"
)

// healthMetrics reads which engines and pairs get requests whenever somebody scrapes.
type healthMetrics struct {
	read func() router.Stats

	state, share, ejections, panicMode, pairState, pairEjections *prometheus.Desc
}

func newHealthMetrics(read func() router.Stats) *healthMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, labels, nil)
	}
	return &healthMetrics{
		read:          read,
		state:         desc("engine_state", "1 for the state that the engine is in.", "engine", "state"),
		share:         desc("engine_share", "Part of its share of the requests that the engine may get: below 1 in a slow start, 0 while it is out.", "engine"),
		ejections:     desc("engine_ejections_total", "Times the engine was taken out though it could be reached.", "engine", "reason"),
		panicMode:     desc("panic_mode", "1 while ejected engines of the role get requests because too few others are left.", "model", "role"),
		pairState:     desc("pair_state", "1 for the state of the circuit of each pair that was ever taken out: closed, open or half_open.", "prefill", "decode", "state"),
		pairEjections: desc("pair_ejections_total", "Times a pair was taken out as transfers between its engines failed; only of pairs that were.", "prefill", "decode"),
	}
}

// Describe implements prometheus.Collector.
func (m *healthMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.state, m.share, m.ejections, m.panicMode, m.pairState, m.pairEjections} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *healthMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.read()
	for _, e := range s.Engines {
		out <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, 1, e.Name, e.State)
		out <- prometheus.MustNewConstMetric(m.share, prometheus.GaugeValue, e.Share, e.Name)
		for reason, n := range e.Ejections {
			out <- prometheus.MustNewConstMetric(m.ejections, prometheus.CounterValue, float64(n), e.Name, reason)
		}
	}
	for _, a := range s.PanicModes {
		out <- prometheus.MustNewConstMetric(m.panicMode, prometheus.GaugeValue, 1, a.Model, a.Role)
	}
	for _, p := range s.PairsOut {
		out <- prometheus.MustNewConstMetric(m.pairState, prometheus.GaugeValue, 1, p.Prefill, p.Decode, p.State)
		out <- prometheus.MustNewConstMetric(m.pairEjections, prometheus.CounterValue, float64(p.Opened), p.Prefill, p.Decode)
	}
}
