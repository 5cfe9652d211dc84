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

// noteForecasts has the engines of those models forecast whose policies price paths. What was learned before stays.
func (f *Fleet) noteForecasts(was *Fleet) {
	for _, planner := range f.planners() {
		planner, can := planner.(interface {
			Costs(model string) bool
			Objective(model string) policies.Objective
		})
		if !can {
			continue
		}
		for _, m := range f.Models {
			if m.Forecast != nil || !planner.Costs(m.Name) {
				continue
			}
			m.objective = planner.Objective(m.Name)
			if old := was.Models[m.Name]; old != nil {
				m.Forecast, m.scaling = old.Forecast, old.scaling
			}
			if m.Forecast == nil {
				m.Forecast, m.scaling = forecast.NewModel(), new(scalingSignals)
			}
		}
	}
}

// beginForecasts gives each engine the forecast of its model.
func (f *Fleet) beginForecasts() {
	for _, e := range f.Engines {
		switch of := f.Models[e.Model].Forecast; {
		case of == nil:
			e.forecast.Store(nil)
		case e.forecast.Load() == nil:
			e.forecast.Store(of.NewEngine())
		}
	}
}

// Forecast is what is forecast of the engine; nil if no policy asks for that.
func (e *Engine) Forecast() *forecast.Engine { return e.forecast.Load() }

// EngineForecast is what is forecast of an engine, for people.
type EngineForecast struct {
	Wait    float64 `json:"wait_seconds"` // until it begins with a prompt that it is given now
	Streams int     `json:"streams"`      // answers that it gives or is to give
	Prompts float64 `json:"prompts"`      // the part of its recent time in which it computed prompts
}

// ForecastAt is what is forecast of the engine; nil if no policy asks for that.
func (e *Engine) ForecastAt(now time.Time) *EngineForecast {
	f := e.Forecast()
	if f == nil {
		return nil
	}
	w := f.Work(Seconds(now))
	return &EngineForecast{w.Wait, w.Streams, w.Prompts}
}

// Demands is what is asked of the engines of those models whose policies price paths.
func (f *Fleet) Demands(now time.Time) map[string]policies.Demand {
	out := map[string]policies.Demand{}
	for name, m := range f.Models {
		if m.Forecast != nil {
			out[name] = m.Forecast.Demand(Seconds(now))
		}
	}
	return out
}

// ObjectiveOf is what a request is to keep by itself.
func ObjectiveOf(b *openai.Body) policies.Objective {
	return policies.Objective{TTFT: b.Objective.TTFT.Seconds(), ITL: b.Objective.ITL.Seconds()}
}

// LongGap is how many seconds after another a token of the model's answers is late; 0 if no policy asks for that.
func (m *Model) LongGap() float64 { return m.objective.ITL }

// forecast is what is predicted of the model's engines; nil if no policy asks for that.
func (k *Selection) forecast() *policies.Forecast {
	if k.m.Forecast == nil {
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

// HandOver is how many times as long as in the mean a hand-over from one of the model's engines to another takes.
func (m *Model) HandOver(prefill, decode int) float64 {
	return m.Forecast.HandOver(m.Prefill[prefill].Forecast(), m.Decode[decode].Forecast())
}

func works(dst []policies.Work, engines []*Engine, now float64) []policies.Work {
	for _, e := range engines {
		w := policies.Work{}
		if of := e.Forecast(); of != nil {
			w = of.Work(now)
		}
		dst = append(dst, w)
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

// unlearned is what is thought of models whose engines are not forecast.
var unlearned = forecast.NewModel()

// prices is by what the model's engines are priced.
func (m *Model) prices() *forecast.Model {
	if m.Forecast != nil {
		return m.Forecast
	}
	return unlearned
}

// ComputeSeconds is how long the model's engines take for a prompt of so many tokens none of which they have, in the mean.
func (m *Model) ComputeSeconds(tokens int) float64 { return m.prices().ComputeSeconds(tokens) }

// MoveSeconds is how long they take to hand over so many tokens, in the mean.
func (m *Model) MoveSeconds(tokens int) float64 { return m.prices().MoveSeconds(tokens) }
