package router

// shape is which of the two body formats a route takes.
type shape uint8

const (
	shapeCompletions shape = iota // POST /v1/completions
	shapeChat                     // POST /v1/chat/completions
)

// maxBodyDepth is how deep a client's objects and arrays may be nested.
const maxBodyDepth = 64

// bodyLimits bound what a body may ask for. Zero means no bound.
type bodyLimits struct {
	N        int  // n and best_of
	Prompts  int  // prompts in one body
	Stop     int  // stop strings
	Logprobs int  // logprobs (completions), top_logprobs and prompt_logprobs; -1 in a body means all and is over any bound
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
	n            int    // 1 if absent
	maxTokens    int    // the effective one; -1 if absent
	prompts      int    // prompts in the body; 1 for chat
	promptBytes  int    // bytes of text in prompt or messages, JSON escapes counted as written
	promptIDs    int    // token ids in prompt
	salt         []byte // cache_salt as it was written; nil if absent
	unsplittable string
	removed      bool // the client sent kv or ec transfer params; neither leg carries them

	open    int // where the outermost brace is
	members int // of the outermost object
	owned   [maxOwned]ownedMember
	nOwned  int
}

// promptTokens is an estimate of the prompt's length in tokens.
func (b *body) promptTokens() int { return b.promptIDs + b.promptBytes/4 }

// parseBody reads raw in one pass. The error is an OpenAI-shaped 400.
func parseBody(s shape, raw []byte, lim bodyLimits) (*body, *httpError) {
	b := &body{raw: raw, shape: s, n: 1, maxTokens: -1, prompts: 1}
	p := bodyParser{scanner: scanner{b: raw, maxDepth: maxBodyDepth, unique: true}, body: b, lim: lim}
	p.space()
	if p.i == len(raw) {
		return nil, errBadRequest(reasonBadJSON, "", "The request body is empty.")
	}
	if raw[p.i] == '{' {
		p.top()
	} else if p.value(0) && p.end() {
		return nil, errBadRequest(reasonBadJSON, "", "The request body must be a JSON object.")
	}
	if p.end(); p.why != "" {
		return nil, p.broken()
	}
	if p.bad != nil {
		return nil, p.bad
	}
	if err := p.settle(); err != nil {
		return nil, err
	}
	return b, nil
}

// bodyParser is the scanner with what it found.
type bodyParser struct {
	scanner
	body *body
	lim  bodyLimits
	bad  *httpError // the first field that is not acceptable; broken JSON behind it goes before

	maxTokens, maxCompletion int // -1: absent
	bestOf                   int
	hasStreamOptions         bool
	echo, beam               bool
	promptLogprobs, embeds   bool
	sent                     string // the transfer field that the client sent
}

// broken is the answer to what is no JSON, or not unambiguous JSON.
func (p *bodyParser) broken() *httpError {
	if p.again {
		key := p.b[p.at:]
		key = key[:min(len(key), 64)]
		for i := 1; i < len(key); i++ {
			if key[i] == '"' && key[i-1] != '\\' {
				key = key[:i+1]
			}
		}
		return errBadRequest(reasonDuplicateKey, "", "The request body has %s, at byte %d: %s", p.why, p.at, key)
	}
	return errBadRequest(reasonBadJSON, "", "The request body is not valid JSON: %s, at byte %d.", p.why, p.at)
}

// refuse notes the first field that is not acceptable.
func (p *bodyParser) refuse(reason, param, msg string) {
	if p.bad == nil {
		p.bad = errBadRequest(reason, param, "%s %s.", param, msg)
	}
}

// top reads the outermost object.
func (p *bodyParser) top() {
	p.maxTokens, p.maxCompletion, p.bestOf = -1, -1, 1
	p.body.open = p.i
	m, _ := p.object(1)
	for p.member(&m) {
		p.topMember(&m)
		if p.why != "" {
			return
		}
	}
	p.body.members = m.n
}

func (p *bodyParser) topMember(m *members) {
	b := p.body
	switch string(m.key) {
	case "model":
		p.model()
	case "stream":
		b.stream = p.boolean("stream")
		p.own(ownStream, inTop, m)
	case "stream_options":
		p.streamOptions()
		p.own(ownStreamOptions, inTop, m)
	case "n":
		b.n = p.count("n", 1, 1)
		p.cap("n", b.n, p.lim.N)
	case "best_of":
		p.bestOf = p.count("best_of", 1, 1)
		p.cap("best_of", p.bestOf, p.lim.N)
	case "max_tokens":
		p.maxTokens = p.count("max_tokens", 0, -1)
		p.own(ownMaxTokens, inTop, m)
	case "max_completion_tokens":
		p.maxCompletion = p.count("max_completion_tokens", 0, -1)
		p.own(ownMaxCompletion, inTop, m)
	case "min_tokens":
		p.count("min_tokens", 0, 0)
		p.own(ownMinTokens, inTop, m)
	case "cache_salt":
		from := p.i
		if p.value(1) {
			b.salt = p.b[from:p.i]
		}
	case "request_id":
		p.value(1)
		p.own(ownRequestID, inTop, m)
	case "echo":
		p.echo = p.boolean("echo")
	case "use_beam_search":
		p.beam = p.boolean("use_beam_search")
	case "logprobs":
		p.logprobs("logprobs")
	case "top_logprobs":
		p.logprobs("top_logprobs")
	case "prompt_logprobs":
		p.promptLogprobs = p.logprobs("prompt_logprobs")
	case "prompt_embeds":
		p.embeds = p.given()
	case "stop":
		p.stop()
	case "prompt":
		p.prompt()
	case "messages":
		p.messages()
	case "kv_transfer_params", "ec_transfer_params":
		p.transfer(string(m.key), inTop, m)
	case "vllm_xargs":
		p.holder("vllm_xargs.", inXargs, 1)
	case "sampling_params":
		p.samplingParams()
	default:
		p.value(1)
	}
}

// samplingParams looks for extra_args within sampling_params.
func (p *bodyParser) samplingParams() {
	if p.peek() != '{' {
		p.value(1)
		return
	}
	m, ok := p.object(2)
	for ok && p.member(&m) {
		if string(m.key) == "extra_args" {
			p.holder("sampling_params.extra_args.", inExtraArgs, 2)
		} else {
			p.value(2)
		}
	}
}

// holder walks over an object that may hold transfer params; depth is that of what holds it.
func (p *bodyParser) holder(path string, in ownedIn, depth int) {
	if p.peek() != '{' {
		p.value(depth)
		return
	}
	m, ok := p.object(depth + 1)
	for ok && p.member(&m) {
		if isTransferKey(m.key) {
			p.transfer(path+string(m.key), in, &m)
		} else {
			p.value(depth + 1)
		}
	}
}

// transfer notes transfer params; null says nothing, but is taken out too.
func (p *bodyParser) transfer(param string, in ownedIn, m *members) {
	depth := [...]int{inTop: 1, inXargs: 2, inExtraArgs: 3}[in]
	null := p.peek() == 'n'
	p.value(depth)
	p.own(ownTransfer, in, m)
	if !null && p.sent == "" {
		p.sent = param
	}
}

// isTransferKey reports whether an engine would take hand-off instructions from a member of that name.
func isTransferKey(key []byte) bool {
	return string(key) == "kv_transfer_params" || string(key) == "ec_transfer_params"
}

// settle checks what depends on several fields.
func (p *bodyParser) settle() *httpError {
	b := p.body
	b.maxTokens = p.maxTokens
	if b.shape == shapeChat && p.maxCompletion >= 0 {
		b.maxTokens = p.maxCompletion
	}
	b.removed = p.sent != ""
	switch {
	case b.removed && p.lim.Strict:
		return errBadRequest(reasonTransferField, p.sent, "%s is not accepted from clients.", p.sent)
	case p.hasStreamOptions && !b.stream:
		return errBadRequest(reasonBadField, "stream_options", "stream_options can only be defined when stream is true.")
	}
	switch {
	case b.n > 1:
		b.unsplittable = unsplitN
	case p.bestOf > 1:
		b.unsplittable = unsplitBestOf
	case b.prompts > 1:
		b.unsplittable = unsplitPrompts
	case p.echo:
		b.unsplittable = unsplitEcho
	case p.promptLogprobs:
		b.unsplittable = unsplitLogprobs
	case p.beam:
		b.unsplittable = unsplitBeam
	case p.embeds:
		b.unsplittable = unsplitEmbedding
	case b.maxTokens == 0 || b.maxTokens == 1:
		b.unsplittable = unsplitOneToken
	}
	return nil
}
