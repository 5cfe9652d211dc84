package router

import (
	"encoding/json"
	"io"
	"strconv"
	"time"

	"pdrouter/policies"
)

// onward is what another decode engine needs to go on with a stream: the ids of the prompt, and those of the tokens whose whole
// text the client was given. Ids are kept as they were written, with commas between.
type onward struct {
	keep  []byte // the members of the client's body that hold for the other engine
	usage bool   // the client has asked for usage
	chat  bool
	max   int // tokens the client has asked for; -1: as far as the model goes

	prompt  []byte
	nPrompt int
	sent    []byte // tokens up to the last event with text
	nSent   int
	late    []byte // those behind it, whose text is not whole yet: the other engine makes them again
	nLate   int

	id, created, model json.RawMessage // of the first event; the others have the same
	finished           bool            // the client has the reason of the end
	counted            bool            // the client has the usage of the whole
	lost               bool            // something came that is not understood: nobody can go on
	times              int             // how often another engine went on
	why                reason          // the stream failed
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
	Usage *struct {
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
}

func given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

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
func (o *onward) note(event []byte) []byte {
	start, end, n := payloadSpan(event)
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
	o.take(&p)
	o.out = append(o.out[:0], event[:start]...)
	o.out = append(hideTokens(o.out, event[start:end]), event[end:]...)
	return o.out
}

// take enters what one event says. It returns the text of it, JSON; nil if there is none.
func (o *onward) take(p *piece) json.RawMessage {
	if len(p.Choices) == 0 {
		return nil
	}
	c := &p.Choices[0]
	text := c.Delta["content"]
	if c.Text != nil {
		text = *c.Text
	}
	for key, v := range c.Delta {
		if key != "role" && key != "content" && given(v) && string(v) != "[]" { // tools, reasoning: made of more than text
			o.lost = true
		}
	}
	o.late, o.nLate = appendIDs(o.late, c.Tokens), o.nLate+len(c.Tokens)
	if said := given(text) && string(text) != `""`; said || given(c.Finish) {
		if said && len(c.Tokens) == 0 { // text without a token: nobody can tell where it belongs
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
	o.finished = o.finished || given(c.Finish)
	if !given(text) {
		return nil
	}
	return text
}

// able reports whether another engine can go on.
func (o *onward) able() bool {
	return o != nil && !o.lost && o.nPrompt > 0 && given(o.id) && (o.finished || !o.counted)
}

// goOn has another decode engine go on with the stream that has failed. It reports false if none may: then it is to be cut.
func (s *stream) goOn() bool {
	x, o := s.x, s.x.onward
	switch {
	case o == nil:
		x.sum.NotContinued = x.noOnward
		return false
	case !o.able():
		x.sum.NotContinued = "unsupported"
		return false
	}
	x.step(event{kind: evStreamLost, why: s.wrong})
	x.not = x.not.add(s.a.decode.engine, 0)
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	o.why = s.wrong
	if o.finished || o.max >= 0 && o.nSent >= o.max { // only the end is missing
		if !o.finished {
			s.out = o.choice(s.out, nil, json.RawMessage(`"length"`), nil)
		}
		s.closeOnward(x.sum.OutputTokens)
		s.err = io.EOF // the leg is over, and its engine judged
		return true
	}
	s.tryOnward()
	return true
}

// asking is a leg that is asked to go on. Until over is closed, what the stream reads into belongs to who asks.
type asking struct {
	over  chan struct{}
	v     verdict
	first []byte // the first event, which lies in the stream's frames
}

// tryOnward asks one more engine, or gives up.
func (s *stream) tryOnward() {
	x, o := s.x, s.x.onward
	if o.times < x.s.cfg.Limits.Attempts-1 {
		o.times++
		s.wrong, s.silent, s.woken = whyNone, false, time.Time{}
		if s.askOnward() {
			return
		}
	}
	x.sum.NotContinued = "failed"
	x.step(event{kind: evStreamCut, why: o.why})
}

// askOnward begins to ask one more engine, on a goroutine of its own. It reports false if there is none.
func (s *stream) askOnward() bool {
	x, o := s.x, s.x.onward
	if !x.m.retries.take(time.Now()) {
		return false
	}
	x.look.now, x.look.not, x.look.anyway = time.Now(), x.not, false
	choice, _ := x.look.choose(policies.Request{Model: x.m.name, Unsplittable: "continued"})
	if choice.Decode < 0 {
		return false
	}
	a := &attempt{asked: true}
	a.h.shape = shapeCompletions
	a.h.draw()
	x.mu.Lock()
	x.cur, x.mails = a, dropOld(x.mails)
	x.mu.Unlock()
	x.sum.Attempts++
	a.decode.join(&x.r.leashes, x.m.decode[choice.Decode])
	o.late, o.nLate = nil, 0
	m := x.r.newLetter(&a.decode, pathCompletions, a.h.request, x.traceparent, true)
	m.body = o.body(m.body[:0], string(x.b.cacheSalt()))
	m.Body = m.body
	s.frames.reset(x.s.cfg.Limits.Event)
	s.a, s.asked = a, &asking{over: make(chan struct{}), v: vLost}
	x.r.ended.Add(1)
	go x.ask(a, s.asked, m, s.frames, s.buf)
	return true
}

// ask asks a leg that is to go on, up to its first event.
func (x *exchange) ask(a *attempt, q *asking, m *letter, frames *sseFrames, buf []byte) {
	defer x.r.ended.Done()
	defer close(q.over)
	defer func() {
		if v := recover(); v != nil {
			x.r.log.Error("panic in a leg", "panic", v, "stack", stack())
			q.v = vLost
		}
		if came := q.v == vUsable; !a.arrived(came) || !came {
			a.release()
		}
	}()
	late := a.decode.later(x.s.cfg.Timeouts.Request, errLegLate)
	defer late.Stop()
	q.v = a.decode.send(&m.upstreamRequest, x.s.cfg.Limits.Answer)
	m.free()
	if q.v == vUsable {
		_, q.first, q.v = a.decode.first(frames, buf, shapeCompletions)
	}
}

// awaitOnward waits for what the engine that was asked says, for the client, or for as long as the stream may be silent.
func (s *stream) awaitOnward() {
	var quiet <-chan time.Time
	if every := *s.x.s.cfg.Timeouts.KeepAlive; every > 0 && s.conn != nil {
		t := time.NewTimer(every)
		defer t.Stop()
		quiet = t.C
	}
	for {
		if s.mail(); s.err != nil { // the client left meanwhile, or the router ends
			s.endAsking()
			return
		}
		select {
		case <-s.asked.over:
			s.wentOn()
			return
		case <-quiet:
			s.keepAlive()
			return
		case <-s.x.wake:
		}
	}
}

// endAsking ends the leg that is asked, if there is one, and waits until it has let go of what the stream reads into.
func (s *stream) endAsking() {
	if s.asked != nil {
		s.a.decode.cut(errEnded)
		<-s.asked.over
		s.asked = nil
	}
}

// wentOn takes the beginning of what the engine says that was asked, or asks another.
func (s *stream) wentOn() {
	x, a, v := s.x, s.a, s.asked.v
	first := s.asked.first
	s.asked = nil
	if v == vUsable {
		x.sum.Decode = a.decode.engine.name
		if !s.relay(first) {
			v = vGarbage
		}
	}
	x.sawDecode(a, v)
	if v != vUsable {
		a.decode.end()
		x.not = x.not.add(a.decode.engine, a.decode.rest)
		s.tryOnward()
		return
	}
	x.sum.Continued++
	for s.next() {
	}
}

// relayOnward takes one whole event of the engine that goes on, in the shape that the client has had so far.
func (s *stream) relayOnward(event []byte) bool {
	o := s.x.onward
	switch shapeCompletions.kindOf(event) {
	case eventComment:
		return true
	case eventError:
		s.wrong = whyDecodeFailed
		return false
	case eventDone:
		s.closeOnward(o.nSent + o.nLate)
		return true
	}
	payload, ok := eventPayload(event)
	var p piece
	if !ok || json.Unmarshal(payload, &p) != nil {
		s.wrong = whyBadUpstream
		return false
	}
	if p.Usage != nil && len(p.Choices) == 0 {
		return true // the sum comes with the end
	}
	text := o.take(&p)
	if len(p.Choices) == 0 {
		return true
	}
	c := p.Choices[0]
	s.x.pieces++
	s.events++
	s.out = o.choice(s.out, text, c.Finish, c.Stop)
	return true
}

// choice appends an event with the one choice of the client's answer.
func (o *onward) choice(dst []byte, text, finish, stop json.RawMessage) []byte {
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
	if given(finish) || !o.chat {
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
func (o *onward) head(dst []byte) []byte {
	object := "text_completion"
	if o.chat {
		object = "chat.completion.chunk"
	}
	dst = append(append(dst, `data: {"id":`...), o.id...)
	dst = append(append(append(dst, `,"object":"`...), object...), '"')
	if given(o.created) {
		dst = append(append(dst, `,"created":`...), o.created...)
	}
	if given(o.model) {
		dst = append(append(dst, `,"model":`...), o.model...)
	}
	return append(dst, `,"choices":[`...)
}

// closeOnward ends the client's stream, with the usage of the whole if that was asked for.
func (s *stream) closeOnward(tokens int) {
	x, o := s.x, s.x.onward
	tokens = max(tokens, o.nSent)
	x.counted, x.sum.PromptTokens, x.sum.OutputTokens = true, o.nPrompt, tokens
	if o.usage && !o.counted {
		s.out = append(o.head(s.out), `],"usage":{"prompt_tokens":`...)
		s.out = strconv.AppendInt(s.out, int64(o.nPrompt), 10)
		s.out = strconv.AppendInt(append(s.out, `,"total_tokens":`...), int64(o.nPrompt+tokens), 10)
		s.out = strconv.AppendInt(append(s.out, `,"completion_tokens":`...), int64(tokens), 10)
		s.out = append(s.out, "}}\n\n"...)
	}
	s.out = append(s.out, "data: [DONE]\n\n"...)
	s.seen, s.wrong = true, whyNone
	s.events++
}
