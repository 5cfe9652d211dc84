package relay

import (
	"strconv"

	"pdrouter/internal/gather"
)

// NewContinuation returns what is kept to continue a stream: the members of the client's body that hold for the other engine, whether the
// client has asked for usage, whether it is a chat, and how many tokens it has asked for, below 0 for the route's default.
func NewContinuation(keep []byte, usage, chat bool, max int) *Continuation {
	o := &Continuation{keep: keep, usage: usage, chat: chat, max: max}
	if o.max < 0 && !o.chat {
		o.max = 16 // what the route gives by default
	}
	return o
}

// Restart forgets the tokens whose text is not whole yet: the next engine makes them again.
func (o *Continuation) Restart() { o.late, o.nLate = nil, 0 }

// Body appends the body for the engine that goes on, but for what goes to gaps: a completion of the ids so far.
func (o *Continuation) Body(dst []byte, gaps *gather.Gaps, salt []byte) []byte {
	dst = append(append(dst, '{'), o.keep...)
	if len(salt) > 0 {
		dst = append(gaps.Append(append(dst, `"cache_salt":`...), salt), ',')
	}
	dst = gaps.Append(append(dst, `"prompt":[`...), o.prompt)
	if len(o.sent) > 0 {
		dst = gaps.Append(append(dst, ','), o.sent)
	}
	dst = append(dst, `],"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"max_tokens":`...)
	if o.max < 0 { // as far as the model goes
		dst = append(dst, "null"...)
	} else {
		dst = strconv.AppendInt(dst, int64(o.max-o.nSent), 10)
	}
	return append(dst, '}')
}
