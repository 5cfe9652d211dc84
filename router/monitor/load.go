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
	Running int     // at work
	Waiting int     // for a place, or for KV
	used    int     // blocks of its KV cache that are in use, at most; below 0 if it does not say
	KVUse   float64 // the part of its KV cache that is in use, 0 to 1; below 0 if it does not say
	Expired int     // requests whose KV a prefill engine has given up, as their leases had ended, since its start
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
			g = &loadSample{at: time.Now(), done: make(chan struct{})}
			k.last = g
			begin(g)
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
	k := m.loads.Of(e)
	if k.stale(time.Second) {
		m.tasks.Go("look at load", func() { m.Load(m.tasks.Context(), e) })
	}
	return k.latest(d)
}

// stale reports whether no sample is under way, and none has begun for so long.
func (k *loads) stale(d time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last == nil || k.last.over() && time.Since(k.last.at) >= d
}

// LatestLoad returns the latest sample of an engine's load, if it is not older than d.
func (m *Monitor) LatestLoad(e *fleet.Engine, d time.Duration) (Load, bool) {
	return m.loads.Of(e).latest(d)
}

// Load asks a stock engine for its load, or returns why it is not known.
func (m *Monitor) Load(ctx context.Context, e *fleet.Engine) (Load, LoadAnswer) {
	return m.loads.Of(e).see(ctx, func(g *loadSample) {
		m.tasks.Go("load sample", func() {
			defer close(g.done)
			g.load, g.tells = m.askLoad(m.tasks.Context(), e)
		})
	})
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

// parseLoad reads an engine's metrics: the sum over its schedulers, or those of the one with the label. It reports false if a number
// of requests is missing.
func parseLoad(text []byte, label string) (Load, bool) {
	running, waiting, usage, expired := sampled{label: label}, sampled{label: label}, sampled{label: label}, sampled{label: label}
	blocks := 0
	for line := range bytes.Lines(text) {
		_ = running.add(line, "vllm:num_requests_running") || waiting.add(line, "vllm:num_requests_waiting") || usage.add(line, "vllm:kv_cache_usage_perc") ||
			expired.add(line, "vllm:nixl_num_kv_expired_reqs_total")
		if bytes.HasPrefix(line, []byte("vllm:cache_config_info{")) && bytes.Contains(line, []byte(label)) {
			blocks += labelled(line, "num_gpu_blocks")
		}
	}
	l := Load{Running: int(running.v), Waiting: int(waiting.v), used: -1, KVUse: -1, Expired: int(expired.v)}
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
	return l, running.found && waiting.found
}

// sampled adds up the samples of one metric.
type sampled struct {
	label string // that samples must have, if any
	v     float64
	n     int // how many there are
	found bool
}

// add takes a line if it is a sample of the metric with a value that a count or a fraction can have.
func (s *sampled) add(line []byte, name string) bool {
	v, ok := sampleOf(line, name, s.label)
	if !ok || v >= 1<<30 {
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
