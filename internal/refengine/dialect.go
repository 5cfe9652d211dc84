package refengine

import (
	"encoding/json"
	"strings"
)

// dialect is how a route asks and answers. What is asked is the same for all.
type dialect uint8

const (
	speaksCompletions dialect = iota // POST /v1/completions
	speaksChat                       // POST /v1/chat/completions
	speaksResponses                  // POST /v1/responses
	speaksMessages                   // POST /v1/messages
	speaksTokens                     // POST /inference/v1/generate
)

// dialects are the routes that generate.
var dialects = map[string]dialect{
	"/v1/completions": speaksCompletions, "/v1/chat/completions": speaksChat, "/v1/responses": speaksResponses,
	"/v1/messages": speaksMessages, "/inference/v1/generate": speaksTokens,
}

// dialectBody is the JSON of the routes that are not OpenAI's older ones.
type dialectBody struct {
	Model        string          `json:"model"`
	Input        json.RawMessage `json:"input"`
	Instructions string          `json:"instructions"`
	System       json.RawMessage `json:"system"`
	Messages     []turnBody      `json:"messages"`
	MaxTokens    *int            `json:"max_tokens"`
	MaxOutput    *int            `json:"max_output_tokens"`
	Stop         json.RawMessage `json:"stop"`
	StopTexts    json.RawMessage `json:"stop_sequences"`
	Tokens       json.RawMessage `json:"token_ids"`
	Sampling     *struct {
		MaxTokens *int            `json:"max_tokens"`
		MinTokens int             `json:"min_tokens"`
		N         *int            `json:"n"`
		Stop      json.RawMessage `json:"stop"`
		IgnoreEOS bool            `json:"ignore_eos"`
	} `json:"sampling_params"`
	Stream  bool `json:"stream"`
	Options *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	IgnoreEOS bool            `json:"ignore_eos"`
	Salt      string          `json:"cache_salt"`
	RequestID string          `json:"request_id"`
	Params    json.RawMessage `json:"kv_transfer_params"`
}

// parseDialect checks the body of a request of any route.
func parseDialect(d dialect, raw []byte, c Config) (*call, *apiError) {
	if d <= speaksChat {
		return parseCall(d == speaksChat, raw, c)
	}
	var b dialectBody
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, badRequest("", "the body is not what the route takes: %.200s", err)
	}
	same := callBody{Model: b.Model, Stream: b.Stream, Stop: b.Stop, IgnoreEOS: b.IgnoreEOS, Salt: b.Salt, Params: b.Params}
	switch d {
	case speaksResponses:
		turns, api := inputTurns(b.Instructions, b.Input)
		if api != nil {
			return nil, api
		}
		same.Messages, same.MaxTokens = turns, b.MaxOutput
	case speaksMessages:
		if b.MaxTokens == nil {
			return nil, badRequest("max_tokens", "max_tokens is missing")
		}
		if len(b.System) > 0 {
			same.Messages = append(same.Messages, turnBody{Role: "system", Content: b.System})
		}
		same.Messages, same.MaxTokens, same.Stop = append(same.Messages, b.Messages...), b.MaxTokens, b.StopTexts
	case speaksTokens:
		if b.Sampling == nil {
			return nil, badRequest("sampling_params", "sampling_params is missing")
		}
		s := b.Sampling
		same.Prompt, same.TokenIDs, same.Options = b.Tokens, true, b.Options
		same.MaxTokens, same.MinTokens, same.N, same.Stop, same.IgnoreEOS = s.MaxTokens, s.MinTokens, s.N, s.Stop, s.IgnoreEOS
		if s.MaxTokens == nil {
			same.MaxTokens = &c.ChatTokens
		}
	}
	out, api := checkCall(d != speaksTokens, same, c)
	if api != nil {
		return nil, api
	}
	out.dialect, out.requestID = d, b.RequestID
	return out, nil
}

// inputTurns are the turns of a conversation in the form of /v1/responses.
func inputTurns(instructions string, input json.RawMessage) ([]turnBody, *apiError) {
	var turns []turnBody
	if instructions != "" {
		content, _ := json.Marshal(instructions) // a string always can be
		turns = append(turns, turnBody{Role: "system", Content: content})
	}
	var text string
	if json.Unmarshal(input, &text) == nil && len(input) > 0 {
		return append(turns, turnBody{Role: "user", Content: input}), nil
	}
	var items []turnBody
	if json.Unmarshal(input, &items) != nil {
		return nil, badRequest("input", "input is neither a text nor an array of items")
	}
	for _, item := range items {
		for _, kind := range []string{"input_text", "output_text"} {
			item.Content = []byte(strings.ReplaceAll(string(item.Content), `"`+kind+`"`, `"text"`))
		}
		turns = append(turns, item)
	}
	return turns, nil
}
