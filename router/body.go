package router

// shape is which of the two body formats a route takes.
type shape uint8

const (
	shapeCompletions shape = iota // POST /v1/completions
	shapeChat                     // POST /v1/chat/completions
)

// bodyLimits bound what a body may ask for. Zero means no bound.
type bodyLimits struct {
	N        int  // n and best_of
	Prompts  int  // prompts in one body
	Stop     int  // stop strings
	Logprobs int  // logprobs (completions), top_logprobs and prompt_logprobs
	Strict   bool // refuse kv_transfer_params and ec_transfer_params instead of dropping them
}

// Why a body cannot be split over two engines: values of body.unsplittable.
const (
	unsplitN         = "n>1"
	unsplitBestOf    = "best_of>1"
	unsplitPrompts   = "prompts>1"
	unsplitEcho      = "echo"
	unsplitLogprobs  = "prompt_logprobs"
	unsplitBeam      = "beam_search"
	unsplitOneToken  = "max_tokens<=1"
	unsplitEmbedding = "prompt_embeds"
)

// body is one request's body: the bytes as they came, and what routing needs of them. It is read only once parsed;
// prefill and decode may be called from several goroutines. raw must stay unchanged as long as the body is used:
// whoever holds a body owns raw (copy it out of the server's buffer if it outlives the handler).
type body struct {
	raw          []byte
	shape        shape
	model        string // "" if absent
	stream       bool
	includeUsage bool // stream_options.include_usage
	n            int  // 1 if absent
	maxTokens    int  // the effective one; -1 if absent
	prompts      int  // prompts in the body; 1 for chat
	promptBytes  int  // bytes of text in prompt or messages, JSON escapes counted as written
	promptIDs    int  // token ids in prompt
	unsplittable string
	removed      bool // the client sent kv or ec transfer params; neither leg carries them
}

// parseBody reads raw in one pass. The error is an OpenAI-shaped 400.
func parseBody(s shape, raw []byte, lim bodyLimits) (*body, *httpError) {
	return &body{raw: raw, shape: s}, nil
}

// promptTokens is an estimate of the prompt's length in tokens.
func (b *body) promptTokens() int { return b.promptIDs + b.promptBytes/4 }

// prefill appends the prefill leg's body: max_tokens 1, no stream, no min_tokens, kv as its kv_transfer_params.
func (b *body) prefill(dst, kv []byte) []byte { return append(dst, b.raw...) }

// decode appends the decode leg's body: the original without what only a gateway may set, and kv (if not nil) as
// its kv_transfer_params. With kv nil it is the body for an aggregated engine.
func (b *body) decode(dst, kv []byte) []byte { return append(dst, b.raw...) }

// appendProbe appends a completions body of a two-token request for model: parse it, then build its two legs.
func appendProbe(dst []byte, model string) []byte { return dst }
