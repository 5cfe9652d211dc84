package fleet

import (
	"cmp"
	"sync"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/scaling"
)

// scalingSignals are what a model's signals for an autoscaler remember.
type scalingSignals struct {
	mu        sync.Mutex
	replicas  [roleCount]scaling.Replicas
	ttft, itl scaling.Latency
}

// Scaling are the signals for an autoscaler of one model.
type Scaling struct {
	Model string
	Roles []RoleScaling
	// TTFT and ITL are the 90th percentiles of the last minute over their objective; below 0 if there were none.
	TTFT, ITL float64
}

// RoleScaling are those of one role.
type RoleScaling struct {
	Role string // prefill, decode, or engines if these do both
	scaling.Load
	Wanted   int     // replicas
	Observed float64 // seconds since it was seen last how fast one of the engines is; below 0 if it never was
}

// Scalings are the signals of all models. What is wanted goes by the mean of some time: it must be asked for regularly.
func (f *Fleet) Scalings(now time.Time) (out []Scaling) {
	for _, m := range f.ordered {
		out = append(out, m.signals(now, f.health.SlowStart))
	}
	return out
}

func (m *Model) signals(at time.Time, slowStart *time.Duration) Scaling {
	now, out := Seconds(at), Scaling{Model: m.Name, TTFT: -1, ITL: -1}
	loads, seen := m.loads(at, *slowStart)
	s := m.scaling
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range roleCount {
		name := i.String()
		if m.Connector.Traits().Mode == dispatch.Alone {
			if name = "engines"; i == Prefill {
				continue
			}
		}
		out.Roles = append(out.Roles, RoleScaling{name, loads[i], s.replicas[i].Step(now, loads[i]), seen[i]})
	}
	if q, known := s.ttft.Quantile(now, .9); known {
		out.TTFT = q
	}
	if q, known := s.itl.Quantile(now, .9); known {
		out.ITL = q
	}
	return out
}

// loads are what the model's engines have to do by role, and how long ago the speed of one of them was seen.
func (m *Model) loads(at time.Time, slowStart time.Duration) (loads [roleCount]scaling.Load, seen [roleCount]float64) {
	var of [roleCount][]scaling.Engine
	of[Prefill], seen[Prefill] = scalingEngines(m.Prefill, at, slowStart)
	of[Decode], seen[Decode] = scalingEngines(m.Decode, at, slowStart)
	q := scaling.Queue{Waiting: m.Queue.Stats().Waiting, Prompt: m.Forecast.PromptSeconds()}
	loads[Prefill], loads[Decode] = scaling.Loads(of[Prefill], of[Decode], q, scaling.Objective{TTFT: m.objective.TTFT, ITL: m.objective.ITL})
	return loads, seen
}

// scalingEngines are the engines that may get requests now or later: those that drain are leaving.
func scalingEngines(engines []*Engine, at time.Time, slowStart time.Duration) (out []scaling.Engine, seen float64) {
	now := Seconds(at)
	seen = -1
	for _, e := range engines {
		if e.Draining.Load() {
			continue
		}
		of := e.forecast
		w := of.Work(now)
		s := scaling.Engine{Replica: cmp.Or(e.RankOf, e.Name), State: e.scalingState(at, slowStart), Wait: w.Wait, Prompts: of.Given(now), Streams: w.Streams}
		s.ITL, s.IdleITL = w.ITL()
		if size := e.CacheSize().Tokens(); size > 0 {
			s.KV = float64(w.Context) / float64(size)
		}
		if ago, ever := of.Observed(now); ever && (seen < 0 || ago < seen) {
			seen = ago
		}
		out = append(out, s)
	}
	return out, seen
}

func (e *Engine) scalingState(now time.Time, slowStart time.Duration) scaling.State {
	switch state, _, _ := e.State(now, slowStart); state {
	case "up":
		return scaling.Ready
	case "slow_start", Unchecked:
		return scaling.Starting
	}
	return scaling.Out
}

// ObserveTTFT notes the time to a first token. It counts against the model's objective, not a request's own: no client is to cause scaling by what
// it asks for.
func (m *Model) ObserveTTFT(at time.Time, took time.Duration) {
	m.scaling.mu.Lock()
	defer m.scaling.mu.Unlock()
	m.scaling.ttft.Add(Seconds(at), took.Seconds()/m.objective.TTFT)
}

// ObserveITL notes the mean time between the tokens of an answer in the same way.
func (m *Model) ObserveITL(at time.Time, took time.Duration) {
	m.scaling.mu.Lock()
	defer m.scaling.mu.Unlock()
	m.scaling.itl.Add(Seconds(at), took.Seconds()/m.objective.ITL)
}
