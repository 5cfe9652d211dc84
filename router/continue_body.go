package router

import (
	"strconv"

	"pdrouter/internal/gather"
	"pdrouter/policies"
	"pdrouter/router/openai"
)

// newOnward returns what is to be kept for another engine to go on, nil if the policy wants none or it cannot be.
func (x *exchange) newOnward() *onward {
	p, ok := x.s.parts.Planner.(interface{ AfterFailure(model string) string })
	if !ok || x.fan != nil || !x.b.Stream {
		return nil
	}
	after := p.AfterFailure(x.m.Name)
	if after == policies.Cut {
		return nil
	}
	if x.m.Connector.Traits().RequiresSplit { // whoever goes on serves alone
		x.noOnward = "unsupported"
		return nil
	}
	keep, usage, exact, ok := openai.ContinuationOf(x.b)
	if !ok || after == policies.Continue && !exact {
		x.noOnward = "unsupported"
		return nil
	}
	o := &onward{keep: keep, usage: usage, chat: x.b.Shape == openai.ShapeChat, max: x.b.MaxTokens}
	if o.max < 0 && !o.chat {
		o.max = 16 // what the route gives by default
	}
	return o
}

// body appends the body for the engine that goes on, but for what goes to gaps: a completion of the ids so far.
func (o *onward) body(dst []byte, gaps *gather.Gaps, salt []byte) []byte {
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
