package openai

// The parts of a body that the prompt consists of, in the order in which engines put them together: what a chat goes on with comes last,
// so that its turns have all before in common.
const (
	AskedTools = iota
	askedBefore
	askedLast
	askedParts
)

// Unbounded reports whether the body asks for an answer of tokens without a limit, so that nothing can be expected of it.
func (b *Body) Unbounded() bool {
	return b.MaxTokens < 0 && b.Shape != ShapeCompletions && b.Shape != ShapePass
}
