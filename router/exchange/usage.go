package exchange

import (
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
)

// UsedTokens is what a request has used.
type UsedTokens struct {
	Prompt, Answer int
	Cached         int // of the prompt: they were not computed
	Unknown        bool
}

// Total is the sum, or -1 if it is unknown.
func (u UsedTokens) Total() int {
	if u.Unknown {
		return -1
	}
	return u.Prompt + u.Answer
}

// Used is how many tokens the request has used: as the engine counted them, else estimated. A stream is not changed to
// have the engine count, so without the client's own include_usage its events are counted, one token each. So are those of a stream
// that has not ended: the usage that it has told may be that of its beginning.
func (x *Exchange) Used() UsedTokens {
	s := &x.Sum
	switch {
	case x.b.Unsplittable == openai.UnsplitStored: // the request that created the response was charged
		return UsedTokens{}
	case x.usage.Counted:
		u := UsedTokens{Prompt: int(s.PromptTokens), Cached: int(s.CachedTokens), Answer: int(s.OutputTokens)}
		if stream := x.Reply.Stream; stream != nil && !stream.Whole() {
			u.Answer = max(u.Answer, x.usage.Pieces)
		}
		return u
	case s.Attempts == 0, s.Outcome == dispatch.Completed && s.Status >= 400, s.Outcome == dispatch.FailedBefore && !FailedAtWork(x.Why): // the client got nothing
		return UsedTokens{}
	case s.Outcome == dispatch.FailedBefore && x.Why == reason.AnswerTooLarge && x.unreadTokens() == 0, s.Outcome == dispatch.Completed && !s.Stream:
		return UsedTokens{Unknown: true}
	}
	u := UsedTokens{Prompt: x.b.PromptTokens(), Cached: int(s.CachedTokens), Answer: x.usage.Pieces + x.unreadTokens()}
	if a := x.cur; a != nil && a.split && a.prefillAnswered() && a.prefill.Answer.PromptTokens > 0 { // that leg is never a stream
		u.Prompt = a.prefill.Answer.PromptTokens
	}
	return u
}

// FailedAtWork reports whether the engines have worked on a request that failed before its answer for that reason.
func FailedAtWork(why reason.Reason) bool {
	return why == reason.AnswerTooLarge || why == reason.Deadline
}

// mostUnread is the most tokens that an unread answer is taken for: a long context. What makes answers large is log probabilities,
// many bytes for each token.
const mostUnread = 128 << 10

// unreadTokens estimates the tokens of what was too large to be read, where the body has no limit of its answer: a token for every four bytes of the
// bound that it exceeds. It is 0 otherwise: then what was reserved is the most that the answer may have.
func (x *Exchange) unreadTokens() int {
	if x.Why != reason.AnswerTooLarge || !x.b.Unbounded() || x.cur == nil {
		return 0
	}
	l := &x.cur.decode
	if !l.State().Resolved() || !leg.IsTooLarge(l.Failure) {
		return 0
	}
	bytes, _ := leg.ExceededBound(l.Failure, x.s.Config.Limits)
	return min(bytes/4, mostUnread)
}

// observeLatency learns how long the engines of a request took. It is called once per request, at its end.
func (x *Exchange) observeLatency(now time.Time) {
	a, s := x.cur, &x.Sum
	if a == nil || s.Attempts == 0 || s.Phases.Plan == 0 {
		return
	}
	tokens := x.b.PromptTokens()
	if s.PromptTokens > 0 {
		tokens = int(s.PromptTokens)
	}
	switch {
	case a.split && a.prefillAnswered() && s.Phases.Prefill > s.Phases.Pair:
		x.s.Fleet.ObserveLatency(x.m, fleet.Prefill, a.prefill.Engine, s.Phases.Prefill-s.Phases.Pair, tokens-int(s.CachedTokens), now)
		if decoded := s.Phases.DecodeFirst(); s.Stream && decoded > s.Phases.Prefill {
			x.s.Fleet.ObserveLatency(x.m, fleet.Decode, a.decode.Engine, decoded-s.Phases.Prefill, tokens, now)
		}
	case x.m.Connector.Traits().Mode == dispatch.Alone && s.Stream && s.Phases.FirstToken > 0:
		x.s.Fleet.ObserveLatency(x.m, fleet.Decode, a.decode.Engine, s.Phases.FirstToken-s.Phases.Plan, tokens-int(s.CachedTokens), now)
	}
}
