package fleet

import (
	"time"

	"pdrouter/policies"
	"pdrouter/policies/forecast"
	"pdrouter/router/openai"
)

// epoch is the moment from which forecasts count.
var epoch = time.Now()

// At is a time as forecasts count it, as a time.
func At(since time.Duration) time.Time { return epoch.Add(since) }

// Seconds is a time as forecasts count it.
func Seconds(t time.Time) float64 { return t.Sub(epoch).Seconds() }

// notePrices notes which models' policies price paths, and what requests are to keep: as the policy that prices says, else as the first one does.
func (f *Fleet) notePrices() {
	for _, m := range f.Models {
		m.objective = policies.Default().Objective(m.Name)
		for i, planner := range f.planners() {
			planner, can := planner.(interface {
				Costs(model string) bool
				Objective(model string) policies.Objective
			})
			if !can || m.Prices {
				continue
			}
			if m.Prices = planner.Costs(m.Name); m.Prices || i == 0 {
				m.objective = planner.Objective(m.Name)
			}
		}
	}
}

// Forecast is what is forecast of the engine, whatever the policy of its model is; nil of an engine that is of no fleet.
func (e *Engine) Forecast() *forecast.Engine { return e.forecast }

// EngineForecast is what is forecast of an engine, for people.
type EngineForecast struct {
	Wait    float64 `json:"wait_seconds"` // until it begins with a prompt that it is given now
	Streams int     `json:"streams"`      // answers that it gives or is to give
	Prompts float64 `json:"prompts"`      // the part of its recent time in which it computed prompts
}

// ForecastAt is what is forecast of the engine.
func (e *Engine) ForecastAt(now time.Time) EngineForecast {
	w := e.forecast.Work(Seconds(now))
	return EngineForecast{w.Wait, w.Streams, w.Prompts}
}

// Demands is what is asked of the engines of those models whose policies price paths.
func (f *Fleet) Demands(now time.Time) map[string]policies.Demand {
	out := map[string]policies.Demand{}
	for name, m := range f.Models {
		if m.Prices {
			out[name] = m.Forecast.Demand(Seconds(now))
		}
	}
	return out
}

// ObjectiveOf is what a request is to keep by itself.
func ObjectiveOf(b *openai.Body) policies.Objective {
	return policies.Objective{TTFT: b.Objective.TTFT.Seconds(), ITL: b.Objective.ITL.Seconds()}
}

// LongGap is how many seconds after another a token of the model's answers is late.
func (m *Model) LongGap() float64 { return m.objective.ITL }

// forecast is what is predicted of the model's engines; nil unless the policy prices paths.
func (k *Selection) forecast() *policies.Forecast {
	if !k.m.Prices {
		return nil
	}
	now, f := Seconds(k.Now), new(policies.Forecast)
	if k.prompt != nil { // nearly always: a stream that goes on elsewhere has none
		f = &k.prompt.forecast
	}
	f.Pairs = k.m
	f.Prefill, f.Decode, f.Demand = works(f.Prefill[:0], k.m.Prefill, now), works(f.Decode[:0], k.m.Decode, now), k.m.Forecast.Demand(now)
	return f
}

// HandOff is how many times as long as in the mean a hand-off from one of the model's engines to another takes.
func (m *Model) HandOff(prefill, decode int) float64 {
	return m.Forecast.HandOff(m.Prefill[prefill].Forecast(), m.Decode[decode].Forecast())
}

func works(dst []policies.Work, engines []*Engine, now float64) []policies.Work {
	for _, e := range engines {
		dst = append(dst, e.forecast.Work(now))
	}
	return dst
}

// PromptTokens is how many tokens the request's prompt has, with its tools where the policy looks at prompts; an estimate.
func (k *Selection) PromptTokens(estimate int) int {
	if k.prompt != nil {
		return max(estimate, k.prompt.tokens)
	}
	return estimate
}

// ComputeSeconds is how long the model's engines take for a prompt of so many tokens none of which they have, in the mean.
func (m *Model) ComputeSeconds(tokens int) float64 { return m.Forecast.ComputeSeconds(tokens) }

// MoveSeconds is how long they take to hand over so many tokens, in the mean.
func (m *Model) MoveSeconds(tokens int) float64 { return m.Forecast.MoveSeconds(tokens) }
