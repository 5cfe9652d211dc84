package refengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// Bounds on the shape of a call.
const (
	maxChoices = 128
	maxPrompts = 1024
	maxStops   = 4
)

// call is a request of the OpenAI routes, checked.
type call struct {
	chat, stream, usage, echo, tokenIDs bool

	dialect   dialect
	requestID string // that the body gives itself

	prompts [][]int32
	n       int
	stops   []string
	req     Request // what all sequences share; Tokens is each prompt's
	handoff string  // the transfer id, as it was written
}

// callBody is the JSON of both routes.
type callBody struct {
	Model     string          `json:"model"`
	Prompt    json.RawMessage `json:"prompt"`
	Messages  []turnBody      `json:"messages"`
	Tools     json.RawMessage `json:"tools"`
	MaxTokens *int            `json:"max_tokens"`
	MaxAnswer *int            `json:"max_completion_tokens"`
	MinTokens int             `json:"min_tokens"`
	N         *int            `json:"n"`
	Stop      json.RawMessage `json:"stop"`
	Stream    bool            `json:"stream"`
	Options   *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	IgnoreEOS bool            `json:"ignore_eos"`
	Echo      bool            `json:"echo"`
	TokenIDs  bool            `json:"return_token_ids"`
	Salt      string          `json:"cache_salt"`
	Params    json.RawMessage `json:"kv_transfer_params"`
}

type turnBody struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Reasoning string          `json:"reasoning"`
	Calls     json.RawMessage `json:"tool_calls"`
}

// parseCall checks the body of a request. Fields that it does not know are accepted, as are those that change nothing
// here (temperature, seed): answers are always greedy.
func parseCall(chat bool, raw []byte, c Config) (*call, *apiError) {
	var b callBody
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, badRequest("", "the body is not what the route takes: %.200s", err)
	}
	return checkCall(chat, b, c)
}

// checkCall checks what a body asks for.
func checkCall(chat bool, b callBody, c Config) (*call, *apiError) {
	adapter := ""
	if slices.Contains(c.Adapters, b.Model) {
		adapter = b.Model
	} else if b.Model != "" && b.Model != c.Model {
		return nil, &apiError{Status: http.StatusNotFound, Type: "NotFoundError", Message: fmt.Sprintf("The model `%.100s` does not exist.", b.Model), Param: "model"}
	}
	out := &call{chat: chat, dialect: speaksCompletions, stream: b.Stream, echo: b.Echo && !chat, tokenIDs: b.TokenIDs, n: 1}
	if b.Options != nil {
		if !b.Stream {
			return nil, badRequest("stream_options", "stream_options can only be set when stream is true")
		}
		out.usage = b.Options.IncludeUsage
	}
	if b.N != nil {
		out.n = *b.N
	}
	if chat {
		out.dialect = speaksChat
	}
	if out.n < 1 || out.n > maxChoices {
		return nil, badRequest("n", "n is %d; want 1 to %d", out.n, maxChoices)
	}
	var api *apiError
	if chat {
		out.prompts, api = chatPrompt(b.Messages, b.Tools)
		if given, wrong := givenPrompt(b.Params); api == nil && (given != nil || wrong != nil) {
			out.prompts, api = given, wrong
		}
	} else {
		out.prompts, api = parsePrompts(b.Prompt)
	}
	if api != nil {
		return nil, api
	}
	if out.stops, api = parseStops(b.Stop); api != nil {
		return nil, api
	}
	out.req = Request{MinTokens: b.MinTokens, IgnoreEnd: b.IgnoreEOS, Salt: b.Salt, Adapter: adapter, Leg: WholeLeg}
	if adapter != "" { // blocks of an adapter are not those of the model
		out.req.Salt = adapter + "\x00" + b.Salt
	}
	if api = out.limit(b, c); api != nil {
		return nil, api
	}
	if c.Pull != nil {
		return out, out.parsePull(b.Params)
	}
	return out, out.parseParams(b.Params)
}

// limit settles how long answers may be. By default a completion has 16 tokens.
func (c *call) limit(b callBody, cfg Config) *apiError {
	longest := 0
	for _, p := range c.prompts {
		longest = max(longest, len(p))
	}
	limit, name := b.MaxTokens, "max_tokens"
	if c.chat && b.MaxAnswer != nil {
		limit, name = b.MaxAnswer, "max_completion_tokens"
	}
	switch {
	case limit != nil:
		c.req.MaxTokens = *limit
	case c.chat:
		c.req.MaxTokens = max(1, min(cfg.ChatTokens, cfg.MaxModelLen-longest))
	default:
		c.req.MaxTokens = 16
	}
	if c.req.MaxTokens < 1 {
		return badRequest(name, "%s is %d; want at least 1", name, c.req.MaxTokens)
	}
	if c.req.MinTokens < 0 || c.req.MinTokens > c.req.MaxTokens {
		return badRequest("min_tokens", "min_tokens is %d; want 0 to %s, which is %d", c.req.MinTokens, name, c.req.MaxTokens)
	}
	return nil
}

// paramsBody is kv_transfer_params as the gateway sends it. Each field is needed but the ticket, which a gateway without a
// key does not give.
type paramsBody struct {
	RemoteDecode  *bool   `json:"do_remote_decode"`
	RemotePrefill *bool   `json:"do_remote_prefill"`
	Transfer      *string `json:"transfer_id"`
	Peer          *struct {
		Engine     string `json:"engine"`
		Generation uint64 `json:"generation"`
	} `json:"peer"`
	Valid  *int64          `json:"valid_ms"`
	Ticket string          `json:"ticket"`
	IDs    json.RawMessage `json:"prompt_token_ids"` // see givenPrompt
}

// parseParams makes the call a leg of a hand-off, if it says so.
func (c *call) parseParams(raw json.RawMessage) *apiError {
	const param = "kv_transfer_params"
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var p paramsBody
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return badRequest(param, "kv_transfer_params: %.200s", err)
	}
	switch {
	case p.IDs != nil && p.RemoteDecode == nil && p.RemotePrefill == nil && p.Transfer == nil: // the prompt alone
		return nil
	case p.RemoteDecode == nil || p.RemotePrefill == nil || *p.RemoteDecode == *p.RemotePrefill:
		return badRequest(param, "kv_transfer_params: want one of do_remote_decode and do_remote_prefill true and the other false")
	case p.Transfer == nil || p.Peer == nil || p.Valid == nil:
		return badRequest(param, "kv_transfer_params: want transfer_id, peer and valid_ms")
	case p.Peer.Engine == "" || p.Peer.Generation == 0:
		return badRequest(param, "kv_transfer_params: want the peer's engine and generation")
	case *p.Valid < 1 || *p.Valid > int64(time.Hour/time.Millisecond):
		return badRequest(param, "kv_transfer_params: valid_ms is %d; want 1 ms to 1 h", *p.Valid)
	case c.n != 1 || len(c.prompts) != 1:
		return badRequest(param, "kv_transfer_params: one hand-off serves one prompt and one answer")
	case *p.RemoteDecode && c.stream:
		return badRequest("stream", "a prefill leg does not stream")
	}
	id, err := kvplane.ParseTransferID(*p.Transfer)
	if err != nil {
		return badRequest(param, "kv_transfer_params: transfer_id: want 32 lower-case hexadecimal digits")
	}
	c.handoff = *p.Transfer
	c.req.Leg = DecodeLeg
	if *p.RemoteDecode {
		c.req.Leg = PrefillLeg
	}
	c.req.Handoff = Handoff{
		ID: id, Peer: metadata.Incarnation{Engine: p.Peer.Engine, Generation: p.Peer.Generation}, Valid: time.Duration(*p.Valid) * time.Millisecond,
		Ticket: p.Ticket,
	}
	return nil
}
