package gateway

import (
	"maps"
	"math"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pdrouter/internal/telemetry"
	"pdrouter/router/firsttoken"
	"pdrouter/router/migration"
	"pdrouter/router/report"
	"pdrouter/router/trace"
)

// metrics turns each finished request into Prometheus series. Every label has few values: models, engines, routes and
// reasons come from the configuration and the code, never from a client.
type metrics struct {
	registry *telemetry.Registry

	requests                   *prometheus.CounterVec   // model, route, outcome, status
	decisions                  *prometheus.CounterVec   // model, reason
	shadow                     *prometheus.CounterVec   // model, result
	attempts                   *prometheus.CounterVec   // model
	pairs                      *prometheus.CounterVec   // model, prefill, decode, outcome
	phases                     *prometheus.HistogramVec // model, phase
	ttft                       *prometheus.HistogramVec // model, role, engine
	tokens                     *prometheus.CounterVec   // model, kind
	predicted                  *prometheus.CounterVec   // model, by
	counted                    *prometheus.CounterVec   // model, by
	mispredicted               *prometheus.CounterVec   // model, by
	tokenIDs, firstTokens      *prometheus.CounterVec   // model, result
	transferParams             *prometheus.CounterVec   // model
	continuations              *prometheus.CounterVec   // model, result
	refusals                   *prometheus.CounterVec   // status, reason
	agentRefusals              *prometheus.CounterVec   // status, reason
	adminRequests              *prometheus.CounterVec   // action, status
	migrations, migratedTokens *prometheus.CounterVec
	migratedBytes              *prometheus.CounterVec
	migrationTimes             *prometheus.HistogramVec
	migrationGains             *prometheus.CounterVec

	models sync.Map // of *modelSeries, by name

	knows func(engine string) bool // whether series of the engine are wanted; nil: of any

	mu     sync.RWMutex
	series map[labels]*requestSeries // bounded as the series are
}

// labels are the labels of a finished request.
type labels struct {
	model, route, outcome, reason, prefill, decode string
	status                                         int
}

// requestSeries are the series that requests with the same labels add to.
type requestSeries struct {
	request, decision prometheus.Counter
	pair              prometheus.Counter    // nil if the requests had no engine
	ttft              []prometheus.Observer // of each engine; nil until a request has got a token
}

// find returns the series of a finished request.
func (m *metrics) find(s *report.Summary) *requestSeries {
	k := labels{s.Model, s.Route, s.Outcome.String(), s.Reason, s.Prefill, s.Decode, int(s.Status)}
	m.mu.RLock()
	of := m.series[k]
	m.mu.RUnlock()
	if of != nil && (of.ttft != nil || s.Phases.FirstToken == 0) {
		return of
	}
	of = &requestSeries{request: m.requests.WithLabelValues(k.model, k.route, k.outcome, strconv.Itoa(k.status)), decision: m.decisions.WithLabelValues(k.model, k.reason)}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, engine := range []string{k.prefill, k.decode} {
		if engine != "" && m.knows != nil && !m.knows(engine) {
			return of // the engine is gone: forget was called, or will be
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
	m.series[k] = of
	return of
}

// forget drops the series of an engine that is gone.
func (m *metrics) forget(engine string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.series, func(k labels, _ *requestSeries) bool { return k.prefill == engine || k.decode == engine })
	m.pairs.DeletePartialMatch(prometheus.Labels{"prefill": engine})
	m.pairs.DeletePartialMatch(prometheus.Labels{"decode": engine})
	m.ttft.DeletePartialMatch(prometheus.Labels{"engine": engine})
}

// modelSeries are the series of one model that every request adds to. A lookup by labels takes ten times as long
// as an addition.
type modelSeries struct {
	attempts, prompt, cached, output prometheus.Counter
	predictions                      [report.CachedByCount]predictionSeries
	phases                           [report.StageCount]prometheus.Observer // nil: few models have the stage
}

// predictionSeries compare what was predicted of cached tokens with what engines have counted.
type predictionSeries struct{ predicted, counted, mispredicted prometheus.Counter }

// of returns the series of a model.
func (m *metrics) of(model string) *modelSeries {
	if s, ok := m.models.Load(model); ok {
		return s.(*modelSeries)
	}
	of := &modelSeries{attempts: m.attempts.WithLabelValues(model), prompt: m.tokens.WithLabelValues(model, "prompt"),
		cached: m.tokens.WithLabelValues(model, "cached"), output: m.tokens.WithLabelValues(model, "output")}
	for by := report.CachedByEvents; by < report.CachedByCount; by++ {
		of.predictions[by] = predictionSeries{m.predicted.WithLabelValues(model, by.String()), m.counted.WithLabelValues(model, by.String()), m.mispredicted.WithLabelValues(model, by.String())}
	}
	for i := range report.StageCount {
		if i != report.StageJoin {
			of.phases[i] = m.phases.WithLabelValues(model, i.String())
		}
	}
	s, _ := m.models.LoadOrStore(model, of)
	return s.(*modelSeries)
}

// newMetrics returns the metrics of a build.
func newMetrics(version, commit string) *metrics {
	r := telemetry.New()
	r.Collect(func(out *telemetry.Scrape) { out.Set("pdrouter_build_info", 1, version, commit, runtime.Version()) })
	m := &metrics{
		registry:       r,
		series:         make(map[labels]*requestSeries),
		requests:       r.Counter("pdrouter_requests_total"),
		decisions:      r.Counter("pdrouter_routing_decisions_total"),
		shadow:         r.Counter("pdrouter_shadow_decisions_total"),
		attempts:       r.Counter("pdrouter_attempts_total"),
		pairs:          r.Counter("pdrouter_pair_requests_total"),
		phases:         r.Histogram("pdrouter_request_phase_duration_seconds"),
		ttft:           r.Histogram("pdrouter_time_to_first_token_seconds"),
		tokens:         r.Counter("pdrouter_tokens_total"),
		predicted:      r.Counter("pdrouter_predicted_cached_tokens_total"),
		counted:        r.Counter("pdrouter_counted_cached_tokens_total"),
		mispredicted:   r.Counter("pdrouter_mispredicted_cached_tokens_total"),
		tokenIDs:       r.Counter("pdrouter_prompt_token_ids_total"),
		firstTokens:    r.Counter("pdrouter_first_tokens_total"),
		transferParams: r.Counter("pdrouter_client_transfer_params_total"),
		continuations:  r.Counter("pdrouter_continuations_total"),
		refusals:       r.Counter("pdrouter_refusals_total"),
		agentRefusals:  r.Counter("pdrouter_agent_refusals_total"),
		adminRequests:  r.Counter("pdrouter_admin_requests_total"),
		migrations:     r.Counter("pdrouter_migrations_total"),
		migratedTokens: r.Counter("pdrouter_migrated_tokens_total"), migratedBytes: r.Counter("pdrouter_migrated_bytes_total"),
		migrationTimes: r.Histogram("pdrouter_migration_seconds"),
		migrationGains: r.Counter("pdrouter_migration_gained_seconds_total"),
	}
	m.expectRefusals()
	return m
}

// observe counts one finished request. It is safe for concurrent use.
func (m *metrics) observe(s report.Summary) {
	model, labeled := m.of(s.Model), m.find(&s)
	labeled.request.Inc()
	labeled.decision.Inc()
	model.attempts.Add(float64(s.Attempts))
	if labeled.pair != nil {
		labeled.pair.Inc()
	}
	if s.Continued > 0 {
		m.continuations.WithLabelValues(s.Model, "done").Add(float64(s.Continued))
	}
	if s.NotContinued != "" {
		m.continuations.WithLabelValues(s.Model, s.NotContinued).Inc()
	}
	for i, took := range s.Phases.Stages() {
		if took >= 0 {
			of := model.phases[i]
			if of == nil {
				of = m.phases.WithLabelValues(s.Model, report.Stage(i).String())
			}
			observeTraced(of, took, s.TraceID)
		}
	}
	if s.Phases.FirstToken > 0 {
		for _, of := range labeled.ttft {
			observeTraced(of, s.Phases.FirstToken, s.TraceID)
		}
	}
	model.prompt.Add(float64(s.PromptTokens))
	model.cached.Add(float64(s.CachedTokens))
	model.output.Add(float64(s.OutputTokens))
	if s.CachedBy != report.CachedNotLookedAt && s.CountedCachedTokens >= 0 {
		of, predicted, counted := &model.predictions[s.CachedBy], float64(s.PredictedCachedTokens), float64(s.CountedCachedTokens)
		of.predicted.Add(predicted)
		of.counted.Add(counted)
		of.mispredicted.Add(math.Abs(predicted - counted))
	}
	if s.Shadow != nil {
		m.shadow.WithLabelValues(s.Model, s.Shadow.Result).Inc()
	}
	if s.TokenIDs != report.TokensNone {
		m.tokenIDs.WithLabelValues(s.Model, s.TokenIDs.String()).Inc()
	}
	if s.FirstToken != firsttoken.None {
		m.firstTokens.WithLabelValues(s.Model, s.FirstToken.String()).Inc()
	}
	if s.Removed {
		m.transferParams.WithLabelValues(s.Model).Inc()
	}
}

// observeTraced adds a time to a histogram, with the trace as its exemplar if the request has one.
func observeTraced(to prometheus.Observer, took time.Duration, id *trace.ID) {
	if of, ok := to.(prometheus.ExemplarObserver); ok && id != nil {
		of.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": id.String()})
		return
	}
	to.Observe(took.Seconds())
}

// moved counts a conversation that was moved, or was not. It is safe for concurrent use.
func (m *metrics) moved(e migration.Ended) {
	m.migrations.WithLabelValues(e.Reason.String(), e.Result.String()).Inc()
	if e.Result == migration.Moved {
		m.migratedTokens.WithLabelValues(e.Reason.String()).Add(float64(e.Tokens))
		m.migratedBytes.WithLabelValues(e.Reason.String()).Add(e.Bytes)
		m.migrationTimes.WithLabelValues(e.Reason.String()).Observe(e.Took.Seconds())
	}
	if e.Reason == migration.ForRoute {
		m.gained(e)
	}
}

// gained counts what a request gained or lost by its wait for a move. It gains what the move could have taken longer.
func (m *metrics) gained(e migration.Ended) {
	switch e.Result {
	case migration.DryRun:
		m.migrationGains.WithLabelValues("predicted").Add((e.Patience - e.Predicted).Seconds())
	case migration.Moved:
		m.migrationGains.WithLabelValues("predicted").Add((e.Patience - e.Predicted).Seconds())
		m.migrationGains.WithLabelValues("measured").Add(max(0, e.Patience-e.Took).Seconds())
	default:
		m.migrationGains.WithLabelValues("lost").Add(min(e.Took, e.Patience).Seconds())
	}
}

// refused counts one request that was never admitted. It is safe for concurrent use.
func (m *metrics) refused(status int, reason string) {
	m.refusals.WithLabelValues(strconv.Itoa(status), reason).Inc()
}

// refusedAgent counts a refused request to the metadata routes.
func (m *metrics) refusedAgent(status int, reason string) {
	m.agentRefusals.WithLabelValues(strconv.Itoa(status), reason).Inc()
}
