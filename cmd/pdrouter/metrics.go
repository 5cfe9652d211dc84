package main

import (
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pdrouter/router/report"
)

// metrics turns each finished request into Prometheus series. Every label has few values: models, engines, routes and
// reasons come from the configuration and the code, never from a client.
type metrics struct {
	registry *prometheus.Registry

	requests  *prometheus.CounterVec   // model, route, outcome, status
	decisions *prometheus.CounterVec   // model, reason
	attempts  *prometheus.CounterVec   // model
	pairs     *prometheus.CounterVec   // model, prefill, decode, outcome
	phases    *prometheus.HistogramVec // model, phase
	ttft      *prometheus.HistogramVec // model, role, engine
	tokens    *prometheus.CounterVec   // model, kind
	removed   *prometheus.CounterVec   // model
	goneOn    *prometheus.CounterVec   // model, result
	refusals  *prometheus.CounterVec   // status, reason
	agents    *prometheus.CounterVec   // status, reason

	models sync.Map // of *modelSeries, by the model's name

	knows func(engine string) bool // whether series of the engine are wanted; nil: of any

	mu   sync.RWMutex
	ways map[way]*waySeries
}

// way is how a request went, as far as it has labels. What bounds the series bounds the ways.
type way struct {
	model, route, outcome, reason, prefill, decode string
	status                                         int
}

// waySeries are the series that requests add to which went one way, found by their labels once.
type waySeries struct {
	request, decision prometheus.Counter
	pair              prometheus.Counter    // nil if they had no engine
	ttft              []prometheus.Observer // of each engine; nil until one has got a token
}

// way returns the series of a request like s.
func (m *metrics) way(s *report.Summary) *waySeries {
	k := way{s.Model, s.Route, s.Outcome.String(), s.Reason, s.Prefill, s.Decode, s.Status}
	m.mu.RLock()
	of := m.ways[k]
	m.mu.RUnlock()
	if of != nil && (of.ttft != nil || s.Phases.FirstToken == 0) {
		return of
	}
	of = &waySeries{request: m.requests.WithLabelValues(k.model, k.route, k.outcome, strconv.Itoa(k.status)), decision: m.decisions.WithLabelValues(k.model, k.reason)}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, engine := range []string{k.prefill, k.decode} {
		if engine != "" && m.knows != nil && !m.knows(engine) {
			return of // it is gone: forget was called, or will be
		}
	}
	if k.decode != "" {
		of.pair = m.pairs.WithLabelValues(k.model, k.prefill, k.decode, k.outcome)
	}
	if s.Phases.FirstToken > 0 {
		of.ttft = []prometheus.Observer{m.ttft.WithLabelValues(k.model, "decode", k.decode)}
		if k.prefill != "" {
			of.ttft = append(of.ttft, m.ttft.WithLabelValues(k.model, "prefill", k.prefill))
		}
	}
	m.ways[k] = of
	return of
}

// forget drops the series of an engine that is gone.
func (m *metrics) forget(engine string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.ways, func(k way, _ *waySeries) bool { return k.prefill == engine || k.decode == engine })
	m.pairs.DeletePartialMatch(prometheus.Labels{"prefill": engine})
	m.pairs.DeletePartialMatch(prometheus.Labels{"decode": engine})
	m.ttft.DeletePartialMatch(prometheus.Labels{"engine": engine})
}

// modelSeries are the series of one model that every request adds to. To find them by their labels each time takes ten times as long
// as to add to them.
type modelSeries struct {
	attempts, prompt, cached, output prometheus.Counter
	phases                           [len(phaseNames)]atomic.Pointer[prometheus.Observer] // nil until one has reached it
}

// of returns the series of a model.
func (m *metrics) of(model string) *modelSeries {
	if s, ok := m.models.Load(model); ok {
		return s.(*modelSeries)
	}
	s, _ := m.models.LoadOrStore(model, &modelSeries{attempts: m.attempts.WithLabelValues(model), prompt: m.tokens.WithLabelValues(model, "prompt"),
		cached: m.tokens.WithLabelValues(model, "cached"), output: m.tokens.WithLabelValues(model, "output")})
	return s.(*modelSeries)
}

// phase returns the series of a phase of the model.
func (m *metrics) phase(s *modelSeries, model string, which int) prometheus.Observer {
	if o := s.phases[which].Load(); o != nil {
		return *o
	}
	o := m.phases.WithLabelValues(model, phaseNames[which])
	s.phases[which].Store(&o)
	return o
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
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "pdrouter", Name: name, Help: help}, labels)
	}
	m := &metrics{
		ways:      make(map[way]*waySeries),
		registry:  prometheus.NewRegistry(),
		requests:  counter("requests_total", "Finished requests by how they ended.", "model", "route", "outcome", "status"),
		decisions: counter("routing_decisions_total", "Finished requests, by the reason why each was split or was not split, or why it failed.", "model", "reason"),
		attempts:  counter("attempts_total", "Dispatches, retries included.", "model"),
		pairs:     counter("pair_requests_total", "Finished requests by the engines of their last attempt.", "model", "prefill", "decode", "outcome"),
		phases:    seconds("request_phase_duration_seconds", "Seconds that requests spent in each phase. A request counts only in the phases that it reached.", "model", "phase"),
		ttft:      seconds("time_to_first_token_seconds", "Seconds from the request's arrival to the first event of the decode engine, once for each engine that served the request.", "model", "role", "engine"),
		tokens:    counter("tokens_total", "Tokens as the engines counted them.", "model", "kind"),
		removed:   counter("client_transfer_params_total", "Requests whose own kv_transfer_params were removed.", "model"),
		goneOn:    counter("continuations_total", "Streams whose decode engine failed, by what came of going on from another: done, failed, unsupported.", "model", "result"),
		refusals:  counter("refusals_total", "Requests answered before they were admitted, by why.", "status", "reason"),
		agents:    counter("agent_refusals_total", "Requests to the metadata routes that were refused, by why.", "status", "reason"),
	}
	b := thisBuild()
	info := gauge("build_info", "Always 1. The labels name the version of pdrouter, its commit (empty if the build has no VCS data) and the version of Go.", "version", "commit", "go_version")
	info.WithLabelValues(b.Version, b.Commit, b.Go).Set(1)
	m.registry.MustRegister(info, m.requests, m.decisions, m.attempts, m.pairs, m.phases, m.ttft, m.tokens,
		m.removed, m.goneOn, m.refusals, m.agents, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observe counts one finished request. It is safe for concurrent use.
func (m *metrics) observe(s report.Summary) {
	every, like := m.of(s.Model), m.way(&s)
	like.request.Inc()
	like.decision.Inc()
	every.attempts.Add(float64(s.Attempts))
	if like.pair != nil {
		like.pair.Inc()
	}
	if s.Continued > 0 {
		m.goneOn.WithLabelValues(s.Model, "done").Add(float64(s.Continued))
	}
	if s.NotContinued != "" {
		m.goneOn.WithLabelValues(s.Model, s.NotContinued).Inc()
	}
	for i, took := range spent(s.Phases) {
		if took >= 0 {
			m.phase(every, s.Model, i).Observe(took.Seconds())
		}
	}
	if s.Phases.FirstToken > 0 {
		for _, of := range like.ttft {
			of.Observe(s.Phases.FirstToken.Seconds())
		}
	}
	every.prompt.Add(float64(s.PromptTokens))
	every.cached.Add(float64(s.CachedTokens))
	every.output.Add(float64(s.OutputTokens))
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

// phaseNames are the parts of a request's life, in their order.
var phaseNames = [...]string{"admit", "queue", "plan", "pair", "prefill", "transfer", "first_token", "stream"}

// spent turns the instants of a request, counted from its arrival, into the time each phase took by itself. A phase
// that was not reached has a negative time; one that overlaps its forerunner counts from the forerunner's end, at least 0.
func spent(p report.Phases) [len(phaseNames)]time.Duration {
	out := [...]time.Duration{p.Admit, p.Queue, p.Plan, p.Pair, p.Prefill, p.Transfer, p.FirstToken, p.Total}
	last := time.Duration(0)
	for i, at := range out {
		if out[i] = -1; at > 0 {
			out[i] = max(0, at-last)
			last = max(last, at)
		}
	}
	return out
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}
