package fleet

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"pdrouter/policies"
	"pdrouter/router/openai"
)

// Explanation says which engines a request would be given to now, and how they would be found. It has no effect.
type Explanation struct {
	Model        string          `json:"model"`
	Rule         string          `json:"rule"` // of the policy
	Split        bool            `json:"split"`
	Reason       policies.Reason `json:"reason"`
	Prefill      string          `json:"prefill,omitempty"`
	Decode       string          `json:"decode,omitempty"`
	Why          string          `json:"why"`
	PromptTokens int             `json:"prompt_tokens"`   // an estimate
	Session      bool            `json:"session"`         // something names the request's session
	Stages       []ExplainedRole `json:"stages"`          // prefill, if the request would be split, then decode
	Paths        []policies.Path `json:"paths,omitempty"` // that the request can take, by their price; of the policy cost
}

// ExplainedRole is how one engine is found.
type ExplainedRole struct {
	Role    string            `json:"role"`
	Policy  string            `json:"policy"`
	Picker  string            `json:"picker"`
	Engines []ExplainedEngine `json:"engines"`
}

// ExplainedEngine is what is known of an engine, and what became of it.
type ExplainedEngine struct {
	policies.Explained
	State     string  `json:"state"`
	Why       string  `json:"why,omitempty"`                 // it is in this state
	InFlight  int     `json:"in_flight"`                     // requests of whomever
	Elsewhere int     `json:"in_flight_elsewhere,omitempty"` // of them, those of other gateways
	Cached    int     `json:"cached_tokens"`                 // of the prompt; 0 if the policy does not look at it
	CachedBy  string  `json:"cached_by,omitempty"`           // how that is known: events (the engine's own) or estimate; "" if it is not looked at
	Backlog   int     `json:"backlog_tokens"`                // prompt tokens yet to compute; likewise
	Share     float64 `json:"share"`                         // of its part of the requests, below 1 in a slow start
	Weight    float64 `json:"weight"`
	Zone      string  `json:"zone,omitempty"`

	Unrouted *UnroutedLoad `json:"unrouted,omitempty"` // what it reports beyond what gateways have sent there; nil if it does not
}

// Movable returns the moves that can come before a request, of which engines are thought to have so many tokens. done is false if they are only explained.
type Movable func(cached func(*Engine) int) (moves []policies.Move, done bool)

// Explain explains a request. session is a hash of what names its session, 0 if nothing does; movable may be nil. It returns false if the planner cannot
// explain.
func (f *Fleet) Explain(m *Model, adapter string, b *openai.Body, session uint64, movable Movable) (Explanation, bool) {
	planner, can := f.planner.(interface {
		Explain(policies.Request, policies.Fleet, policies.Draw) (policies.Choice, []policies.Stage)
		Rule(model string) string
	})
	if !can {
		return Explanation{}, false
	}
	k := &Selection{dryRun: true}
	k.Init(f, m, b.Shape, nil, adapter, session)
	k.Begin(Excluded{}, true)
	k.FindPrompt(b, "") // nobody asks for a tenant here
	defer k.ForgetPrompt()
	q := k.complete(policies.Request{Model: m.Name, PromptTokens: b.PromptTokens(), Unsplittable: policies.Reason(b.Unsplittable), Objective: ObjectiveOf(b)})
	var stages []policies.Stage
	ask := func(v policies.Fleet) (c policies.Choice) {
		c, stages = planner.Explain(q, v, policies.Draw{Turn: m.turn.Load() + 1, Random: rand.Uint64()})
		return c
	}
	var only []policies.Path // that would be priced too if moves were made
	if movable != nil {
		moves, done := movable(k.Cached)
		k.OfferMoves(moves)
		if !done && len(moves) > 0 {
			view, _, _ := k.view()
			ask(view)
			only = pathsWithMoves(stages)
			k.OfferMoves(nil)
		}
	}
	view, _, _ := k.view()
	c := ask(view)
	if c.Decode < 0 { // as chooseInRounds
		k.panicMode = true
		view, _, _ = k.view()
		c = ask(view)
	}
	c = k.preferWarm(view, c, func(v policies.Fleet) policies.Choice {
		cold := stages
		warm := ask(v)
		if !warm.Split { // the first choice stands
			stages = cold
		}
		return warm
	})
	c = k.refuseAlone(c)
	out := Explanation{Model: m.Name, Rule: planner.Rule(m.Name), Split: c.Split, Reason: c.Reason, Why: c.Why(), PromptTokens: b.PromptTokens(), Session: session != 0}
	if c.Split {
		out.Prefill = m.Prefill[c.Prefill].Name
	}
	if c.Decode >= 0 {
		out.Decode = m.Decode[c.Decode].Name
	}
	for _, s := range stages {
		if out.Paths = append(out.Paths, s.Paths...); s.Role == policies.PathStage {
			continue
		}
		engines, seen := m.Decode, view.Decode
		if s.Role == Prefill.String() {
			engines, seen = m.Prefill, view.Prefill
		}
		role := ExplainedRole{Role: s.Role, Policy: s.Policy, Picker: s.Picker}
		for i, x := range s.Candidates {
			one := explained(x, engines[i], seen[i], k.Now, *f.health.SlowStart)
			one.CachedBy = k.cachedBy(engines[i])
			role.Engines = append(role.Engines, one)
		}
		out.Stages = append(out.Stages, role)
	}
	out.Paths = append(out.Paths, only...)
	slices.SortStableFunc(out.Paths, func(a, b policies.Path) int { return cmp.Compare(a.Price, b.Price) })
	return out, true
}

// pathsWithMoves are the paths of these stages that begin with a move. None is taken.
func pathsWithMoves(stages []policies.Stage) (paths []policies.Path) {
	for _, s := range stages {
		for _, p := range s.Paths {
			if p.Taken = false; p.Move != nil {
				paths = append(paths, p)
			}
		}
	}
	return paths
}

func explained(x policies.Explained, e *Engine, seen policies.Engine, now time.Time, slowStart time.Duration) ExplainedEngine {
	out := ExplainedEngine{Explained: x, InFlight: seen.InFlight, Elsewhere: e.Elsewhere(), Cached: seen.Cached, Backlog: seen.Backlog, Weight: 1, Unrouted: e.UnroutedAt(now)}
	out.State, out.Why, out.Share = e.State(now, slowStart)
	if p := seen.Place; p != nil {
		out.Zone = p.Zone
		if p.Weight > 0 {
			out.Weight = p.Weight
		}
	}
	return out
}
