package main

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pdrouter/router"
)

// metrics turns each finished request into Prometheus series. Every label has few values: models, engines, routes and
// reasons come from the configuration and the code, never from a client.
type metrics struct {
	registry *prometheus.Registry

	requests *prometheus.CounterVec   // model, route, outcome, status
	choices  *prometheus.CounterVec   // model, reason
	attempts *prometheus.CounterVec   // model
	pairs    *prometheus.CounterVec   // model, prefill, decode, outcome
	phases   *prometheus.HistogramVec // model, phase
	ttft     *prometheus.HistogramVec // model, prefill, decode
	tokens   *prometheus.CounterVec   // model, kind
	removed  *prometheus.CounterVec   // model
	goneOn   *prometheus.CounterVec   // model, result
	refusals *prometheus.CounterVec   // status, reason
	agents   *prometheus.CounterVec   // status, reason
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "pdrouter", Name: name, Help: help}, labels)
	}
	seconds := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "pdrouter", Name: name, Help: help,
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: counter("requests_total", "Finished requests by how they ended.", "model", "route", "outcome", "status"),
		choices:  counter("choices_total", "Finished requests by why they were split or not, or why they failed.", "model", "reason"),
		attempts: counter("attempts_total", "Dispatches, retries included.", "model"),
		pairs:    counter("pair_requests_total", "Finished requests by the engines of their last attempt.", "model", "prefill", "decode", "outcome"),
		phases:   seconds("phase_seconds", "Time spent in each phase of a request that reached it.", "model", "phase"),
		ttft:     seconds("first_token_seconds", "Arrival to decode's first event.", "model", "prefill", "decode"),
		tokens:   counter("tokens_total", "Tokens as the engines counted them.", "model", "kind"),
		removed:  counter("client_transfer_params_total", "Requests whose own kv_transfer_params were removed.", "model"),
		goneOn:   counter("continuations_total", "Streams whose decode engine failed, by what came of going on from another: done, failed, unsupported.", "model", "result"),
		refusals: counter("refusals_total", "Requests answered before they were admitted, by why.", "status", "reason"),
		agents:   counter("agent_refusals_total", "Requests to the metadata routes that were refused, by why.", "status", "reason"),
	}
	m.registry.MustRegister(m.requests, m.choices, m.attempts, m.pairs, m.phases, m.ttft, m.tokens,
		m.removed, m.goneOn, m.refusals, m.agents, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observe counts one finished request. It is safe for concurrent use.
func (m *metrics) observe(s router.Summary) {
	m.requests.WithLabelValues(s.Model, s.Route, string(s.Outcome), strconv.Itoa(s.Status)).Inc()
	m.choices.WithLabelValues(s.Model, s.Reason).Inc()
	m.attempts.WithLabelValues(s.Model).Add(float64(s.Attempts))
	if s.Decode != "" {
		m.pairs.WithLabelValues(s.Model, s.Prefill, s.Decode, string(s.Outcome)).Inc()
	}
	if s.Continued > 0 {
		m.goneOn.WithLabelValues(s.Model, "done").Add(float64(s.Continued))
	}
	if s.NotContinued != "" {
		m.goneOn.WithLabelValues(s.Model, s.NotContinued).Inc()
	}
	for _, p := range spent(s.Phases) {
		m.phases.WithLabelValues(s.Model, p.name).Observe(p.took.Seconds())
	}
	if s.Phases.FirstToken > 0 {
		m.ttft.WithLabelValues(s.Model, s.Prefill, s.Decode).Observe(s.Phases.FirstToken.Seconds())
	}
	m.tokens.WithLabelValues(s.Model, "prompt").Add(float64(s.PromptTokens))
	m.tokens.WithLabelValues(s.Model, "cached").Add(float64(s.CachedTokens))
	m.tokens.WithLabelValues(s.Model, "output").Add(float64(s.OutputTokens))
	if s.Removed {
		m.removed.WithLabelValues(s.Model).Inc()
	}
}

// refused counts one request that was never admitted. It is safe for concurrent use.
func (m *metrics) refused(status int, reason string) {
	m.refusals.WithLabelValues(strconv.Itoa(status), reason).Inc()
}

// refusedAgent counts a refused request to the metadata routes.
func (m *metrics) refusedAgent(status int, reason string) {
	m.agents.WithLabelValues(strconv.Itoa(status), reason).Inc()
}

// phase is one part of a request's life and how long it took by itself.
type phase struct {
	name string
	took time.Duration
}

// spent turns the instants of a request, counted from its arrival, into the time each phase took by itself. A phase
// that was not reached is left out; one that overlaps its forerunner counts from the forerunner's end, at least 0.
func spent(p router.Phases) []phase {
	out := make([]phase, 0, 8)
	last := time.Duration(0)
	for _, at := range []phase{
		{"admit", p.Admit}, {"queue", p.Queue}, {"plan", p.Plan}, {"pair", p.Pair}, {"prefill", p.Prefill}, {"transfer", p.Transfer},
		{"first_token", p.FirstToken}, {"stream", p.Total},
	} {
		if at.took <= 0 {
			continue
		}
		out = append(out, phase{at.name, max(0, at.took-last)})
		last = max(last, at.took)
	}
	return out
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}
