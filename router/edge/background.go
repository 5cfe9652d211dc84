package edge

import (
	"strings"

	"pdrouter/router/exchange"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/stored"
)

// wrapBackgroundLease makes the lease of a background response a stored.Lease, which is held until the response ends, and requires a limit of
// the answer for it. It does nothing for other requests, and for callers without token or concurrency limits.
func (q *request) wrapBackgroundLease(allowed Allowance) *openai.Error {
	if q.Body.Unsplittable != openai.UnsplitBackground || q.lease == nil || allowed.Tokens.Limit == 0 && allowed.Concurrent == 0 {
		return nil
	}
	if q.Body.MaxTokens < 0 {
		return ofCaller(openai.ErrBadRequest(reason.BadField, "max_output_tokens", "max_output_tokens is required with background: true, because the caller has limits."), q.who, q.model())
	}
	q.lease = &stored.Lease{Ender: q.lease}
	return nil
}

// observeResponse ends the lease of a background response if the answer to a client that asked for it says that it has ended.
func (q *request) observeResponse(x *exchange.Exchange) {
	id, _, _ := strings.Cut(strings.TrimPrefix(q.Path, pathResponses+"/"), "/")
	id, _, _ = strings.Cut(id, "?")
	if !q.srv.Backgrounds.Holds(id) {
		return
	}
	if tokens, works := x.ResponseState(); !works {
		q.srv.Backgrounds.End(id, tokens)
	}
}

func errTooManyBackground() *openai.Error {
	return openai.NewError(reason.TooManyBackground, "Too many background responses are in progress. Try again later.")
}
