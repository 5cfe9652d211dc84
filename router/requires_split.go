package router

import (
	"pdrouter/policies"
	"pdrouter/router/reason"
)

// insist makes a question to the planner one whose answer is two engines, whatever the request is.
func (m *model) insist(q policies.Request) policies.Request {
	if m.conn.traits().requiresSplit {
		q.PromptTokens, q.Unsplittable = 1<<30, ""
	}
	return q
}

// insisted takes back a choice of decode alone where decode does not serve alone.
func (k *look) insisted(c policies.Choice) policies.Choice {
	if k.m.conn.traits().requiresSplit && !c.Split && c.Decode >= 0 {
		c.Decode, c.Reason = -1, policies.NoPrefill
	}
	return c
}

// servable refuses bodies that neither two engines of the model can serve together nor one alone.
func (q *admitted) servable() *httpError {
	if !q.m.conn.traits().requiresSplit || q.route.does != generate {
		return nil
	}
	if q.b.shape != shapeCompletions && q.b.shape != shapeChat { // no room is put into them, nor by SGLang's own router
		return errBadRequest(reason.BadField, "model", "The model `%s` is not served on %s.", clip(q.b.model, 256), q.route.path)
	}
	switch why := q.b.unsplittable; {
	case why == unsplitEcho, why == unsplitLogprobs, why == unsplitEmbedding, why == unsplitBestOf, why == unsplitBeam:
		return errBadRequest(reason.BadField, "", "The model `%s` does not serve requests with %s.", clip(q.b.model, 256), why)
	case q.b.choices() > 1 && (q.b.choices() > q.s.cfg.Limits.Fan || !q.b.fans(true)):
		return errBadRequest(reason.OverCap, "n", "The model `%s` does not serve so many choices with these parameters.", clip(q.b.model, 256))
	}
	return nil
}
