package fleet

import (
	"math/rand/v2"
	"time"

	"pdrouter/policies"
	"pdrouter/router/openai"
)

// roomPlanner is a policy that says when engines have room for a request.
type roomPlanner interface {
	Costs(model string) bool
	OnIdle(q policies.Request, f policies.Fleet, d policies.Draw) policies.Choice
	Room(q policies.Request, f policies.Fleet, d policies.Draw, unbegun, tokens int) bool
	RoomIn(q policies.Request, f policies.Fleet, d policies.Draw) float64
}

var _ roomPlanner = (*policies.Policy)(nil)

// noteObjectives has requests of those models wait for room whose policy prices paths.
func (f *Fleet) noteObjectives(by bool) {
	planner, can := f.planner.(roomPlanner)
	for _, m := range f.Models {
		if by && can && planner.Costs(m.Name) {
			m.rooms = planner
		}
	}
}

// lookAgain is after how long the queue looks whether there is room while requests wait: there may be though no request has ended.
const lookAgain = 5 * time.Millisecond

// oneMore are the places of a model whose requests wait for room: a further one at a time, so that each is decided with what engines have by then. It is
// called also where no place is given, so a look that is to come is not put off.
func (m *Model) oneMore(running, waiting int) int {
	if now := time.Now(); waiting > 0 && !now.Before(m.looks) {
		m.looks = now.Add(lookAgain)
		if m.again == nil {
			m.again = time.AfterFunc(lookAgain, m.Queue.Update)
		} else {
			m.again.Reset(lookAgain)
		}
	}
	return running + 1
}

// RoomFor is a request that may have to wait for room at engines. End must be called when it waits no more.
type RoomFor struct {
	selection Selection
	request   policies.Request
	draw      policies.Draw // by which room is looked for
	objective policies.Objective
	idle      float64 // seconds until its first token on idle engines, as of when it came
}

// RoomFor returns what a request asks while it waits; nil if the model's requests do not wait for room.
func (f *Fleet) RoomFor(m *Model, adapter string, b *openai.Body, tenant string) *RoomFor {
	if m.rooms == nil {
		return nil
	}
	r := &RoomFor{selection: Selection{dryRun: true}, draw: policies.Draw{Random: max(1, rand.Uint64())}, objective: ObjectiveOf(b)}
	if r.objective.TTFT == 0 {
		r.objective.TTFT = m.objective.TTFT
	}
	k := &r.selection
	k.Init(f, m, b.Shape, nil, adapter, 0)
	k.Begin(Excluded{}, true)
	k.FindPrompt(b, tenant)
	r.request = k.complete(policies.Request{
		Model: m.Name, PromptTokens: b.PromptTokens(), Unsplittable: policies.Reason(b.Unsplittable), Objective: r.objective,
	})
	view, _, _ := k.view()
	r.idle = float64(m.rooms.OnIdle(r.request, view, r.draw).TTFT)
	return r
}

// The queue is locked while requests are asked whether there is room for them: for one part in askParts of the time in the mean, and for askAtOnce at
// once. More than that of one request is thought to be what else the machine did.
const askParts, askAtOnce = 4, 5 * time.Millisecond

// Ready reports whether engines have room for the request now. So many others, with so many tokens in all, have places and are not at engines yet: room
// is left for them. It is false also while asking takes too much of the time, as with very many engines. One call ends before the next begins.
func (r *RoomFor) Ready(unbegun, tokens int) (ready bool) {
	began, asked := time.Now(), &r.selection.m.asked
	if asked.Sub(began) > askParts*askAtOnce {
		return false
	}
	defer func() {
		if asked.Before(began) {
			*asked = began
		}
		*asked = asked.Add(askParts * min(time.Since(began), askAtOnce))
	}()
	defer func() {
		if recover() != nil { // what panics here does so again when the request's engines are chosen, where only that request fails
			ready = true
		}
	}()
	k := &r.selection
	k.Begin(Excluded{}, true)
	view, _, _ := k.view()
	return k.m.rooms.Room(r.request, view, r.draw, unbegun, tokens)
}

// Random is the random number by which Ready looks for room. The request's engines must be chosen by the same one, or they may be other engines.
func (r *RoomFor) Random() uint64 { return r.draw.Random }

// MaxWait is how long the request may wait, as policies.Objective.MaxWait has it.
func (r *RoomFor) MaxWait(draw uint64) (wait time.Duration, bounded bool) {
	seconds, bounded := r.objective.MaxWait(r.idle, draw)
	return time.Duration(seconds * float64(time.Second)), bounded
}

// In is after how long engines are thought to have room for the request, as policies.Policy.RoomIn has it. No call of Ready may be under way.
func (r *RoomFor) In() (after time.Duration) {
	defer func() {
		if recover() != nil { // as in Ready
			after = 0
		}
	}()
	k := &r.selection
	k.Begin(Excluded{}, true)
	view, _, _ := k.view()
	return time.Duration(k.m.rooms.RoomIn(r.request, view, r.draw) * float64(time.Second))
}

// End gives back what the request holds.
func (r *RoomFor) End() {
	if r != nil {
		r.selection.ForgetPrompt()
	}
}
