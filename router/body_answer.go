package router

// answer is what the router reads of an engine's JSON answer or of one event's data.
type answer struct {
	kv               []byte // the raw value of the top-level kv_transfer_params; nil if absent or null
	promptTokens     int    // usage.prompt_tokens
	cachedTokens     int    // usage.prompt_tokens_details.cached_tokens
	completionTokens int    // usage.completion_tokens
	hasUsage         bool   // usage is there and not null
	failed           bool   // a top-level "error" that is not null
	errCode          string // error.code where it is a word, for example transfer_failed
	errMessage       string // error.message, for the log
}

// parseAnswer reads a whole JSON answer or the data of one event. It reports false if p is not a JSON object.
func parseAnswer(p []byte) (answer, bool) { return answer{}, false }

// stripTransferParams appends p, a whole JSON answer or the data of one event, without the members kv_transfer_params
// and ec_transfer_params, at any depth; every other byte is kept. It reports false if p names them but is no JSON
// object: then nothing may be relayed.
func stripTransferParams(dst, p []byte) ([]byte, bool) { return append(dst, p...), true }

// stripEvent appends one whole event (see sseFrames) with its data stripped as stripTransferParams does.
func stripEvent(dst, event []byte) ([]byte, bool) { return append(dst, event...), true }
