package forecast

import "math"

// ratio is a sum of times over a sum of what was expected, of which later ones count more. Without any it is 1.
type ratio struct{ took, expected float64 }

// ratioFades is what a time counts when the next one has come: the last twenty count most.
const ratioFades = .95

// add adds a time. If it is less than half of what the ratio says, the engine is not as slow any more as it was: what was added before counts half.
func (r *ratio) add(took, expected float64) {
	if took < expected*r.value()/2 {
		r.took, r.expected = r.took/2, r.expected/2
	}
	r.took, r.expected = ratioFades*r.took+took, ratioFades*r.expected+expected
}

func (r *ratio) value() float64 {
	if r.expected <= 0 {
		return 1
	}
	return r.took / r.expected
}

// atMostUsual is the ratio of an engine that is faster than in the mean, else 1.
func (r *ratio) atMostUsual() float64 { return min(1, r.value()) }

// pace is a ratio that is forgotten.
type pace struct {
	ratio
	seen float64 // when a time was added last
}

// forget forgets the ratio if no time was added for so many seconds.
func (p *pace) forget(now, after float64) {
	if now-p.seen > after {
		p.ratio = ratio{}
	}
}

// decayed is a sum of which what is long ago counts less.
type decayed struct{ sum, last float64 }

func (d *decayed) at(now float64) float64 {
	if now <= d.last {
		return d.sum
	}
	return d.sum * math.Exp((d.last-now)/recent)
}

func (d *decayed) add(now, x float64) {
	d.sum = d.at(now) + x
	d.last = max(d.last, now)
}
