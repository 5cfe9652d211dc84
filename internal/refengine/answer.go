package refengine

import (
	"cmp"
	"encoding/json"
	"time"
)

// answer is one call being answered: its sequences, one per prompt and choice.
type answer struct {
	call    *call
	choices []*choice
	id      string
	created int64
	model   string
}

// start submits the sequences of a call. If one is refused, none runs.
func start(e *Engine, c *call, requestID string) (*answer, error) {
	a := &answer{call: c, id: "cmpl-" + requestID, created: time.Now().Unix(), model: cmp.Or(c.req.Adapter, e.cfg.Model)}
	switch c.dialect {
	case speaksChat, speaksMessages:
		a.id = "chat" + a.id
	case speaksResponses:
		if a.id = c.requestID; a.id == "" {
			a.id = "resp_" + requestID
		}
	case speaksTokens:
		a.id = "generate-tokens-" + requestID
	}
	for _, p := range c.prompts {
		for range c.n {
			req := c.req
			req.Tokens = p
			if req.Leg == ExportLeg || req.Leg == ImportLeg {
				req.Name = e.exportName(a.id, c.chat)
			}
			s, err := e.Submit(req)
			if err != nil {
				a.cancel(e)
				return nil, err
			}
			ch := &choice{index: len(a.choices), seq: s, stops: c.stops}
			if c.echo {
				ch.text = detokenize(nil, p...)
				ch.echoed = len(ch.text)
			}
			a.choices = append(a.choices, ch)
		}
	}
	return a, nil
}

// cancel ends every sequence that still runs.
func (a *answer) cancel(e *Engine) {
	for _, c := range a.choices {
		e.Cancel(c.seq)
	}
}

type usageBody struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// usage counts each prompt once, as its choices share it.
func (a *answer) usage() *usageBody {
	u := &usageBody{}
	for i, c := range a.choices {
		if i%a.call.n == 0 {
			u.Prompt += len(c.seq.req.Tokens)
			u.Details.Cached += c.seq.Cached()
		}
		u.Completion += len(c.tokens)
	}
	u.Total = u.Prompt + u.Completion
	return u
}

type answerBody struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []choiceBody `json:"choices"`
	Usage   *usageBody   `json:"usage,omitempty"`
	Params  any          `json:"kv_transfer_params,omitempty"`
	Prompt  []int32      `json:"prompt_token_ids,omitempty"` // chat only; a completion has it in each choice
}

// handedBody tells the gateway what a prefill leg has finished.
type handedBody struct {
	Transfer string `json:"transfer_id"`
	Tokens   int    `json:"num_tokens"`
}

type choiceBody struct {
	Index    int       `json:"index"`
	Text     *string   `json:"text,omitempty"`
	Message  *chatBody `json:"message,omitempty"`
	Delta    *chatBody `json:"delta,omitempty"`
	Logprobs *struct{} `json:"logprobs"`
	Finish   *Finish   `json:"finish_reason"`
	Stop     *string   `json:"stop_reason"`
	Prompt   []int32   `json:"prompt_token_ids,omitempty"`
	Tokens   *[]int32  `json:"token_ids,omitempty"`
}

type chatBody struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// whole is the answer of a call that does not stream.
func (a *answer) whole() ([]byte, error) {
	if a.call.dialect > speaksChat {
		return json.Marshal(a.inDialect())
	}
	b := a.head("text_completion", "chat.completion")
	for _, c := range a.choices {
		text := string(c.text)
		body := choiceBody{Index: c.index, Finish: &c.finish, Stop: c.stop}
		if a.call.chat {
			body.Message = &chatBody{Role: "assistant", Content: &text}
		} else {
			body.Text = &text
		}
		if a.call.tokenIDs {
			a.tokenIDs(&b, &body, c, c.tokens, true)
		}
		b.Choices = append(b.Choices, body)
	}
	b.Usage = a.usage()
	switch a.call.req.Leg {
	case PrefillLeg:
		b.Params = &handedBody{Transfer: a.call.handoff, Tokens: len(a.choices[0].seq.req.Tokens)}
	case ExportLeg, ImportLeg:
		if x := a.choices[0].seq.exported; x != nil {
			b.Params = x
		}
	}
	return json.Marshal(b)
}

func (a *answer) head(completion, chat string) answerBody {
	b := answerBody{ID: a.id, Object: completion, Created: a.created, Model: a.model, Choices: []choiceBody{}}
	if a.call.chat {
		b.Object = chat
	}
	return b
}

// tokenIDs adds tokens to a choice, and those of the prompt where the client has not had them.
func (a *answer) tokenIDs(b *answerBody, body *choiceBody, c *choice, tokens []int32, prompt bool) {
	if tokens == nil {
		tokens = []int32{}
	}
	body.Tokens = &tokens
	switch {
	case prompt && a.call.chat:
		b.Prompt = c.seq.req.Tokens
	case prompt:
		body.Prompt = c.seq.req.Tokens
	}
}

// chunk is the next event of a choice, with what the client does not have yet. first is the first of the choice.
func (a *answer) chunk(c *choice, first bool) ([]byte, error) {
	b := a.head("text_completion", "chat.completion.chunk")
	body := choiceBody{Index: c.index, Stop: c.stop}
	text, tokens := c.fresh()
	if a.call.chat {
		body.Delta = &chatBody{Content: &text}
		if first {
			body.Delta.Role = "assistant"
		}
	} else {
		body.Text = &text
	}
	if c.finish != FinishNone {
		body.Finish = &c.finish
	}
	if a.call.tokenIDs {
		a.tokenIDs(&b, &body, c, tokens, first)
	}
	b.Choices = append(b.Choices, body)
	return json.Marshal(b)
}

// last is the event with the usage of the whole call.
func (a *answer) last() ([]byte, error) {
	b := a.head("text_completion", "chat.completion.chunk")
	b.Usage = a.usage()
	return json.Marshal(b)
}
