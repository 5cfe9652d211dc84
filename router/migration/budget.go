package migration

import (
	"maps"
	"time"

	"pdrouter/router/fleet"
)

// budget is what moves may take of one engine: how many at once, and how many tokens in a second. It takes the time; the zero value is an engine
// without moves.
type budget struct {
	running int
	tokens  debt
	failed  time.Time // until then no request waits for a move: the last one that did failed
}

// wait is how long a move has to wait; ok is false if that depends on the end of another.
func (b *budget) wait(now time.Time, most, perSecond int) (d time.Duration, ok bool) {
	return b.tokens.wait(now, perSecond), b.running < most
}

// begin takes what a move of so many tokens costs.
func (b *budget) begin(now time.Time, tokens, perSecond int) {
	b.running++
	b.tokens.add(now, float64(tokens), perSecond)
}

func (b *budget) end() { b.running-- }

// pair is two engines of which one sends KV to the other.
type pair struct{ from, to *fleet.Engine }

// pairBudgets are the bytes of moves from one engine to another. A pair is kept until its bytes are paid for.
type pairBudgets map[pair]debt

func (p pairBudgets) wait(of pair, now time.Time, perSecond int) time.Duration {
	d := p[of]
	return d.wait(now, perSecond)
}

// begin takes the bytes of a move.
func (p pairBudgets) begin(of pair, now time.Time, bytes float64, perSecond int) {
	maps.DeleteFunc(p, func(_ pair, d debt) bool { return d.wait(now, perSecond) == 0 })
	if perSecond > 0 && bytes > 0 {
		d := p[of]
		d.add(now, bytes, perSecond)
		p[of] = d
	}
}

// debt is what was taken of a rate ahead of time. It is an amount and not a time, so that another rate after a reload counts for all of it.
type debt struct {
	amount float64
	at     time.Time
}

// wait is how long it takes to pay for, at most an hour. A rate of 0 bounds nothing.
func (d *debt) wait(now time.Time, perSecond int) time.Duration {
	left := d.left(now, perSecond)
	if left <= 0 {
		return 0
	}
	return time.Duration(min(left/float64(perSecond), time.Hour.Seconds()) * float64(time.Second))
}

func (d *debt) left(now time.Time, perSecond int) float64 {
	if perSecond == 0 {
		return 0
	}
	return max(0, d.amount-now.Sub(d.at).Seconds()*float64(perSecond))
}

func (d *debt) add(now time.Time, amount float64, perSecond int) {
	d.amount, d.at = d.left(now, perSecond)+amount, now
}
