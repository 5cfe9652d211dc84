package main

import (
	"github.com/prometheus/client_golang/prometheus"

	metahandshake "pdrouter/metadata/handshake"
	"pdrouter/router"
)

// routerMetrics reads what the router knows whenever somebody scrapes. Its labels are names of the configuration.
type routerMetrics struct {
	read func() router.Stats

	requests, up, engineRequests, followed    *prometheus.Desc
	pairReady, unpairable, pairsReady, parked *prometheus.Desc
	queued, shaking, handshakes, took         *prometheus.Desc
	blocks, bytes, leaks, foreign             *prometheus.Desc
	leakedBlocks, reclaims, panics            *prometheus.Desc
	background, bodyBytes, unresolvedBlocks   *prometheus.Desc
}

func newRouterMetrics(read func() router.Stats) *routerMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pdrouter_"+name, help, labels, nil)
	}
	return &routerMetrics{
		read:             read,
		requests:         desc("requests_in_flight", "Requests under way."),
		up:               desc("engine_up", "1 unless the engine is down.", "engine"),
		engineRequests:   desc("engine_requests_in_flight", "Legs that the engine works on.", "engine"),
		followed:         desc("engine_events", "1 while the engine's event stream is open; only engines with control routes.", "engine"),
		pairReady:        desc("pair_ready", "1 if both engines are up and know each other.", "prefill", "decode"),
		pairsReady:       desc("pairs_ready", "Pairs whose engines are both up and know each other."),
		parked:           desc("pairs_waiting", "Requests parked until their pair has shaken hands."),
		unpairable:       desc("unpairable", "1 for each pair that cannot exchange KV blocks, and why.", "prefill", "decode", "reason"),
		queued:           desc("pair_handshakes_queued", "Handshakes that wait for their turn."),
		shaking:          desc("pair_handshakes_in_flight", "Handshakes under way."),
		handshakes:       desc("pair_handshakes_total", "Handshakes by how they ended.", "outcome"),
		took:             desc("pair_handshake_seconds", "Time of each handshake that began, however it ended."),
		blocks:           desc("kv_blocks_total", "KV blocks that consumer ranks got whole, connector kvplane.", "prefill", "decode"),
		leaks:            desc("kv_leaks_total", "Requests that left KV blocks with a stock engine, until the lease ends or until the engine restarts."),
		leakedBlocks:     desc("leaked_kv_blocks", "KV blocks that a stock engine still holds for requests that have ended, by the reason why they cannot be freed. An estimate.", "engine", "why"),
		unresolvedBlocks: desc("unresolved_kv_blocks", "KV blocks that a stock engine may hold for nobody: nothing has shown yet whether it does. Never more than the engine says that it uses.", "engine"),
		reclaims:         desc("reclaims_total", "KV that an ending had left with a stock engine and that came free, by how it ended and what freed it.", "ending", "by"),
		panics:           desc("background_panics_total", "Panics of what runs beside requests; each is a fault of pdrouter, and was begun anew."),
		bodyBytes:        desc("request_body_bytes", "Bytes of memory that request bodies occupy; limits.body_memory bounds them."),
		foreign:          desc("foreign_reports_total", "Reports of transfers that were not their sender's to make; none is believed."),
		background:       desc("background_responses", "Background responses that count against their callers' limits."),
		bytes:            desc("kv_bytes_total", "KV bytes written, connector kvplane.", "prefill", "decode"),
	}
}

// Describe implements prometheus.Collector.
func (m *routerMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.up, m.engineRequests, m.followed, m.pairReady,
		m.unpairable, m.pairsReady, m.parked, m.queued, m.shaking, m.handshakes, m.took, m.blocks, m.bytes, m.leaks, m.leakedBlocks, m.reclaims, m.panics, m.foreign, m.background, m.bodyBytes, m.unresolvedBlocks} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *routerMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := m.read()
	gauge(m.requests, float64(s.Requests))
	gauge(m.background, float64(s.Background))
	out <- prometheus.MustNewConstMetric(m.leaks, prometheus.CounterValue, float64(s.Leaked))
	gauge(m.bodyBytes, float64(s.BodyBytes))
	out <- prometheus.MustNewConstMetric(m.panics, prometheus.CounterValue, float64(s.Panics))
	out <- prometheus.MustNewConstMetric(m.foreign, prometheus.CounterValue, float64(s.Foreign))
	for _, c := range s.Reclaimed {
		out <- prometheus.MustNewConstMetric(m.reclaims, prometheus.CounterValue, float64(c.Count), c.Ending, c.By)
	}
	for _, e := range s.Engines {
		for why, n := range e.Leaked {
			gauge(m.leakedBlocks, float64(n), e.Name, why)
		}
		if e.MaybeLeaked > 0 {
			gauge(m.unresolvedBlocks, float64(e.MaybeLeaked), e.Name)
		}
		gauge(m.up, oneIf(e.Up), e.Name)
		gauge(m.engineRequests, float64(e.InFlight), e.Name)
		if e.Events != nil {
			gauge(m.followed, oneIf(*e.Events), e.Name)
		}
	}
	ready := 0.0
	for _, p := range s.Pairs {
		is := oneIf(p.Pairable && p.Warm)
		ready += is
		gauge(m.pairReady, is, p.Prefill, p.Decode)
		if p.Reason != "" {
			gauge(m.unpairable, 1, p.Prefill, p.Decode, p.Reason)
		}
	}
	gauge(m.pairsReady, ready)
	for _, p := range s.Moved {
		out <- prometheus.MustNewConstMetric(m.blocks, prometheus.CounterValue, float64(p.Blocks), p.Prefill, p.Decode)
		out <- prometheus.MustNewConstMetric(m.bytes, prometheus.CounterValue, float64(p.Bytes), p.Prefill, p.Decode)
	}
	m.collectHandshakes(out, s.Handshakes)
}

// collectHandshakes reports the registry of pairs. Every outcome is there from the start.
func (m *routerMetrics) collectHandshakes(out chan<- prometheus.Metric, s metahandshake.Stats) {
	for _, g := range []struct {
		desc *prometheus.Desc
		n    int
	}{{m.parked, s.Waiting}, {m.queued, s.Queued}, {m.shaking, s.InFlight}} {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.n))
	}
	out <- prometheus.MustNewConstMetric(m.handshakes, prometheus.CounterValue, float64(s.Done), "done")
	for why, n := range s.Failed {
		out <- prometheus.MustNewConstMetric(m.handshakes, prometheus.CounterValue, float64(n), metahandshake.Failure(why).String())
	}
	buckets := make(map[float64]uint64, len(s.Took.Up))
	for i, bound := range metahandshake.TookBounds() {
		buckets[bound.Seconds()] = s.Took.Up[i]
	}
	out <- prometheus.MustNewConstHistogram(m.took, s.Took.Count, s.Took.Sum.Seconds(), buckets)
}

func oneIf(v bool) float64 {
	if v {
		return 1
	}
	return 0
}
