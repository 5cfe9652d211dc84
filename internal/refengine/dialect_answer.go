package refengine

import "encoding/json"

type members map[string]any

// told is the usage of an answer in the words of its dialect.
func (a *answer) told() any {
	u := a.usage()
	switch a.call.dialect {
	case speaksResponses:
		return members{
			"input_tokens": u.Prompt, "output_tokens": u.Completion, "total_tokens": u.Total,
			"input_tokens_details":  members{"cached_tokens": u.Details.Cached, "cached_tokens_per_turn": []int{u.Details.Cached}},
			"output_tokens_details": members{"reasoning_tokens": 0},
		}
	case speaksMessages:
		return members{"input_tokens": u.Prompt - u.Details.Cached, "output_tokens": u.Completion, "cache_read_input_tokens": u.Details.Cached}
	}
	return u
}

// inDialect is the whole answer of a route that is not one of OpenAI's older ones.
func (a *answer) inDialect() members {
	c := a.choices[0]
	text := string(c.text)
	var b members
	switch a.call.dialect {
	case speaksResponses:
		b = a.response("completed", members{
			"id": "msg_" + a.id, "type": "message", "role": "assistant", "status": "completed",
			"content": []members{{"type": "output_text", "text": text, "annotations": []string{}}},
		})
		if c.finish == FinishLength {
			b["status"], b["incomplete_details"] = "incomplete", members{"reason": "max_output_tokens"}
		}
	case speaksMessages:
		b = members{
			"id": a.id, "type": "message", "role": "assistant", "model": a.model, "stop_reason": stopReason(c), "stop_sequence": c.stop,
			"content": []members{{"type": "text", "text": text}},
		}
	default:
		choices := []members{}
		for _, c := range a.choices {
			choices = append(choices, members{"index": c.index, "token_ids": c.tokens, "finish_reason": &c.finish, "stop_reason": c.stop, "logprobs": nil})
		}
		b = members{"request_id": a.id, "created": a.created, "model": a.model, "output_mode": "tokens", "choices": choices, "prompt_token_ids": c.seq.req.Tokens}
	}
	b["usage"] = a.told()
	if a.call.req.Leg == PrefillLeg {
		b["kv_transfer_params"] = handedBody{Transfer: a.call.handoff, Tokens: len(c.seq.req.Tokens)}
	}
	return b
}

func (a *answer) response(status string, output ...members) members {
	if output == nil {
		output = []members{}
	}
	return members{"id": a.id, "object": "response", "created_at": a.created, "model": a.model, "status": status, "output": output,
		"usage": nil, "kv_transfer_params": nil}
}

func stopReason(c *choice) string {
	switch {
	case c.stop != nil:
		return "stop_sequence"
	case c.finish == FinishLength:
		return "max_tokens"
	}
	return "end_turn"
}

// speak appends the events of one output of a choice, which is the first or the last of its answer.
func (s *stream) speak(c *choice, first, last bool) {
	a := s.answer
	text, tokens := c.fresh()
	switch a.call.dialect {
	case speaksResponses:
		if first {
			s.typed("response.created", members{"response": a.response("in_progress")})
			s.typed("response.in_progress", members{"response": a.response("in_progress")})
			s.typed("response.output_item.added", members{"output_index": 0, "item": members{"id": "msg_" + a.id, "type": "message", "role": "assistant", "status": "in_progress", "content": []string{}}})
		}
		at := members{"item_id": "msg_" + a.id, "output_index": 0, "content_index": 0, "delta": text, "logprobs": []string{}}
		s.typed("response.output_text.delta", at)
		if last {
			s.typed("response.output_text.done", members{"item_id": "msg_" + a.id, "output_index": 0, "content_index": 0, "text": string(c.text), "logprobs": []string{}})
			s.typed("response.completed", members{"response": a.inDialect()})
		}
	case speaksMessages:
		if first {
			s.typed("message_start", members{"message": members{"id": a.id, "type": "message", "role": "assistant", "content": []string{}, "model": a.model,
				"stop_reason": nil, "stop_sequence": nil, "usage": members{"input_tokens": len(c.seq.req.Tokens), "output_tokens": 0}}})
			s.typed("content_block_start", members{"index": 0, "content_block": members{"type": "text", "text": ""}})
		}
		if text != "" {
			s.typed("content_block_delta", members{"index": 0, "delta": members{"type": "text_delta", "text": text}})
		}
		if last {
			s.typed("content_block_stop", members{"index": 0})
			s.typed("message_delta", members{"delta": members{"stop_reason": stopReason(c), "stop_sequence": c.stop}, "usage": a.told()})
			s.typed("message_stop", members{})
		}
	default:
		choice := members{"index": c.index, "token_ids": tokens, "finish_reason": nil, "stop_reason": c.stop, "logprobs": nil}
		if c.finish != FinishNone {
			choice["finish_reason"] = &c.finish
		}
		b := members{"request_id": a.id, "output_mode": "tokens", "choices": []members{choice}}
		if first {
			b["prompt_token_ids"] = c.seq.req.Tokens
		}
		s.marshal(b)
	}
}

// ends ends the stream behind its last choice.
func (s *stream) ends() {
	a := s.answer
	if a.call.dialect != speaksTokens {
		s.over = true
		return
	}
	if a.call.usage {
		s.marshal(members{"request_id": a.id, "output_mode": "tokens", "choices": []members{}, "usage": a.told()})
	}
	s.done()
}

// broke tells of an error within the stream.
func (s *stream) broke(e *apiError) {
	switch s.answer.call.dialect {
	case speaksResponses:
		s.typed("error", members{"code": e.Type, "message": e.Message, "param": nil})
		s.over = true
	case speaksMessages:
		s.typed("error", members{"error": members{"type": e.Type, "message": e.Message}})
		s.over = true
	default:
		s.event(e.body())
		s.done()
	}
}

// typed appends an event that has a type.
func (s *stream) typed(kind string, b members) {
	b["type"] = kind
	if s.answer.call.dialect == speaksResponses {
		b["sequence_number"] = s.events
	}
	s.events++
	s.buf = append(append(append(s.buf, "event: "...), kind...), '\n')
	s.marshal(b)
}

func (s *stream) marshal(b members) {
	data, err := json.Marshal(b)
	if err != nil { // strings and numbers only
		data = []byte("{}")
	}
	s.event(data)
}

// errorBody is an error in the words of the dialect.
func (d dialect) errorBody(e *apiError) []byte {
	if d != speaksMessages {
		return e.body()
	}
	b, err := json.Marshal(members{"type": "error", "error": members{"type": e.Type, "message": e.Message}})
	if err != nil {
		return e.body()
	}
	return b
}
