package relay

import (
	"strconv"

	"pdrouter/internal/gather"
	"pdrouter/router/openai"
)

// NewContinuation returns what is kept to continue a stream: what was taken of the client's body, and whether that is a chat. goesOn says whether
// another engine may go on after a failure.
func NewContinuation(of openai.Continued, chat, goesOn bool) *Continuation {
	return &Continuation{of: of, chat: chat, goesOn: goesOn, tells: goesOn}
}

// TellTokens has the engine say which tokens it makes. Where another engine may go on it does so in any case.
func (o *Continuation) TellTokens() { o.tells = true }

// Restart forgets the tokens whose text is not whole yet: the next engine makes them again.
func (o *Continuation) Restart() { o.late, o.nLate, o.joined, o.details = nil, 0, false, nil }

// Bound has an answer that goes as far as the model does end where the model does, which has room for so many tokens of prompt and answer; 0 if that is
// not known. A completion that does not say how long it is has 16 tokens. It reports whether the answer has an end.
func (o *Continuation) Bound(tokens int) bool {
	if o.of.Max < 0 && tokens > 0 {
		o.of.Max = tokens - o.nPrompt
	}
	return o.of.Max >= 0
}

// Body appends the body for the engine that goes on, but for what goes to gaps: a completion of the ids so far. members are JSON members that it
// gets as well, without a comma at either end; there may be none.
func (o *Continuation) Body(dst []byte, gaps *gather.Gaps, salt, members []byte) []byte {
	dst = append(append(dst, '{'), o.of.Keep...)
	if len(salt) > 0 {
		dst = append(gaps.Append(append(dst, `"cache_salt":`...), salt), ',')
	}
	if len(members) > 0 {
		dst = append(append(dst, members...), ',')
	}
	if o.tells {
		dst = append(dst, `"return_token_ids":true,`...)
	}
	dst = gaps.Append(append(dst, `"prompt":[`...), o.prompt)
	if len(o.sent) > 0 {
		dst = gaps.Append(append(dst, ','), o.sent)
	}
	dst = append(dst, `],"stream":true,"stream_options":{"include_usage":true},"max_tokens":`...)
	return append(strconv.AppendInt(dst, int64(o.of.Max-o.nSent), 10), '}')
}
