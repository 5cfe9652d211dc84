package openai

import (
	"pdrouter/internal/gather"
	"pdrouter/router/openai/jsonscan"
)

// ownedIn is the object that a member is in.
type ownedIn uint8

const (
	inTop       ownedIn = iota
	inXargs             // vllm_xargs
	inSampling          // sampling_params
	inExtraArgs         // sampling_params.extra_args
	inContent           // a part of content
	ownedIns
)

// OwnedField is a member that the router replaces or takes out.
type OwnedField uint8

const (
	ownTransfer OwnedField = iota // kv_transfer_params and ec_transfer_params
	ownRequestID
	ownStream
	ownStreamOptions
	ownLimit
	ownLimitToo
	ownMinTokens
	ownStore
	ownSalt
	ownLever
	ownPriority
	ownExtraKey
	OwnMediaID
	ownTokenIDs // return_token_ids, which the prefill leg gets from the gateway if at all
	ownLimits   // no member, but the place after the opening brace of sampling_params
)

// ownedMember is where one owned member lies in Body.Raw. They are kept in the order of the bytes. As no two keys are equal, a body
// has at most a few dozen, and MaxMediaIDs more.
type ownedMember struct {
	field OwnedField
	in    ownedIn
	index int // of the member in its object, from 0
	comma int // the comma before it; -1 if it is the first
	start int // its key
	val   int // its value
	end   int // after its value
	after int // the comma after it; -1 if it is the last
}

// at0 remembers the place where the parser is.
func (p *bodyParser) at0(f OwnedField, in ownedIn) {
	if p.Why == "" {
		p.body.owns |= 1 << f
		p.body.owned = append(p.body.owned, ownedMember{field: f, in: in, start: p.Pos, val: p.Pos, end: p.Pos})
	}
}

// own remembers the member whose value was just read.
func (p *bodyParser) own(f OwnedField, in ownedIn, m *jsonscan.Members) {
	if p.Why != "" {
		return
	}
	b, end := p.body, p.Pos
	b.owns |= 1 << f
	b.owned = append(b.owned, ownedMember{field: f, in: in, index: m.Count - 1, comma: m.Comma, start: m.KeyStart, val: m.ValueStart, end: end,
		after: p.CommaAfter()})
}

// Has reports whether the body has a member of the field.
func (b *Body) Has(f OwnedField) bool { return b.owns>>f&1 != 0 }

// AsksTokenIDs reports whether the body says by itself whether the answer is to have token ids.
func (b *Body) AsksTokenIDs() bool { return b.Has(ownTokenIDs) }

// Variant is which of the two bodies is built.
type Variant uint8

const (
	VariantDecode Variant = iota
	VariantPrefill
	VariantPrefillMirrored // prefill of an engine that ends itself after the answer's first token: members that affect the token are as in decode's, but it is not streamed
)

// removes reports whether the leg's body goes without the field.
func (b *Body) removes(l Variant, f OwnedField) bool {
	switch f {
	case ownTransfer, ownRequestID, ownLever:
		return true
	case ownPriority:
		return !b.Urgent
	case ownExtraKey:
		return b.Sealed != ""
	case ownStreamOptions:
		return l != VariantDecode
	case ownTokenIDs:
		return l == VariantPrefill
	case ownMinTokens:
		return l == VariantPrefill
	}
	return false
}

// replaces is the leg's own value of the member; "" keeps what is there.
func (b *Body) replaces(l Variant, o *ownedMember) string {
	switch f := o.field; {
	case f == ownSalt:
		return b.Sealed
	case f == OwnMediaID:
		return b.MediaIDs.SealID(b.Raw[o.val:o.end])
	case l == VariantDecode:
	case f == ownStream, f == ownStore:
		return "false"
	case l == VariantPrefillMirrored:
	case f == ownLimit, f == ownLimitToo:
		return "1"
	}
	return ""
}

// AppendPrefill appends the prefill leg's body: one token, not streamed, not kept, without what would ask for more tokens than
// that. members are JSON members that the body gets, without a comma at either end; there may be none. request is the id under
// which the engine is asked.
func (b *Body) AppendPrefill(dst []byte, request string, members []byte) []byte {
	return b.splice(dst, nil, VariantPrefill, request, members)
}

// AppendDecode appends the decode leg's body: the original without what only a gateway may set, and with members. Without
// members it is the body for an aggregated engine.
func (b *Body) AppendDecode(dst []byte, request string, members []byte) []byte {
	return b.AppendVariant(dst, nil, VariantDecode, request, members)
}

// AppendVariant appends the body of any leg, but for what goes to gaps.
func (b *Body) AppendVariant(dst []byte, gaps *gather.Gaps, l Variant, request string, members []byte) []byte {
	switch {
	case b.Raw == nil:
		return dst
	case b.Passthrough != nil && b.Passthrough.form != nil:
		return b.Passthrough.form.appendTo(dst, gaps, b.Raw)
	}
	return b.splice(dst, gaps, l, request, members)
}

// Shared reports whether the long stretches of raw are sent from where they lie. The choices of one body add up, however short it is.
func (b *Body) Shared() bool { return len(b.Raw) >= LentBody || len(b.edits) > 0 }

// Copies is at most how many bytes of raw are copied into one leg's request: where it is shared, all that stands between what the
// router owns and is too short for a gap.
func (b *Body) Copies(shared bool) int {
	if !shared && len(b.Raw) < LentBody {
		return len(b.Raw)
	}
	stretches := 8 + len(b.owned) // the first and the last, and six by the edits of a choice
	if b.Passthrough != nil && b.Passthrough.form != nil {
		stretches += len(b.Passthrough.form.drop)
	}
	return min(len(b.Raw), stretches*gather.MinGap)
}

// AppendRaw appends raw from one place to another with the edits that lie there, but for what goes to gaps.
func (b *Body) AppendRaw(dst []byte, gaps *gather.Gaps, from, to int) []byte {
	for i := range b.edits {
		if e := &b.edits[i]; from <= e.At.From && e.At.To <= to {
			dst = gaps.Append(gaps.Append(dst, b.Raw[from:e.At.From]), e.With)
			from = e.At.To
		}
	}
	return gaps.Append(dst, b.Raw[from:to])
}

// splice appends raw with the leg's changes, but for what goes to gaps. Added fields follow the opening brace.
func (b *Body) splice(dst []byte, gaps *gather.Gaps, l Variant, request string, members []byte) []byte {
	from := b.open + 1
	dst = b.AppendRaw(dst, gaps, 0, from)
	before := len(dst)
	dst = b.add(dst, gaps, l, request, members)
	if len(dst) > before && b.emptied(l, inTop, b.members) {
		dst = dst[:len(dst)-1] // the comma
	}
	var run [ownedIns]int // per object: how many of its first members are taken out
	for i := range b.owned {
		o := &b.owned[i]
		start, end, text := o.val, o.end, b.replaces(l, o)
		switch {
		case o.field == ownLimits:
			dst = b.AppendRaw(dst, gaps, from, start)
			from = end
			if l == VariantPrefill && !b.Has(ownLimit) {
				dst = appendOne(dst, formats[b.Shape].limit)
				if b.emptied(l, inSampling, b.samplingMembers) {
					dst = dst[:len(dst)-1]
				}
			}
			continue
		case b.removes(l, o.field):
			start, end = jsonscan.CutMember(o.index, o.comma, o.start, o.end, o.after, &run[o.in])
			text = ""
		case text == "":
			continue
		}
		dst = append(b.AppendRaw(dst, gaps, from, start), text...)
		from = end
	}
	return b.AppendRaw(dst, gaps, from, len(b.Raw))
}

// emptied reports whether the leg's body keeps none of the n members of an object.
func (b *Body) emptied(l Variant, in ownedIn, n int) bool {
	if n > len(b.owned) {
		return false
	}
	for i := range b.owned {
		if o := &b.owned[i]; o.in == in && b.removes(l, o.field) {
			n--
		}
	}
	return n == 0
}

// add appends the members that the leg's body gets from the gateway, each followed by a comma.
func (b *Body) add(dst []byte, gaps *gather.Gaps, l Variant, request string, members []byte) []byte {
	f := &formats[b.Shape]
	if len(members) > 0 {
		dst = append(gaps.Append(dst, members), ',')
	}
	if f.request != "" {
		dst = append(append(append(append(dst, `"request_id":"`...), f.request...), request...), `",`...)
	}
	if b.Sealed != "" && !b.Has(ownSalt) {
		dst = append(append(append(dst, `"cache_salt":`...), b.Sealed...), ',')
	}
	if l != VariantPrefill {
		return dst
	}
	switch {
	case f.sampling == nil && !b.Has(ownLimit):
		dst = appendOne(dst, f.limit)
	case f.sampling != nil && !b.Has(ownLimits):
		dst = append(dst, `"sampling_params":{`...)
		dst = appendOne(dst, f.limit)
		dst = append(dst[:len(dst)-1], "},"...)
	}
	if f.stores && !b.Has(ownStore) {
		dst = append(dst, `"store":false,`...)
	}
	return dst
}

// appendOne appends a limit of one token, and a comma.
func appendOne(dst []byte, limit string) []byte {
	return append(append(append(dst, '"'), limit...), `":1,`...)
}

// AppendProbe appends a completions body for model, of a short prompt and two tokens: parse it, then build its two
// legs, and the pair is known to each other when both have answered.
func AppendProbe(dst []byte, model, prompt string) []byte {
	dst = append(dst, `{"model":`...)
	dst = AppendString(dst, model)
	dst = append(dst, `,"prompt":`...)
	dst = AppendString(dst, prompt)
	return append(dst, `,"max_tokens":2,"temperature":0,"ignore_eos":true}`...)
}

// LentBody is from how many bytes on a client's body is not copied into its legs' requests: they go without its long stretches,
// and have them as gaps, which are sent from where they lie. At 220 KB two copies are a tenth of what a request costs.
const LentBody = 64 << 10
