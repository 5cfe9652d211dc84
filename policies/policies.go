// Package policies reads policy files and chooses the engines of a request. It owns the split rule (is this request worth handing
// off?) and the choice of a prefill and a decode engine among those that may be used.
//
// A role's engine is chosen in four steps. The candidates are the engines that may be used and, where two are needed, that have a
// partner (candidates.go). Filters leave some of them out. Engines that are to get less than others, because they are new or have a
// weight, get their part (part.go). Scorers rate the rest, and a picker takes one (role.go). registry.go names all filters, scorers,
// pickers, and the presets that are made of them: to add one, write it in a file of its own and name it there.
//
// It does not know what an engine is beyond the fields of Engine, and it keeps no state: a choice is a pure function of the request, a
// snapshot of the fleet and a draw. Package router/fleet calls Policy.Choose, several times per attempt of a request where engines are out or unproven, from any
// goroutine.
package policies

// Engine is what a choice may know of one engine.
type Engine struct {
	Name   string
	Usable bool // healthy, and not tried before by the same request
	Out    bool // its latest requests have failed: it is usable only because too many engines are out
	// Adapter is for scorers that look at adapters alone, as far as the engine says.
	Adapter  AdapterState
	InFlight int // requests that it has, as far as is known, whoever has sent them
	// Share is how much of its part of the requests it may get, in 0..1: little while it is new. 0 means 1.
	Share float64
	Place *Placement // nil: nothing is known
	// Backlog and Cached are for the scorers that look at prefixes alone, and may be 0 where no rule has one.
	Backlog int // tokens of prompts that the engine was given and has yet to compute, as far as is known
	Cached  int // tokens from the beginning of this request's prompt that its prefix cache is thought to hold
}

// Placement is what the configuration says of an engine for policies.
type Placement struct {
	// Weight is the part of the requests that it is to get, beside engines of the same role. 0 means 1.
	Weight float64
	Zone   string // where it runs; "" if that is not known
	// PromptTokens are the fewest and the most tokens of prompts that it is meant for; a most of 0 has no bound.
	PromptTokens [2]int
}

func (e *Engine) zone() string {
	if e.Place == nil {
		return ""
	}
	return e.Place.Zone
}

// Fleet is a snapshot of the engines that serve one model. Choose only reads it.
type Fleet struct {
	Prefill []Engine
	Decode  []Engine
	// Pairable says whether Prefill[p] can hand KV blocks to Decode[d]; nil means that every pair can.
	// It is called several times per choice and must not block.
	Pairable func(p, d int) bool
	// Troubled says of Prefill[p] and Decode[d] that their hand-offs are slow, or that Decode[d] computes what it should receive; nil: that is
	// so of none. It is asked by the filter hand_off, and must not block.
	Troubled func(p, d int) bool
	Forecast *Forecast // for the policy cost; nil: nothing is known
}

// Request is what a choice may know of one request.
type Request struct {
	Model        string
	PromptTokens int // an estimate will do: bytes/4
	// AnyLength says that the question is about prompts in general: each is worth a split and fits every engine.
	AnyLength bool
	// Pinned says that only one engine may serve the request, whatever it is like: filters are not asked.
	Pinned bool
	// MustSplit says that decode engines serve no request alone, however short it is.
	MustSplit bool
	// Unsplittable says why one hand-off cannot serve this request; "" means that it can.
	Unsplittable Reason
	// Session is a hash of what names the request's session, the same for each of its requests; 0: it has no name.
	Session uint64
	// Objective is what this request is to keep, for the policy cost; what is 0 is the rule's.
	Objective Objective
}

// Draw is the chance of one decision, so that Choose itself has none.
type Draw struct {
	Turn   uint64 // grows by one per decision for the same model: round robin, and the order among equals
	Random uint64 // uniform over all 64 bits
}

// Reason is the short, stable name of why a request was split or not: a metric's label and a header's value.
type Reason string

// The reasons that this package gives. The router adds its own through Request.Unsplittable.
const (
	Split       Reason = "split"        // prefill and decode on two engines
	ShortPrompt Reason = "short_prompt" // below split.min_prompt_tokens
	NoPrefill   Reason = "no_prefill"   // no prefill engine may be used
	NoPair      Reason = "no_pair"      // some may be used, none of them with a decode engine that may be used
	NoDecode    Reason = "no_decode"    // no decode engine may be used
	Aggregated  Reason = "aggregated"   // for Request.Unsplittable: the model's engines hand nothing off
	Cheaper     Reason = "cheaper"      // the policy cost found that decode alone costs less
)

// Choice is the outcome of one decision.
type Choice struct {
	Split  bool
	Move   uint8   // which of Forecast.Moves comes first, counted from 1; 0: none
	TTFT   float32 // seconds to the first token, as the policy cost predicts; 0: nothing is predicted
	Breaks float32 // objectives that are thought to be missed because of the choice, this request's and those of streams; likewise
	// Patience is how many seconds the move may take until the request would do as well without it.
	Patience float32
	Prefill  int // index into Fleet.Prefill; -1: none
	Decode   int // index into Fleet.Decode; -1: the request cannot be served, Reason says why
	Reason   Reason

	why why
}

// Why says for people how the engines were found, such as "prefill least_load 0<2 · decode round_robin".
// It is built at each call, so that a choice nobody asks about costs no allocation.
func (c Choice) Why() string { return c.why.text(c) }
