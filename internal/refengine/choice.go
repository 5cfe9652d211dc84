package refengine

import "bytes"

// choice is one answer of a call: the text so far, how much of it the client has, and how it ended.
type choice struct {
	index int
	seq   *Sequence
	stops []string

	text     []byte
	echoed   int // bytes of text that are the prompt's
	sent     int // bytes of text the client has
	tokens   []int32
	reported int // tokens the client has
	finish   Finish
	stop     *string // the stop that ended it
}

// take adds one step of the sequence. ended says that nothing comes after it; cancel, that the sequence runs on for nobody.
func (c *choice) take(o Output) (ended, cancel bool) {
	c.finish = o.Finish
	if o.Token < 0 {
		return true, false
	}
	c.tokens = append(c.tokens, o.Token)
	before := len(c.text)
	c.text = detokenize(c.text, o.Token)
	if len(c.tokens) > c.seq.req.MinTokens {
		if i, s := c.find(before); s != nil {
			c.text, c.finish, c.stop = c.text[:i], FinishStop, s
			return true, o.Finish == FinishNone
		}
	}
	return o.Finish != FinishNone, false
}

// find looks for the first stop that ends after the first n bytes of the text.
func (c *choice) find(n int) (at int, stop *string) {
	for i, s := range c.stops {
		from := max(c.echoed, c.sent, n-len(s)+1)
		if j := bytes.Index(c.text[from:], []byte(s)); j >= 0 && (stop == nil || from+j < at) {
			at, stop = from+j, &c.stops[i]
		}
	}
	return at, stop
}

// fresh returns the text and the tokens that the client does not have yet, and marks them as sent. While the answer
// runs, as much is kept back as could be the beginning of a stop.
func (c *choice) fresh() (text string, tokens []int32) {
	end := len(c.text)
	if c.finish == FinishNone {
		keep := 0
		for _, s := range c.stops {
			keep = max(keep, len(s)-1)
		}
		end = max(c.sent, end-keep)
	}
	text, tokens = string(c.text[c.sent:end]), c.tokens[c.reported:]
	c.sent, c.reported = end, len(c.tokens)
	return text, tokens
}
