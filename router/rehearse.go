package router

import (
	"fmt"

	"pdrouter/policies"
)

// Rehearsal does with a request's body what its life does with it between the edge and the engines: it is read, the policy chooses
// among engines, and the bodies of both legs are written. Nothing is sent. It is for bench, which counts what that costs: in a
// serving router it cannot be told from the sockets. It is for one goroutine.
type Rehearsal struct {
	shape           shape
	limits          bodyLimits
	planner         *policies.Policy
	fleet           policies.Fleet
	draw            policies.Draw
	h               handoff
	params          []byte
	prefill, decode []byte
}

// NewRehearsal rehearses requests for the path of a route whose requests are split, as the connector vllm-nixl-push has them.
func NewRehearsal(path string, f policies.Fleet) (*Rehearsal, error) {
	rt := routes[path]
	if rt == nil || rt.does != generate {
		return nil, fmt.Errorf("router: %q is no path of requests that are split", path)
	}
	c := coordinates{EngineID: "7d6c0000-0000-4000-8000-00000000be0c", Host: "10.0.0.1", Port: 5600, TP: 1, PP: 1, DCP: 1, Mode: "push"}.written()
	r := &Rehearsal{shape: rt.shape, limits: limitsOf(Config{}.withDefaults()), planner: policies.Default(), fleet: f}
	r.h.shape, r.h.coord = rt.shape, c
	return r, nil
}

// Legs returns the bodies of both legs, which are the rehearsal's until its next call. It fails for a body that is not split.
func (r *Rehearsal) Legs(body []byte) (prefill, decode []byte, err error) {
	b, herr := parseBody(r.shape, body, r.limits)
	if herr != nil {
		return nil, nil, herr
	}
	r.draw.Turn++
	choice := r.planner.Choose(policies.Request{Model: b.model, PromptTokens: b.promptTokens(), Unsplittable: policies.Reason(b.unsplittable)}, r.fleet, r.draw)
	if !choice.Split {
		return nil, nil, fmt.Errorf("router: the body is not split: %s", choice.Reason)
	}
	r.h.draw()
	r.params = push{}.prefillParams(r.params[:0], &r.h)
	r.prefill = b.prefill(r.prefill[:0], r.h.request, r.params)
	r.params = push{}.decodeParams(r.params[:0], &r.h)
	r.decode = b.decode(r.decode[:0], r.h.request, r.params)
	return r.prefill, r.decode, nil
}
