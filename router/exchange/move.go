package exchange

import (
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/migration"
	"pdrouter/router/report"
)

// A path can begin with a move: the conversation's KV comes to the engine that computes the prompt before the request does. The request waits for it
// like for an engine that comes back, and then engines are chosen anew: the one with the KV, or another if the move has failed. It does so once.

// moves are those that the choice of engines may begin with.
func (x *Exchange) moves() []policies.Move {
	t := x.turn
	if t == nil || !x.m.Prices || x.Sum.Attempts > 0 || x.Sum.Move != nil {
		return nil
	}
	if !t.looked {
		t.looked = true
		next := migration.NewTurn(x.m, t.adapter, x.b, x.tenant, x.selection.Session())
		t.offer = x.all.Moves.Offer(x.s.Fleet, x.m, &next, x.selection.Cached)
	}
	if t.offer == nil {
		return nil
	}
	return t.offer.Moves
}

// moveFirst begins the move that the choice begins with. It reports false if the request is not to wait for it.
func (x *Exchange) moveFirst(c policies.Choice) bool {
	move, e := x.all.Moves.Begin(x.turn.offer, c)
	x.Sum.Move = &report.Move{From: e.From, To: e.To, Tokens: e.Tokens, Predicted: e.Predicted, Patience: e.Patience, Result: e.Result.String(), Why: c.Why()}
	x.turn.move, x.turn.offer = move, nil
	return move != nil
}

// selectFirst is selectEngines. After a move that was late it leaves out the engine that had not answered, unless no other is left.
func (x *Exchange) selectFirst() (policies.Choice, policies.Fleet) {
	if t := x.turn; t != nil && t.silent != nil {
		not := x.excluded.Add(t.silent, 0)
		t.silent = nil
		if c, f := x.selectEngines(not); c.Decode >= 0 {
			return c, f
		}
	}
	return x.selectEngines(x.excluded)
}

// awaitsMove reports whether the request waits for a move.
func (x *Exchange) awaitsMove() bool { return x.turn != nil && x.turn.move != nil }

// awaitMove waits for the move, at most as long as it is worth that, unless there is an event.
func (x *Exchange) awaitMove() {
	move, began := x.turn.move, time.Now()
	timer := time.NewTimer(x.Sum.Move.Patience)
	defer timer.Stop()
	for x.armInterrupt(nil) {
		select {
		case <-move.Done:
		case <-timer.C:
		case <-x.wake:
			continue
		}
		x.endMove(migration.Late)
		x.trace().Add("move conversation", began, time.Now())
		x.deliver(envelope{e: dispatch.Event{Kind: dispatch.EvWaited}})
		return
	}
}

// endMove ends the move that the request waits for, if there is one, and notes what became of it: result if it is not over.
func (x *Exchange) endMove(result migration.Result) {
	if !x.awaitsMove() {
		return
	}
	m := x.turn.move
	x.turn.move = nil
	select {
	case <-m.Done:
		result = m.Ended.Result
	default:
		if result != migration.Late { // then it ends by itself
			m.Stop()
		}
	}
	if result == migration.Late {
		x.turn.silent = m.Asked()
	}
	x.Sum.Move.Result = result.String()
	x.Sum.Move.Took = time.Since(x.selection.Now)
}
