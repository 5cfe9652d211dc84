package router

// ownedIn is the object that a member is in.
type ownedIn uint8

const (
	inTop       ownedIn = iota
	inXargs             // vllm_xargs
	inExtraArgs         // sampling_params.extra_args
)

// ownedField is a member that the router replaces or takes out.
type ownedField uint8

const (
	ownTransfer ownedField = iota // kv_transfer_params and ec_transfer_params
	ownRequestID
	ownStream
	ownStreamOptions
	ownMaxTokens
	ownMaxCompletion
	ownMinTokens
)

// maxOwned is how many owned members a body without equal keys can have: six fields of the outermost object, and
// two transfer fields in each of the three objects.
const maxOwned = 6 + 2*3

// ownedMember is where one owned member lies in body.raw. They are kept in the order of the bytes.
type ownedMember struct {
	field ownedField
	in    ownedIn
	index int // of the member in its object, from 0
	comma int // the comma before it; -1 if it is the first
	start int // its key
	val   int // its value
	end   int // behind its value
	after int // the comma behind it; -1 if it is the last
}

// own remembers the member whose value was just read.
func (p *bodyParser) own(f ownedField, in ownedIn, m *members) {
	if p.why != "" {
		return
	}
	b, end := p.body, p.i
	b.owned[b.nOwned] = ownedMember{field: f, in: in, index: m.n - 1, comma: m.comma, start: m.start, val: m.val, end: end,
		after: p.commaAfter()}
	b.nOwned++
}

// leg is which of the two bodies is built.
type leg uint8

const (
	legDecode leg = iota
	legPrefill
)

// removes reports whether the leg's body goes without the field.
func (l leg) removes(f ownedField) bool {
	switch f {
	case ownTransfer, ownRequestID:
		return true
	case ownStreamOptions, ownMinTokens:
		return l == legPrefill
	}
	return false
}

// replaces is the leg's own value of the field; "" keeps what is there.
func (l leg) replaces(f ownedField) string {
	if l == legPrefill {
		switch f {
		case ownStream:
			return "false"
		case ownMaxTokens, ownMaxCompletion:
			return "1"
		}
	}
	return ""
}

// prefill appends the prefill leg's body: max_tokens 1 (and max_completion_tokens, where it is there), no stream, no
// stream_options, no min_tokens, kv, raw JSON, as its kv_transfer_params.
func (b *body) prefill(dst, kv []byte) []byte { return b.splice(dst, legPrefill, kv) }

// decode appends the decode leg's body: the original without what only a gateway may set, and kv (if not nil) as
// its kv_transfer_params. With kv nil it is the body for an aggregated engine.
func (b *body) decode(dst, kv []byte) []byte { return b.splice(dst, legDecode, kv) }

// splice appends raw with the leg's changes. Fields that are added come right behind the opening brace.
func (b *body) splice(dst []byte, l leg, kv []byte) []byte {
	owned := b.owned[:b.nOwned]
	kept, limited := b.members, false
	for i := range owned {
		if owned[i].in == inTop && l.removes(owned[i].field) {
			kept--
		}
		limited = limited || owned[i].field == ownMaxTokens
	}
	dst = append(dst, b.raw[:b.open+1]...)
	added := false
	if kv != nil {
		dst = append(append(dst, `"kv_transfer_params":`...), kv...)
		added = true
	}
	if l == legPrefill && !limited {
		if added {
			dst = append(dst, ',')
		}
		dst = append(dst, `"max_tokens":1`...)
		added = true
	}
	if added && kept > 0 {
		dst = append(dst, ',')
	}
	from := b.open + 1
	var run [3]int // per object: how many of its first members are taken out
	for i := range owned {
		o := &owned[i]
		start, end := o.val, o.end
		switch {
		case l.removes(o.field):
			start, end = cut(o.index, o.comma, o.start, o.end, o.after, &run[o.in])
		case l.replaces(o.field) == "":
			continue
		}
		dst = append(dst, b.raw[from:start]...)
		if !l.removes(o.field) {
			dst = append(dst, l.replaces(o.field)...)
		}
		from = end
	}
	return append(dst, b.raw[from:]...)
}

// cut is the span to take out for one member, so that the commas left are right: with the comma behind it as long as
// no member before it was kept, else with the comma before it. run counts the first members taken out.
func cut(index, comma, start, end, after int, run *int) (int, int) {
	switch {
	case index != *run:
		return comma, end
	case after >= 0:
		*run++
		return start, after + 1
	default:
		*run++
		return start, end
	}
}

// appendProbe appends a completions body for model, of a short prompt and two tokens: parse it, then build its two
// legs, and the pair is known to each other when both have answered.
func appendProbe(dst []byte, model, prompt string) []byte {
	dst = append(dst, `{"model":`...)
	dst = appendString(dst, model)
	dst = append(dst, `,"prompt":`...)
	dst = appendString(dst, prompt)
	return append(dst, `,"max_tokens":2,"temperature":0,"ignore_eos":true}`...)
}
