package relay

import (
	"slices"

	"pdrouter/router/firsttoken"
	"pdrouter/router/reason"
)

// BeginFirst begins the stream with the token that prefill has sampled. What decode says, after it was asked by o, comes with Resume.
func (s *Stream) BeginFirst(o *Continuation, t *firsttoken.Token) {
	o.id, o.created, o.model = t.ID, t.Created, t.Model
	o.prompt, o.nPrompt, o.sent, o.nSent = t.Prompt, t.PromptTokens, slices.Clone(t.Token), 1
	o.details, o.joined = t.Details, true
	s.continuation, s.usage.Pieces = o, 1
	if o.chat {
		s.out = append(append(append(o.head(s.out), `{"index":0,"delta":{"role":`...), t.Role...), `,"content":""},"logprobs":null,"finish_reason":null}]}`...)
		s.out = append(s.out, "\n\n"...)
		s.events++
	}
	s.out = o.choice(s.out, t.Text, nil, nil)
	s.events++
}

// Break notes that the engine has failed before it said anything.
func (s *Stream) Break(why reason.Reason) { s.wrong = why }
