package openai

// The parts of a body that the prompt consists of, in the order in which engines put them together: what a chat goes on with comes last,
// so that its turns have all before in common.
const (
	AskedTools = iota
	askedBefore
	askedLast
	askedParts
)

// PromptIDs is the array of the token ids that the prompt consists of, JSON; nil if it is more than one prompt, or text.
func (b *Body) PromptIDs() []byte {
	if b.promptIDs == 0 || b.promptBytes > 0 || b.Prompts != 1 {
		return nil
	}
	return b.Asked[askedLast].Of(b.Raw)
}

// Unbounded reports whether the body asks for an answer of tokens without a limit, so that nothing can be expected of it.
func (b *Body) Unbounded() bool {
	return b.MaxTokens < 0 && b.Shape != ShapeCompletions && b.Shape != ShapePass
}
