package router

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"pdrouter/auth"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/report"
)

// Limiter bounds what each caller may use. It must not block and be safe for concurrent use.
type Limiter interface {
	// Admit counts one request that may use so many tokens, or says in Allowance.Over why not; then the lease is nil. It is
	// also nil where there is nothing to end. ExpectedLookup stands for a request that uses no tokens, and for which the limit of
	// concurrency counts no other requests than such.
	Admit(who auth.Principal, expected int) (Lease, Allowance)
}

// Lease is one request that was admitted. Done is called once, at the request's only end, with the tokens that it has
// used, or -1 if nobody knows.
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
	Over             string // requests, tokens, concurrent, tenants; "" if the request is admitted
	Max              int    // that limit
	RetryAfter       time.Duration
}

// Quota is what is left of one limit per minute. The zero Quota is no limit.
type Quota struct {
	Limit, Left int
	Reset       time.Duration // until all of it is there again, if nothing is used
}

// tell sets the headers that clients of the OpenAI API know.
func (a Allowance) tell(set func(name, value string)) {
	a.Requests.tell(set, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests")
	a.Tokens.tell(set, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens")
}

func (q Quota) tell(set func(name, value string), limit, left, reset string) {
	if q.Limit == 0 {
		return
	}
	set(limit, strconv.Itoa(q.Limit))
	set(left, strconv.Itoa(q.Left))
	set(reset, q.Reset.String())
}

// errOverLimit answers a request that was not admitted. The client may try again.
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

// ofCaller has the log tell who was refused which model.
func ofCaller(e *openai.Error, who principal, model string) *openai.Error {
	e.Subject, e.Tenant, e.Model = who.Subject, who.Tenant, model
	return e
}

// errRefused answers credentials that were not accepted. The body is the same whatever was wrong with them.
func errRefused(err error) *openai.Error {
	status := http.StatusUnauthorized
	var told interface{ HTTPStatus() int }
	if errors.As(err, &told) {
		status = told.HTTPStatus()
	}
	var e *openai.Error
	switch status {
	case http.StatusServiceUnavailable:
		return openai.ErrNoKeys(err)
	case http.StatusForbidden:
		e = openai.ErrForbidden(err)
	default:
		e = openai.ErrUnauthorized(err)
	}
	var challenge interface{ Challenge() string }
	if errors.As(err, &challenge) {
		e.Challenge = challenge.Challenge()
	}
	var known interface{ Subject() string }
	if errors.As(err, &known) {
		e.Subject = known.Subject()
	}
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

// hasNoLimit reports whether the body asks for an answer of tokens without a limit, so that expected has nothing for it.
func hasNoLimit(b *openai.Body) bool {
	return b.MaxTokens < 0 && b.Shape != openai.ShapeCompletions && b.Shape != openai.ShapePass
}

// releasePlace ends the request's lease with what it has used.
func (x *exchange) releasePlace() {
	x.slot.Release()
	if x.b.Unsplittable == openai.UnsplitStored {
		x.sawResponse()
	}
	if l, ok := x.lease.(*backgroundLease); ok && x.worksOn() {
		x.r.holdBackground(openai.ResponsePrefix+x.cur.h.Request, x.cur.decode.Engine, x.forwarded, l)
	} else if x.lease != nil {
		x.lease.Done(x.used().total())
	}
	x.lease = nil
}

// usedTokens is what a request has used.
type usedTokens struct {
	prompt, answer int
	unknown        bool
}

// total is the sum, or -1 if it is unknown.
func (u usedTokens) total() int {
	if u.unknown {
		return -1
	}
	return u.prompt + u.answer
}

// used is how many tokens the request has used: as the engine counted them, else estimated. A stream is not changed to
// have the engine count, so without the client's own include_usage its events are counted, one token each. So are those of a stream
// that has not ended: the usage that it has told may be that of its beginning.
func (x *exchange) used() usedTokens {
	s := &x.sum
	switch {
	case x.b.Unsplittable == openai.UnsplitStored: // the request that created the response was charged
		return usedTokens{}
	case x.usage.Counted:
		u := usedTokens{prompt: s.PromptTokens, answer: s.OutputTokens}
		if stream := x.reply.stream; stream != nil && !stream.Whole() {
			u.answer = max(u.answer, x.usage.Pieces)
		}
		return u
	case s.Attempts == 0, s.Outcome == report.Completed && s.Status >= 400, s.Outcome == report.FailedBefore && !failedAtWork(x.why): // nobody had anything of it
		return usedTokens{}
	case s.Outcome == report.FailedBefore && x.why == reason.AnswerTooLarge && x.unreadTokens() == 0, s.Outcome == report.Completed && !s.Stream:
		return usedTokens{unknown: true}
	}
	u := usedTokens{prompt: x.b.PromptTokens(), answer: x.usage.Pieces + x.unreadTokens()}
	if a := x.cur; a != nil && a.split && a.answered() && a.prefill.Answer.PromptTokens > 0 { // that leg is never a stream
		u.prompt = a.prefill.Answer.PromptTokens
	}
	return u
}

// failedAtWork reports whether the engines have worked on a request that failed before its answer for that reason.
func failedAtWork(why reason.Reason) bool {
	return why == reason.AnswerTooLarge || why == reason.Deadline
}

// mostUnread is the most tokens that an unread answer is taken for: a long context. What makes answers large is log probabilities, of which
// a token has many bytes.
const mostUnread = 128 << 10

// unreadTokens estimates the tokens of what was too large to be read, where the body has no limit of its answer: a token for every four bytes of the
// bound that it exceeds. It is 0 otherwise: then what was reserved is the most that the answer may have.
func (x *exchange) unreadTokens() int {
	if x.why != reason.AnswerTooLarge || !hasNoLimit(x.b) || x.cur == nil {
		return 0
	}
	l := &x.cur.decode
	if !l.State().Over() || !leg.IsTooLarge(l.Failure) {
		return 0
	}
	bytes, _ := leg.ExceededBound(l.Failure, x.s.cfg.Limits)
	return min(bytes/4, mostUnread)
}

// used is the sum of what the choices have used, with each prompt once. A request that failed before its answer for a fault of the engines has
// used nothing, though some of its choices were under way.
func (f *fan) used() (sum usedTokens) {
	if f.sum.Outcome == report.FailedBefore {
		switch {
		case !failedAtWork(f.why):
			return usedTokens{}
		case f.why == reason.AnswerTooLarge && !hasNoLimit(f.branches[0].b):
			return usedTokens{unknown: true}
		}
	}
	prompt := 0
	for k, x := range f.branches {
		if k%f.n == 0 {
			prompt = 0
		}
		u := x.used()
		sum.prompt += max(0, u.prompt-prompt)
		prompt = max(prompt, u.prompt)
		sum.answer += u.answer
		sum.unknown = sum.unknown || u.unknown
	}
	return sum
}
