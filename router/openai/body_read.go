package openai

import (
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/reason"
)

// read reads the value of a member that means something; m is the object that it is in.
func (p *bodyParser) read(f *member, in ownedIn, m *jsonscan.Members) {
	b, from := p.body, p.Pos
	switch f.means {
	case meansModel:
		p.model()
	case meansStream:
		b.Stream = p.boolean(f.param)
		p.own(ownStream, in, m)
	case meansStreamOptions:
		p.streamOptions()
		p.own(ownStreamOptions, in, m)
	case meansStreamDetail:
		p.Value(p.depth)
		p.own(ownStreamOptions, in, m)
	case meansN:
		b.N = p.count(f.param, 1, 1)
		p.cap(f.param, b.N, p.lim.N, atMost)
		b.fan.n = jsonscan.Span{From: from, To: p.Pos}
	case meansBestOf:
		p.bestOf = p.count(f.param, 1, 1)
		p.cap(f.param, p.bestOf, p.lim.N, atMost)
	case meansLimit:
		p.maxTokens = p.count(f.param, 0, -1)
		p.own(ownLimit, in, m)
	case meansLimitOver:
		p.maxCompletion = p.count(f.param, 0, -1)
		p.own(ownLimitToo, in, m)
	case meansLimitToo:
		p.count(f.param, 0, -1)
		p.own(ownLimitToo, in, m)
	case meansMinTokens:
		p.count(f.param, 0, 0)
		p.own(ownMinTokens, in, m)
	case meansSalt:
		c := p.Peek()
		if p.Value(p.depth) {
			b.Salt = p.Bytes[from:p.Pos]
		}
		if c != '"' && c != 'n' {
			p.refuse(reason.BadField, f.param, "must be a string")
		}
		p.own(ownSalt, in, m)
	case meansCacheKey:
		if key := p.written(); key != nil {
			b.SessionKey, p.cacheKeyed = key, true
		}
	case meansUser:
		if user := p.written(); !p.cacheKeyed {
			b.SessionKey = user
		}
	case meansRequestID:
		p.Value(p.depth)
		p.own(ownRequestID, in, m)
	case meansLever:
		p.Value(p.depth)
		p.own(ownLever, in, m)
	case meansPriority:
		b.Priority = p.whole(f.param)
		p.own(ownPriority, in, m)
	case meansExtraKey:
		p.Value(p.depth)
		p.own(ownExtraKey, in, m)
	case meansTokenIDs:
		p.Value(p.depth)
		p.own(ownTokenIDs, in, m)
	case meansStore:
		b.Unkept = p.Peek() == 'f'
		p.Value(p.depth)
		p.own(ownStore, in, m)
	case meansSeed:
		p.Value(p.depth)
		b.fan.seed = jsonscan.Span{From: from, To: p.Pos}
	case meansTemperature:
		p.Value(p.depth)
		b.fan.temperature = jsonscan.Span{From: from, To: p.Pos}
	case meansTransfer:
		p.transfer(f.param, in, m)
	case meansXargs:
		p.holder("vllm_xargs.", inXargs, p.depth)
	case meansSampling:
		p.samplingParams()
	case meansLimits:
		p.limits()
	case meansExtraArgs:
		p.holder("sampling_params.extra_args.", inExtraArgs, p.depth)
	default:
		p.readPrompt(f)
	}
}

// written reads a value and returns it as it was written, if it is text; else nil.
func (p *bodyParser) written() []byte {
	from, c := p.Pos, p.Peek()
	if !p.Value(p.depth) || c != '"' || p.Pos-from <= len(`""`) {
		return nil
	}
	return p.Bytes[from:p.Pos]
}

// readPrompt reads the members that say what is asked, and how much of it there may be.
func (p *bodyParser) readPrompt(f *member) {
	b, from := p.body, p.Pos
	switch f.means {
	case meansEcho:
		p.echo = p.boolean(f.param)
	case meansBeam:
		p.beam = p.boolean(f.param)
	case meansBackground:
		p.background = p.boolean(f.param)
	case meansPromptText:
		c := p.Peek()
		p.promptText = p.given() && c != 'f'
	case meansLogprobs:
		p.logprobs(f.param)
	case meansPromptLogprobs:
		p.promptLogprobs = p.logprobs(f.param)
	case meansLogprobIDs:
		p.cap(f.param, p.many(), p.lim.Logprobs, atMostElements)
	case meansEmbeds:
		p.embeds = p.given()
	case meansStop:
		p.stop(f.param)
	case meansPrompt:
		p.prompt()
		b.fan.prompt = jsonscan.Span{From: from, To: p.Pos}
		b.Asked[askedLast] = b.fan.prompt
	case meansTokens:
		p.tokenIDs(f.param)
		b.Asked[askedLast] = jsonscan.Span{From: from, To: p.Pos}
	case meansMessages:
		if c := p.Peek(); p.look(forContent, p.depth) && c != '[' {
			p.refuse(reason.BadField, f.param, "must be an array")
		}
		b.promptBytes += p.Pos - from
		b.Asked[askedLast] = jsonscan.Span{From: from, To: p.Pos}
	case meansBatch:
		p.batch(f.param)
		b.promptBytes += p.Pos - from
		b.Asked[askedLast] = jsonscan.Span{From: from, To: p.Pos}
	case meansInput:
		p.look(forContent, p.depth)
		b.promptBytes += p.Pos - from
		if f.param == "input" {
			b.Asked[askedLast] = jsonscan.Span{From: from, To: p.Pos}
		} else {
			b.Asked[askedBefore] = jsonscan.Span{From: from, To: p.Pos}
		}
	case meansText:
		p.Value(p.depth)
		b.promptBytes += p.Pos - from
		b.Asked[askedBefore] = jsonscan.Span{From: from, To: p.Pos}
	case meansParts:
		p.look(forContent, p.depth)
	case meansContent:
		p.look(forContent, p.depth)
	case meansMedia:
		p.look(forAnyURL, p.depth)
	case meansFeatures:
		if p.given() && p.lim.Isolate {
			p.refuse(reason.BadField, f.param, "is not accepted, because isolate_prefix_cache is set; send content_parts instead")
		}
	case meansPrevious:
		b.Previous = p.text(f.param)
	case meansGrammar:
		b.formed = p.given() || b.formed
	case meansChoice:
		if p.Peek() == '"' {
			c := p.text(f.param)
			b.formed = b.formed || c != "auto" && c != "none"
		} else {
			b.formed = p.given() || b.formed
		}
	case meansFunctions:
		p.Value(p.depth)
		b.Asked[AskedTools] = jsonscan.Span{From: from, To: p.Pos}
	case meansTools:
		p.serverTools = p.tools()
		b.Asked[AskedTools] = jsonscan.Span{From: from, To: p.Pos}
	case meansTruncate:
		if n, ok := p.Integer(); ok {
			p.truncates = n < 0
		} else {
			p.Value(p.depth)
		}
	case meansTruncation: // engines cut the prompt unless they are told not to, by null too
		p.truncates = p.Peek() != '"' || p.text(f.param) != "disabled"
		if p.Pos == from {
			p.Value(p.depth)
		}
	default:
		p.Value(p.depth)
	}
}

// limits reads sampling_params where the limits of the answer stand in it.
func (p *bodyParser) limits() {
	if p.Peek() != '{' {
		if p.Value(p.depth) {
			p.refuse(reason.BadField, "sampling_params", "must be an object")
		}
		return
	}
	m, ok := p.Object(2)
	p.at0(ownLimits, inTop)
	p.depth = 2
	known := formats[p.body.Shape].sampling
	for ok && p.Member(&m) {
		if f := known.find(m.Key, m.Sum); f != nil {
			p.read(f, inSampling, &m)
		} else {
			p.Value(2)
		}
	}
	p.depth, p.body.samplingMembers = 1, m.Count
}

// samplingParams looks for extra_args within sampling_params.
func (p *bodyParser) samplingParams() {
	if p.Peek() != '{' {
		p.Value(1)
		return
	}
	m, ok := p.Object(2)
	for ok && p.Member(&m) {
		if string(m.Key) == "extra_args" {
			p.holder("sampling_params.extra_args.", inExtraArgs, 2)
		} else {
			p.Value(2)
		}
	}
}

// holder walks over an object that may hold transfer params; depth is that of what holds it.
func (p *bodyParser) holder(path string, in ownedIn, depth int) {
	if p.Peek() != '{' {
		p.Value(depth)
		return
	}
	m, ok := p.Object(depth + 1)
	for ok && p.Member(&m) {
		switch {
		case answer.IsTransferKey(m.Key):
			p.transfer(path+string(m.Key), in, &m)
		case string(m.Key) == "kv_cache_report_mode":
			p.Value(depth + 1)
			p.own(ownLever, in, &m)
		default:
			p.Value(depth + 1)
		}
	}
}

// transfer notes transfer params; null says nothing, but is taken out too.
func (p *bodyParser) transfer(param string, in ownedIn, m *jsonscan.Members) {
	depth := [...]int{inTop: 1, inXargs: 2, inSampling: 2, inExtraArgs: 3}[in]
	null := p.Peek() == 'n'
	p.Value(depth)
	p.own(ownTransfer, in, m)
	if !null && p.sent == "" {
		p.sent = param
	}
}

// tools reads the tools of a request, and reports whether the engine may call one of them itself.
func (p *bodyParser) tools() bool {
	if p.Peek() != '[' {
		p.Value(p.depth)
		return false
	}
	served, n := false, 0
	for ok := p.Array(2); ok && p.Element(&n); {
		if p.Peek() != '{' {
			p.Value(2)
			continue
		}
		m, ok := p.Object(3)
		for ok && p.Member(&m) {
			if string(m.Key) != "type" || p.Peek() != '"' {
				p.Value(3)
				continue
			}
			switch p.text("tools") {
			case "function", "custom", "namespace": // the client calls these
			default:
				served = true
			}
		}
	}
	return served
}
