package relay

import (
	"encoding/json"
	"strconv"

	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/sse"
	"pdrouter/router/reason"
)

// Continuation is what another decode engine needs to go on with a stream: the ids of the prompt, and those of the tokens whose whole
// text the client was given. Ids are kept as they were written, with commas between.
type Continuation struct {
	of      openai.Continued // of the client's body
	chat    bool
	goesOn  bool   // after a failure another engine may go on; else the engine that comes after prefill's token is the last
	tells   bool   // engines are asked for the ids of their tokens
	details []byte // of the usage, as prefill has written them: a member with a comma before; nil if there are none

	prompt  []byte
	nPrompt int
	sent    []byte // tokens up to the last event with text
	nSent   int
	late    []byte // those after it, whose text is not complete yet: the other engine makes them again
	nLate   int
	before  int // tokens of the answer that the present engine has not made
	made    int // tokens that it says it has made

	id, created, model json.RawMessage // of the first event; the others have the same
	finished           bool            // the client has the reason of the end
	counted            bool            // the client has the usage of the whole
	lost               bool            // an event was not understood: no engine can continue
	joined             bool            // what comes is of the engine that prefill has handed the KV to
	resumed            bool            // what comes is of an engine that was asked for a completion of the ids so far
	out                []byte
}

// piece is what is read of one event.
type piece struct {
	ID      json.RawMessage `json:"id"`
	Created json.RawMessage `json:"created"`
	Model   json.RawMessage `json:"model"`
	Prompt  []json.Number   `json:"prompt_token_ids"`
	Choices []struct {
		Text  *json.RawMessage           `json:"text"`
		Delta map[string]json.RawMessage `json:"delta"`

		Finish json.RawMessage `json:"finish_reason"`
		Stop   json.RawMessage `json:"stop_reason"`
		Prompt []json.Number   `json:"prompt_token_ids"`
		Tokens []json.Number   `json:"token_ids"`
	} `json:"choices"`
	Usage *struct{} `json:"usage"`
}

func appendIDs(dst []byte, ids []json.Number) []byte {
	for _, id := range ids {
		if len(dst) > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, id...)
	}
	return dst
}

// note reads an event of the first engine, and returns it without the ids that the client did not ask for.
func (o *Continuation) note(event []byte) []byte {
	start, end, n := sse.DataSpan(event)
	var p piece
	if n != 1 || json.Unmarshal(event[start:end], &p) != nil {
		o.lost = true
		return event
	}
	if o.id == nil {
		o.id, o.created, o.model = p.ID, p.Created, p.Model
		prompt := p.Prompt
		if len(p.Choices) == 1 && len(prompt) == 0 {
			prompt = p.Choices[0].Prompt
		}
		o.prompt, o.nPrompt = appendIDs(nil, prompt), len(prompt)
	}
	o.counted = o.counted || p.Usage != nil && len(p.Choices) == 0
	o.enter(&p)
	o.out = append(o.out[:0], event[:start]...)
	o.out = append(openai.HideTokens(o.out, event[start:end]), event[end:]...)
	return o.out
}

// enter notes what one event says. It returns the text of it, JSON; nil if there is none.
func (o *Continuation) enter(p *piece) json.RawMessage {
	if len(p.Choices) == 0 {
		return nil
	}
	c := &p.Choices[0]
	text := c.Delta["content"]
	if c.Text != nil {
		text = *c.Text
	}
	for key, v := range c.Delta {
		if key != "role" && key != "content" && openai.Given(v) && string(v) != "[]" { // tools, reasoning: made of more than text
			o.lost = true
		}
	}
	o.late, o.nLate = appendIDs(o.late, c.Tokens), o.nLate+len(c.Tokens)
	if said := openai.Given(text) && string(text) != `""`; said || openai.Given(c.Finish) {
		if said && len(c.Tokens) == 0 { // text without a token: where it belongs is unknown
			o.lost = true
		}
		if len(o.late) > 0 {
			if len(o.sent) > 0 {
				o.sent = append(o.sent, ',')
			}
			o.sent = append(o.sent, o.late...)
		}
		o.nSent += o.nLate
		o.late, o.nLate = o.late[:0], 0
	}
	o.finished = o.finished || openai.Given(c.Finish)
	if !openai.Given(text) {
		return nil
	}
	return text
}

// able reports whether another engine can go on.
func (o *Continuation) able() bool {
	return o.goesOn && !o.lost && o.nPrompt > 0 && openai.Given(o.id) && (o.finished || !o.counted)
}

// relayContinued takes one whole event of the engine that goes on, in the shape that the client has had so far.
func (s *Stream) relayContinued(event []byte) bool {
	o := s.continuation
	switch openai.ShapeCompletions.KindOf(event) {
	case openai.EventComment:
		return true
	case openai.EventError:
		s.wrong = reason.DecodeFailed
		s.Leg.SetError(event)
		return false
	case openai.EventDone:
		s.closeContinued(max(o.nSent+o.nLate, o.before+o.made))
		return true
	}
	if s.Change != nil { // it reads the tokens
		s.Change(event)
	}
	payload, ok := sse.Data(event)
	var p piece
	if !ok || json.Unmarshal(payload, &p) != nil {
		s.wrong = reason.BadUpstream
		return false
	}
	if p.Usage != nil && len(p.Choices) == 0 { // the sum comes with the end
		a, _ := answer.Parse(payload)
		if o.made = a.CompletionTokens; o.joined {
			s.usage.Of(&a, s.cached)
		}
		return true
	}
	text := o.enter(&p)
	if len(p.Choices) == 0 {
		return true
	}
	c := p.Choices[0]
	s.usage.Pieces++
	s.events++
	s.out = o.choice(s.out, text, c.Finish, c.Stop)
	return true
}

// choice appends an event with the one choice of the client's answer.
func (o *Continuation) choice(dst []byte, text, finish, stop json.RawMessage) []byte {
	dst = o.head(dst)
	if o.chat {
		dst = append(dst, `{"index":0,"delta":{`...)
		if text != nil {
			dst = append(append(dst, `"content":`...), text...)
		}
		dst = append(dst, `}`...)
	} else {
		dst = append(append(dst, `{"index":0,"text":`...), orWord(text, `""`)...)
	}
	dst = append(append(dst, `,"logprobs":null,"finish_reason":`...), orWord(finish, "null")...)
	if openai.Given(finish) || !o.chat {
		dst = append(append(dst, `,"stop_reason":`...), orWord(stop, "null")...)
	}
	return append(dst, "}]}\n\n"...)
}

func orWord(raw json.RawMessage, word string) []byte {
	if len(raw) == 0 {
		return []byte(word)
	}
	return raw
}

// head appends an event of the client's answer up to its choices.
func (o *Continuation) head(dst []byte) []byte {
	object := "text_completion"
	if o.chat {
		object = "chat.completion.chunk"
	}
	dst = append(append(dst, `data: {"id":`...), o.id...)
	dst = append(append(append(dst, `,"object":"`...), object...), '"')
	if openai.Given(o.created) {
		dst = append(append(dst, `,"created":`...), o.created...)
	}
	if openai.Given(o.model) {
		dst = append(append(dst, `,"model":`...), o.model...)
	}
	return append(dst, `,"choices":[`...)
}

// AppendEnd sends what the stream lacks of its end. Its leg is over, and its engine judged.
func (s *Stream) AppendEnd() {
	if o := s.continuation; !o.finished {
		s.out = o.choice(s.out, nil, json.RawMessage(`"length"`), nil)
	}
	s.closeContinued(s.usage.Output)
	s.Finish()
}

// closeContinued ends the client's stream, with the usage of the whole if that was asked for.
func (s *Stream) closeContinued(tokens int) {
	o := s.continuation
	tokens = max(tokens, o.nSent)
	s.usage.Counted, s.usage.Prompt, s.usage.Output = true, o.nPrompt, tokens
	if o.of.Usage && !o.counted {
		s.out = append(o.head(s.out), `],"usage":{"prompt_tokens":`...)
		s.out = strconv.AppendInt(s.out, int64(o.nPrompt), 10)
		s.out = strconv.AppendInt(append(s.out, `,"total_tokens":`...), int64(o.nPrompt+tokens), 10)
		s.out = strconv.AppendInt(append(s.out, `,"completion_tokens":`...), int64(tokens), 10)
		s.out = append(append(s.out, o.details...), "}}\n\n"...)
	}
	s.out = append(s.out, "data: [DONE]\n\n"...)
	s.seen, s.wrong = true, reason.None
	s.events++
}
