package handoff

import (
	"math"
	"time"
)

// fading are sums of which what is long ago counts less.
type fading struct{ last time.Time }

// factor is what the sums are to be multiplied with at a time. By the time over, what was counts a third.
func (f *fading) factor(now time.Time, over time.Duration) float64 {
	past := now.Sub(f.last)
	if past <= 0 {
		return 1
	}
	f.last = now
	return math.Exp(-float64(past) / float64(over))
}

// line is the seconds of a model's hand-offs by the tokens of their prompts: a straight line through those of the last minutes.
type line struct {
	fading
	n, x, y, xx, xy float64
}

func (l *line) fade(now time.Time) {
	k := l.factor(now, history)
	l.n, l.x, l.y, l.xx, l.xy = k*l.n, k*l.x, k*l.y, k*l.xx, k*l.xy
}

// of is what a hand-off of so many tokens takes, or what one has taken if none was seen before.
func (l *line) of(tokens, took float64) float64 {
	if l.n < 1e-6 {
		return took
	}
	slope := 0.0
	if spread := l.n*l.xx - l.x*l.x; spread > 1e-6*l.n*l.xx { // else all prompts are as long
		slope = max(0, (l.n*l.xy-l.x*l.y)/spread)
	}
	if start := (l.y - slope*l.x) / l.n; start > 0 {
		return start + slope*tokens
	}
	return l.y / max(l.x, 1) * tokens // through 0
}

func (l *line) learn(tokens, took float64) {
	l.n++
	l.x += tokens
	l.y += took
	l.xx += tokens * tokens
	l.xy += tokens * took
}
