package edge

import (
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// servable refuses bodies that neither two engines of the model can serve together nor one alone.
func (q *request) servable() *openai.Error {
	if !q.Model.Connector.Traits().RequiresSplit || q.route.does != generate {
		return nil
	}
	if q.Body.Shape != openai.ShapeCompletions && q.Body.Shape != openai.ShapeChat { // no room is put into them, nor by SGLang's own router
		return openai.ErrBadRequest(reason.BadField, "model", "The model `%s` is not served on %s.", openai.Clip(q.Body.Model, 256), q.route.path)
	}
	switch why := q.Body.Unsplittable; {
	case why == openai.UnsplitEcho, why == openai.UnsplitLogprobs, why == openai.UnsplitEmbedding, why == openai.UnsplitBestOf, why == openai.UnsplitBeam:
		return openai.ErrBadRequest(reason.BadField, "", "The model `%s` does not serve requests with %s.", openai.Clip(q.Body.Model, 256), why)
	case q.Body.Choices() > 1 && (q.Body.Choices() > q.s.Config.Limits.MaxParallelChoices || !q.Body.ServesChoicesApart(true)):
		return openai.ErrBadRequest(reason.OverCap, "n", "The model `%s` does not serve so many choices with these parameters.", openai.Clip(q.Body.Model, 256))
	}
	return nil
}
