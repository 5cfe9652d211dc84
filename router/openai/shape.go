package openai

// Shape is which of the body formats a route takes.
type Shape uint8

const (
	ShapeCompletions Shape = iota // POST /v1/completions
	ShapeChat                     // POST /v1/chat/completions
	ShapeResponses                // POST /v1/responses
	ShapeMessages                 // POST /v1/messages
	ShapeGenerate                 // POST /inference/v1/generate
	ShapePass                     // the routes whose requests are passed to one engine
	ShapeBatch                    // one of them: POST /v1/chat/completions/batch
)

func (s Shape) String() string {
	return [...]string{"completions", "chat", "responses", "messages", "generate", "pass", "batch"}[s]
}

// Where a completion and a response are asked for: of a gateway, and of an engine.
const (
	PathCompletions = "/v1/completions"
	PathResponses   = "/v1/responses"
)

// format is what the router knows of a shape.
type format struct {
	top      *vocabulary          // members of the outermost object; others are not looked at
	sampling *vocabulary          // members of sampling_params, where the limits stand in it; else nil
	limit    string               // the member that bounds the answer's tokens, as prefill's body gets it where it is absent
	stores   bool                 // engines keep answers unless store is false
	request  string               // how the body's own request_id begins; "" if the header names the request
	inside   [2]string            // the prefix and the suffix of the request's id inside of stock vLLM
	events   map[string]EventKind // of a stream whose events have types; nil if their data alone says what they are
}

// ResponsePrefix begins the id of every kept response.
const ResponsePrefix = "resp_"

// ShapeCount is how many shapes there are.
const ShapeCount = len(formats)

// formats has the format of each shape. It is never changed.
var formats = [...]format{
	ShapePass: {top: outermost(meanings{
		"messages": meansContent, "input": meansContent, "inputs": meansContent, "system": meansContent,
		"previous_input_messages": meansContent, "content_parts": meansContent,
		"query": meansContent, "queries": meansContent, "documents": meansContent, "items": meansContent,
		"data_1": meansContent, "data_2": meansContent, "text_1": meansContent, "text_2": meansContent,
		"images": meansMedia, "data": meansMedia,
	})},
	ShapeBatch: {top: outermost(completionsToo, meanings{
		"messages": meansBatch, "max_completion_tokens": meansLimitOver, "prompt_logprobs": meansPromptLogprobs, "best_of": meansBestOf,
	})},
	ShapeCompletions: {
		top: outermost(completionsToo, meanings{
			"prompt": meansPrompt, "echo": meansEcho, "best_of": meansBestOf,
			"prompt_logprobs": meansPromptLogprobs, "prompt_embeds": meansEmbeds, "use_beam_search": meansBeam,
			"max_completion_tokens": meansLimitToo, "truncate_prompt_tokens": meansTruncate, "return_token_ids": meansTokenIDs,
		}),
		limit: "max_tokens", inside: [2]string{"cmpl-", "-0"}, // its first prompt
	},
	ShapeChat: {
		top: outermost(completionsToo, meanings{
			"messages": meansMessages, "tools": meansFunctions, "max_completion_tokens": meansLimitOver,
			"prompt_logprobs": meansPromptLogprobs, "prompt_embeds": meansEmbeds, "use_beam_search": meansBeam,
			"echo": meansEcho, "best_of": meansBestOf, "truncate_prompt_tokens": meansTruncate,
			"return_token_ids": meansTokenIDs, "return_prompt_text": meansPromptText,
		}),
		limit: "max_tokens", inside: [2]string{"chatcmpl-", ""},
	},
	ShapeResponses: {
		top: outermost(meanings{
			"input": meansInput, "instructions": meansText, "previous_input_messages": meansInput,
			"max_output_tokens": meansLimit, "top_logprobs": meansLogprobs, "stop": meansStop, "stream_options": meansStreamDetail,
			"store": meansStore, "background": meansBackground, "previous_response_id": meansPrevious,
			"tools": meansTools, "truncation": meansTruncation, "text": meansGrammar,
		}),
		limit: "max_output_tokens", stores: true, request: ResponsePrefix, inside: [2]string{"resp_", "_0"}, // its first turn
		events: map[string]EventKind{
			"response.created": eventEarly, "response.queued": eventEarly, "response.in_progress": eventEarly,
			"response.completed": EventDone, "response.incomplete": EventDone, "response.cancelled": EventDone,
			"response.failed": EventError, "error": EventError,
		},
	},
	ShapeMessages: {
		top: outermost(meanings{
			"messages": meansMessages, "system": meansInput, "tools": meansFunctions, "max_tokens": meansLimit, "output_config": meansGrammar, "output_format": meansGrammar,
			"stop_sequences": meansStop,
		}),
		limit: "max_tokens", inside: [2]string{"chatcmpl-", ""},
		events: map[string]EventKind{"message_stop": EventDone, "error": EventError, "ping": EventComment},
	},
	ShapeGenerate: {
		top: outermost(meanings{
			"token_ids": meansTokens, "content_parts": meansParts, "features": meansFeatures, "stream_options": meansStreamOptions, "sampling_params": meansLimits,
		}),
		sampling: within("sampling_params.", meanings{
			"max_tokens": meansLimit, "min_tokens": meansMinTokens, "n": meansN, "stop": meansStop, "logprobs": meansLogprobs,
			"prompt_logprobs": meansPromptLogprobs, "logprob_token_ids": meansLogprobIDs, "extra_args": meansExtraArgs,
			"structured_outputs": meansGrammar,
		}),
		limit: "max_tokens", inside: [2]string{"generate-tokens-", ""},
	},
}

// AppendEngineRequest appends the name that stock vLLM gives a request inside when it is asked under id, without the random
// suffix of newer versions.
func (s Shape) AppendEngineRequest(dst []byte, id string) []byte {
	names := &formats[s].inside
	return append(append(append(dst, names[0]...), id...), names[1]...)
}

// EndsWithAnswer reports whether the terminal event carries the answer, so that there may be a stream of it alone.
func (s Shape) EndsWithAnswer() bool { return s == ShapeResponses }
