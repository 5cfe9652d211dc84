package refengine

// A token is a byte of text, or one of the two that have no text.
const (
	tokenBegin int32 = 256 // begins every prompt
	tokenEnd   int32 = 257 // ends an answer; never in its text
	vocabulary       = 258
)

// alphabet is what answers are written in.
const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."

// tokenize returns the tokens of a text: the beginning, then its bytes.
func tokenize(text string) []int32 {
	out := make([]int32, 0, len(text)+1)
	out = append(out, tokenBegin)
	for i := range len(text) {
		out = append(out, int32(text[i]))
	}
	return out
}

// detokenize appends the text of tokens to dst. The beginning and the end have none.
func detokenize(dst []byte, tokens ...int32) []byte {
	for _, t := range tokens {
		if t >= 0 && t < tokenBegin {
			dst = append(dst, byte(t))
		}
	}
	return dst
}
