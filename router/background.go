package router

import (
	"net/http"
	"strings"

	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/report"
	"pdrouter/router/stored"
)

// holdLease requires a limit of the answer from callers with token or concurrency limits who ask for a background response, and marks
// the lease to be held until the response ends.
func (q *admitted) holdLease(allowed Allowance) *openai.Error {
	if q.b.Unsplittable != openai.UnsplitBackground || q.lease == nil || allowed.Tokens.Limit == 0 && allowed.Concurrent == 0 {
		return nil
	}
	if q.b.MaxTokens < 0 {
		return ofCaller(openai.ErrBadRequest(reason.BadField, "max_output_tokens", "max_output_tokens is required with background: true, because the caller has limits."), q.who, q.model())
	}
	q.lease = &stored.Lease{Ender: q.lease}
	return nil
}

// worksOn reports whether the engine may still work on the background response of a request that has ended.
func worksOn(x *exchange) bool {
	if x.cur == nil || x.cur.decode.State() == dispatch.LegIdle {
		return false
	}
	switch x.sum.Outcome {
	case report.Completed:
		if x.sum.Stream || x.sum.Status != http.StatusOK {
			return false
		}
		_, works := stored.ReadState(x.reply.body)
		return works
	case report.ClientLeft, report.FailedAfter:
		return x.reply.stream == nil || !x.reply.stream.Whole()
	case report.FailedBefore: // for a reason of the gateway's own, of which the engine does not know
		return failedAtWork(x.why)
	}
	return false
}

// sawResponse ends the lease of a background response if the answer to a client that asked for it says that it has ended.
func sawResponse(held *stored.Background, x *exchange) {
	id, _, _ := strings.Cut(strings.TrimPrefix(x.path, pathResponses+"/"), "/")
	id, _, _ = strings.Cut(id, "?")
	if !held.Holds(id) {
		return
	}
	tokens, works := -1, true
	if s := x.reply.stream; s != nil {
		works = !s.Whole()
		if x.usage.Counted {
			tokens = x.sum.PromptTokens + x.sum.OutputTokens
		}
	} else if x.sum.Status == http.StatusOK {
		tokens, works = stored.ReadState(x.reply.body)
	}
	if !works {
		held.End(id, tokens)
	}
}

func errTooManyBackground() *openai.Error {
	return openai.NewError(reason.TooManyBackground, "Too many background responses are in progress. Try again later.")
}
