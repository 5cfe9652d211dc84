package refengine

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/valyala/fasthttp"
)

// tokenizes answers the routes that turn text into tokens and back. It reports false for every other path.
func (s *Server) tokenizes(ctx *fasthttp.RequestCtx, path string) bool {
	if path != "/tokenize" && path != "/detokenize" {
		return false
	}
	if !ctx.IsPost() {
		ctx.Response.Header.Set("Allow", fasthttp.MethodPost)
		fail(ctx, &apiError{Status: http.StatusMethodNotAllowed, Type: "MethodNotAllowedError", Message: "Method Not Allowed"})
		return true
	}
	var q struct {
		Model  string  `json:"model"`
		Prompt *string `json:"prompt"`
		Tokens []int32 `json:"tokens"`
	}
	if err := json.Unmarshal(ctx.PostBody(), &q); err != nil {
		fail(ctx, badRequest("", "the body cannot be read: %.200s", err))
		return true
	}
	cfg := s.engine.cfg
	if q.Model != "" && q.Model != cfg.Model && !slices.Contains(cfg.Adapters, q.Model) {
		fail(ctx, &apiError{Status: http.StatusNotFound, Type: "NotFoundError", Message: "The model does not exist."})
		return true
	}
	var answer any
	switch {
	case path == "/detokenize":
		answer = struct {
			Prompt string `json:"prompt"`
		}{string(detokenize(nil, q.Tokens...))}
	case q.Prompt == nil:
		fail(ctx, badRequest("prompt", "prompt is missing"))
		return true
	default:
		tokens := tokenize(*q.Prompt)
		answer = struct {
			Count  int     `json:"count"`
			MaxLen int     `json:"max_model_len"`
			Tokens []int32 `json:"tokens"`
		}{len(tokens), cfg.MaxModelLen, tokens}
	}
	b, err := json.Marshal(answer)
	if err != nil {
		fail(ctx, answerTo(err))
		return true
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(b)
	return true
}
