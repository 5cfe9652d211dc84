package migration

import "time"

// budget is what moves may take of one engine: how many at once, and how many tokens in a second. It takes the time; the zero value is an engine
// without moves.
type budget struct {
	running int
	free    time.Time // when the tokens of the moves before are paid for
	failed  time.Time // until then no request waits for a move: the last one that did failed
}

// wait is how long a move has to wait; ok is false if that depends on the end of another.
func (b *budget) wait(now time.Time, most int) (d time.Duration, ok bool) {
	return max(b.free.Sub(now), 0), b.running < most
}

// begin takes what a move of so many tokens costs.
func (b *budget) begin(now time.Time, tokens, perSecond int) {
	b.running++
	if b.free.Before(now) {
		b.free = now
	}
	b.free = b.free.Add(time.Duration(float64(tokens) / float64(perSecond) * float64(time.Second)))
}

func (b *budget) end() { b.running-- }
