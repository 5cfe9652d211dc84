package edge

import (
	"strconv"
	"time"

	"pdrouter/auth"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// Limiter bounds what each caller may use. It must not block and be safe for concurrent use.
type Limiter interface {
	// Acquire counts one request that may use so many tokens, or says in Allowance.Over why not. Then the lease is nil. It is
	// also nil where there is nothing to end. ExpectedLookup stands for a request that uses no tokens, and for which the limit of
	// concurrency counts no other requests than such.
	Acquire(who auth.Principal, expected int) (Lease, Allowance)
}

// Lease is one request that counts against its caller's limits. Done is called once, at the request's only end, with the tokens that it has
// used, or -1 if that is unknown.
type Lease interface {
	Done(tokens int)
}

// ExpectedLookup is expected of a request that asks for a stored response or cancels it. A caller at his limit of concurrency can so see
// background responses end. As a lookup may be a stream that stays open, lookups have a limit of concurrency of their own.
const ExpectedLookup = -1

// Allowance is what a caller has left, or which of its limits a request would exceed.
type Allowance struct {
	Requests, Tokens Quota
	Concurrent       int    // requests at once; 0: no limit
	Over             string // requests, tokens, concurrent, tenants; "" if it exceeds none
	Max              int    // that limit
	RetryAfter       time.Duration
}

// Quota is what is left of one limit per minute. The zero Quota is no limit.
type Quota struct {
	Limit, Left int
	Reset       time.Duration // until all of it is there again, if nothing is used
}

// setHeaders sets the headers that clients of the OpenAI API know.
func (a Allowance) setHeaders(set func(name, value string)) {
	a.Requests.setHeaders(set, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests")
	a.Tokens.setHeaders(set, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens")
}

func (q Quota) setHeaders(set func(name, value string), limit, left, reset string) {
	if q.Limit == 0 {
		return
	}
	set(limit, strconv.Itoa(q.Limit))
	set(left, strconv.Itoa(q.Left))
	set(reset, q.Reset.String())
}

// errOverLimit answers a request that exceeds its caller's limits. The client may try again.
func errOverLimit(a Allowance) *openai.Error {
	var e *openai.Error
	switch a.Over {
	case "requests":
		e = openai.NewError(reason.OverLimitRequests, "Too many requests: at most %d per minute.", a.Max)
	case "tokens":
		e = openai.NewError(reason.OverLimitTokens, "Too many tokens: at most %d per minute.", a.Max)
	case "concurrent":
		e = openai.NewError(reason.OverLimitConcurrent, "Too many requests at once: at most %d.", a.Max)
	default:
		e = openai.NewError(reason.OverLimitTenants, "Too many callers at once.")
	}
	e.RetryAfter = max(e.RetryAfter, a.RetryAfter)
	e.Msg += " Try again in " + e.RetryAfter.Round(time.Millisecond).String() + "."
	return e
}

const (
	// defaultTokens is what an engine takes max_tokens for where a completion has none. A chat without it may go on to the end
	// of the model's context, which is not known here, so nothing is expected of it.
	defaultTokens = 16
	// mostTokens keeps sums of what clients ask for from overflowing.
	mostTokens = 1 << 30
)

// expectedTokens is how many tokens the request may use, as far as its body tells: the prompt's estimate, and as many as each
// choice may have.
func expectedTokens(b *openai.Body) int {
	each := b.MaxTokens
	if each < 0 {
		each = 0
		if b.Shape == openai.ShapeCompletions {
			each = defaultTokens
		}
	}
	return b.PromptTokens() + min(each, mostTokens)*max(b.N, 1)*max(b.Prompts, 1)
}
