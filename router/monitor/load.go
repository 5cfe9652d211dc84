package monitor

import (
	"bytes"
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"pdrouter/router/fleet"
)

// Load is what a stock engine reports of its requests, and of the blocks for them.
type Load struct {
	Running  int     // at work
	Waiting  int     // for a place, or for KV
	deferred int     // of these, those that wait for something else than a place
	computed float64 // tokens of prompts that it has computed since its start; below 0 if it does not say
	used     int     // blocks of its KV cache that are in use, at most; below 0 if it does not say
	KVUse    float64 // the part of its KV cache that is in use, 0 to 1; below 0 if it does not say
	held     int     // tokens of KV in these blocks; below 0 if it does not say
	Expired  int     // requests whose KV a prefill engine has given up, as their leases had ended, since its start
}

// LoadAnswer is what came of asking an engine for its load.
type LoadAnswer uint8

const (
	LoadUnavailable LoadAnswer = iota // no answer came: the next sample may get one
	LoadNotReported                   // the engine does not report it
	LoadKnown
)

// loadSample is one sample of an engine's load. Its load may be read after done is closed.
type loadSample struct {
	at    time.Time // of its beginning
	done  chan struct{}
	load  Load
	tells LoadAnswer
}

// over reports whether the sample is complete.
func (g *loadSample) over() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// loads samples an engine's load. Callers that ask at the same time share one sample, which does not end with any of them. It is safe for
// concurrent use; the zero value is ready.
type loads struct {
	mu   sync.Mutex
	last *loadSample // nil before the first
}

// LoadFresh is how long a sample is fresh for every caller.
const LoadFresh = 100 * time.Millisecond

// see returns a sample of the load that is not older than LoadFresh. begin starts one, and does not wait for it.
func (k *loads) see(ctx context.Context, begin func(*loadSample)) (Load, LoadAnswer) {
	since := time.Now().Add(-LoadFresh)
	for {
		k.mu.Lock()
		g := k.last
		if g == nil || g.over() && time.Since(g.at) >= LoadFresh {
			g = k.beginLocked(begin)
		}
		k.mu.Unlock()
		select {
		case <-g.done:
		case <-ctx.Done():
			return Load{}, LoadUnavailable
		}
		if g.at.After(since) {
			return g.load, g.tells
		}
	}
}

// beginLocked begins a sample. k.mu must be held.
func (k *loads) beginLocked(begin func(*loadSample)) *loadSample {
	k.last = &loadSample{at: time.Now(), done: make(chan struct{})}
	begin(k.last)
	return k.last
}

// latest returns the latest sample that is complete, if it is not older than d.
func (k *loads) latest(d time.Duration) (Load, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if g := k.last; g != nil && g.over() && g.tells == LoadKnown && time.Since(g.at) < d {
		return g.load, true
	}
	return Load{}, false
}

// Look returns the latest sample of an engine's load that is not older than d, and has another one begin if that is older than a second. It does
// not wait.
func (m *Monitor) Look(e *fleet.Engine, d time.Duration) (Load, bool) {
	m.refresh(e, time.Second)
	return m.loads.Of(e).latest(d)
}

// silentTimes is how many times as long an engine is left alone that does not report its load.
const silentTimes = 15

// refresh has a sample of an engine's load begin if the latest one is older than d. It does not wait.
func (m *Monitor) refresh(e *fleet.Engine, d time.Duration) {
	k := m.loads.Of(e)
	k.mu.Lock()
	defer k.mu.Unlock()
	if g := k.last; g != nil {
		if !g.over() {
			return
		}
		if g.tells == LoadNotReported {
			d *= silentTimes
		}
		if time.Since(g.at) < d {
			return
		}
	}
	k.beginLocked(m.sample(e))
}

// reportsEach is the shortest time between two samples of the loads of all engines, for what reading them costs.
const reportsEach = 10 * time.Millisecond

// reportPeriod is the time between two samples of one engine's load that choices go by.
func (m *Monitor) reportPeriod() time.Duration {
	s := m.current()
	return max(s.Timeouts.Health, fleet.ReportsApart, time.Duration(len(s.Fleet.Engines))*reportsEach)
}

// report has the engine asked for its load after a health check, if that is due. It does not wait.
func (m *Monitor) report(e *fleet.Engine) {
	m.refresh(e, m.reportPeriod()*3/4) // health checks are not as far from each other as the period, but about so
}

// LatestLoad returns the latest sample of an engine's load, if it is not older than d.
func (m *Monitor) LatestLoad(e *fleet.Engine, d time.Duration) (Load, bool) {
	return m.loads.Of(e).latest(d)
}

// Load asks a stock engine for its load, or returns why it is not known.
func (m *Monitor) Load(ctx context.Context, e *fleet.Engine) (Load, LoadAnswer) {
	return m.loads.Of(e).see(ctx, m.sample(e))
}

// sample returns what begins a sample of an engine's load, which choices go by too.
func (m *Monitor) sample(e *fleet.Engine) func(*loadSample) {
	return func(g *loadSample) {
		m.tasks.Go("load sample", func() {
			defer close(g.done)
			before := e.CountLegs()
			if g.load, g.tells = m.askLoad(m.tasks.Context(), e); g.tells == LoadKnown {
				e.NoteReport(g.load.report(), before, time.Now(), m.reportPeriod()*3/2)
			}
		})
	}
}

func (m *Monitor) askLoad(ctx context.Context, e *fleet.Engine) (Load, LoadAnswer) {
	ctx, cancel := context.WithTimeout(ctx, m.current().Timeouts.SideChannelAnswer())
	defer cancel()
	status, text, err := Get(ctx, e, "/metrics", maxMetrics)
	switch {
	case err != nil || status >= 500 || status == 429:
		return Load{}, LoadUnavailable
	case status != 200:
		return Load{}, LoadNotReported
	}
	l, ok := parseLoad(text, e.SchedulerLabel())
	if !ok {
		return Load{}, LoadNotReported
	}
	return l, LoadKnown
}

// report is what the fleet is told of it.
func (l *Load) report() fleet.Report {
	return fleet.Report{Running: l.Running, Waiting: l.Waiting, Deferred: l.deferred, Held: l.held, Computed: l.computed}
}

// parseLoad reads an engine's metrics: the sum over its schedulers, or those of the one with the label. It reports false if a number
// of requests is missing.
func parseLoad(text []byte, label string) (Load, bool) {
	running, waiting, usage, expired := sampled{label: label}, sampled{label: label}, sampled{label: label}, sampled{label: label}
	deferred, computed := sampled{label: label, also: `reason="deferred"`}, sampled{label: label, also: computedHere}
	blocks, size := 0, 0
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("vllm:")) {
			continue
		}
		_ = running.add(line, "vllm:num_requests_running") || waiting.add(line, "vllm:num_requests_waiting") || usage.add(line, "vllm:kv_cache_usage_perc") ||
			expired.add(line, "vllm:nixl_num_kv_expired_reqs_total") || deferred.add(line, "vllm:num_requests_waiting_by_reason") ||
			computed.add(line, "vllm:prompt_tokens_by_source_total")
		if bytes.HasPrefix(line, []byte("vllm:cache_config_info{")) && bytes.Contains(line, []byte(label)) {
			blocks, size = blocks+labelled(line, "num_gpu_blocks"), labelled(line, "block_size")
		}
	}
	l := Load{Running: int(running.v), Waiting: int(waiting.v), deferred: int(deferred.v), used: -1, KVUse: -1, held: -1, computed: -1, Expired: int(expired.v)}
	if computed.found {
		l.computed = computed.v
	}
	if usage.found {
		l.KVUse = min(1, usage.v/float64(usage.n))
	}
	switch {
	case !usage.found:
	case usage.v == 0:
		l.used = 0
	case blocks > 0: // of several schedulers it is the sum of their parts of as many blocks each
		l.used = int(math.Ceil(usage.v * float64(blocks)))
	}
	if l.used == 0 || l.used > 0 && size > 0 && blocks <= mostCacheTokens/size {
		l.held = min(l.used, blocks) * size
	}
	return l, running.found && waiting.found
}

// computedHere is the label of prompt tokens that the engine has computed, and did not have.
const computedHere = `source="local_compute"`

// sampled adds up the samples of one metric.
type sampled struct {
	label string // that samples must have, if any
	also  string // another
	v     float64
	n     int // how many there are
	found bool
}

// add takes a line if it is a sample of the metric with a value that a count or a fraction can have.
func (s *sampled) add(line []byte, name string) bool {
	v, ok := sampleOf(line, name, s.label)
	if !ok || v >= 1<<30 && (s.also != computedHere || v >= 1<<50) || !bytes.Contains(line, []byte(s.also)) {
		return false
	}
	s.v, s.n, s.found = s.v+v, s.n+1, true
	return true
}

// sampleOf returns the value of a line if it is a sample of the metric with the label, if any, and is not below 0.
func sampleOf(line []byte, name, label string) (v float64, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(name))
	if !ok || len(rest) == 0 || rest[0] != '{' && rest[0] != ' ' {
		return 0, false
	}
	end := bytes.LastIndexByte(rest, '}') + 1
	if !bytes.Contains(rest[:end], []byte(label)) {
		return 0, false
	}
	fields := bytes.Fields(rest[end:])
	if len(fields) == 0 {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(fields[0]), 64)
	return v, err == nil && v >= 0
}
