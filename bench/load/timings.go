package load

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/valyala/fasthttp"
)

// The moments of a request are those of `vllm bench serve`, but for two things: they are measured from the time at which the
// request was to be sent, so that a client or a queue that is late hides nothing, and the first token is the first content that
// is not empty.

// Ttft is the time to the first token. Only an outcome with chunks has moments.
func (o *Outcome) Ttft() time.Duration { return o.Chunks[0] - o.At }

// e2el is the time to the last chunk.
func (o *Outcome) e2el() time.Duration { return o.Chunks[len(o.Chunks)-1] - o.At }

// tpot is the mean time of each token after the first, 0 where there is none after it.
func (o *Outcome) tpot() time.Duration {
	if o.Counted < 2 {
		return 0
	}
	return (o.e2el() - o.Ttft()) / time.Duration(o.Counted-1)
}

// SLO is what a request must not exceed to count as good; 0 is no bound.
type SLO struct{ Ttft, Tpot, e2el time.Duration }

// met reports whether a request with an answer meets every bound.
func (s SLO) met(o *Outcome) bool {
	within := func(got, most time.Duration) bool { return most == 0 || got <= most }
	return within(o.Ttft(), s.Ttft) && within(o.tpot(), s.Tpot) && within(o.e2el(), s.e2el)
}

// Quantiles of times. Of none at all each is 0.
type Quantiles struct{ mean, P50, p90, P99 time.Duration }

// QuantilesOf sums up times, interpolating between the nearest two as numpy.percentile does.
func QuantilesOf(times []time.Duration) Quantiles {
	if len(times) == 0 {
		return Quantiles{}
	}
	sorted := slices.Sorted(slices.Values(times))
	at := func(p float64) time.Duration {
		whole, part := math.Modf(p * float64(len(sorted)-1))
		i := int(whole)
		next := sorted[min(i+1, len(sorted)-1)]
		return sorted[i] + time.Duration(part*float64(next-sorted[i]))
	}
	var sum float64
	for _, t := range sorted {
		sum += float64(t)
	}
	return Quantiles{time.Duration(sum / float64(len(sorted))), at(.5), at(.9), at(.99)}
}

// Summary is what an open loop has come to.
type Summary struct {
	Asked   int // requests
	Whole   int // answered with status 200, whole, with as many tokens as were asked for
	refused int // answered with 429 or 503 and no content
	failed  int // anything else
	Good    int // of the whole, those that meet the SLO
	first   error
	tokens  int           // of the whole answers
	elapsed time.Duration // from the loop's beginning to the end of the last answer
	cached  int           // tokens of their prompts that engines had already, where they told
	prompts int           // tokens of their prompts, as engines told

	Ttft, Itl, Tpot, e2el Quantiles // of the whole answers
	Late                  Quantiles // how much later than intended the client sent
}

// Goodput is the requests a second that met the SLO.
func (s Summary) Goodput() float64 { return float64(s.Good) / s.elapsed.Seconds() }

// Verdict is an error if the run is void: an answer was cut or wrong, or none came. Whether requests may have been refused is
// the caller's to say: in a run that asks for more than the engines can do, it is an outcome like others.
func (s Summary) Verdict(mayRefuse bool) error {
	if s.Asked == 0 {
		return fmt.Errorf("%w: nothing was asked", ErrVoid)
	}
	if s.failed > 0 || s.refused > 0 && !mayRefuse {
		return fmt.Errorf("%w: of %d requests %d failed and %d were refused, the first of them: %w", ErrVoid, s.Asked, s.failed, s.refused, s.first)
	}
	return nil
}

// Fault says what is wrong with an outcome, nil if it is a whole answer with the tokens that were asked for.
func (o *Outcome) Fault() error {
	switch {
	case o.Err != nil:
		return o.Err
	case o.Status != fasthttp.StatusOK || !o.Whole || len(o.Chunks) == 0:
		return fmt.Errorf("status %d, %d chunks, whole: %t", o.Status, len(o.Chunks), o.Whole)
	case o.Tokens > 0 && o.Counted != o.Tokens:
		return fmt.Errorf("%d tokens; want %d", o.Counted, o.Tokens)
	}
	return nil
}

// Summarise sums up what an open loop has seen.
func Summarise(outcomes []Outcome, s SLO) Summary {
	t := NewTally(s)
	for i := range outcomes {
		t.Add(&outcomes[i])
	}
	return t.Summary()
}

// Tally sums up outcomes one after the other, and keeps little of each. NewTally makes one.
type Tally struct {
	slo                    SLO
	sum                    Summary
	ttft, tpot, e2el, late []time.Duration
	itl                    histogram
}

// NewTally returns a tally of nothing.
func NewTally(s SLO) *Tally { return &Tally{slo: s} }

// Add takes an outcome in. It keeps nothing of it.
func (t *Tally) Add(o *Outcome) {
	sum := &t.sum
	sum.Asked++
	sum.elapsed = max(sum.elapsed, o.Ended)
	t.late = append(t.late, o.Sent-o.At)
	if err := o.Fault(); err != nil {
		if o.Status == fasthttp.StatusTooManyRequests || o.Status == fasthttp.StatusServiceUnavailable {
			sum.refused++
		} else {
			sum.failed++
		}
		if sum.first == nil {
			sum.first = err
		}
		return
	}
	sum.Whole++
	sum.tokens += o.Counted
	sum.cached += o.usage.Details.Cached
	sum.prompts += o.usage.Prompt
	t.ttft, t.e2el = append(t.ttft, o.Ttft()), append(t.e2el, o.e2el())
	if o.Counted > 1 {
		t.tpot = append(t.tpot, o.tpot())
	}
	for j := 1; j < len(o.Chunks); j++ {
		t.itl.add(o.Chunks[j] - o.Chunks[j-1])
	}
	if t.slo.met(o) {
		sum.Good++
	}
}

// Summary is what all that was added has come to.
func (t *Tally) Summary() Summary {
	sum := t.sum
	sum.Ttft, sum.Itl, sum.Tpot, sum.e2el, sum.Late = QuantilesOf(t.ttft), t.itl.quantiles(), QuantilesOf(t.tpot), QuantilesOf(t.e2el), QuantilesOf(t.late)
	return sum
}

// histogram counts times, of which there may be hundreds of millions. A quantile of it differs by less than 0.1 % from that of the times.
type histogram struct {
	counts []uint64 // by the bits of a time that count most, from its highest bit on
	n      uint64
	sum    float64
}

// keptBits is how many bits after a time's highest bit are kept.
const keptBits = 10

func (h *histogram) add(t time.Duration) {
	v := uint64(max(t, 0))
	at := int(v)
	if cut := bits.Len64(v) - 1 - keptBits; cut > 0 {
		at = cut<<keptBits + int(v>>cut)
	}
	for at >= len(h.counts) {
		h.counts = append(h.counts, make([]uint64, 1<<keptBits)...)
	}
	h.counts[at]++
	h.n++
	h.sum += float64(v)
}

// quantiles takes a bucket's lowest time for all in it. Between the nearest two it interpolates, as QuantilesOf does.
func (h *histogram) quantiles() Quantiles {
	if h.n == 0 {
		return Quantiles{}
	}
	return Quantiles{time.Duration(h.sum / float64(h.n)), h.at(.5), h.at(.9), h.at(.99)}
}

func (h *histogram) at(p float64) time.Duration {
	whole, part := math.Modf(p * float64(h.n-1))
	nth := uint64(whole)
	low := -1 // the bucket of the nth time
	before := uint64(0)
	for at, n := range h.counts {
		before += n
		switch {
		case before <= nth || n == 0:
			continue
		case low < 0 && before > nth+1:
			return lowest(at)
		case low >= 0:
			return lowest(low) + time.Duration(part*float64(lowest(at)-lowest(low)))
		}
		low = at
	}
	return lowest(low)
}

// lowest is the lowest time of a bucket.
func lowest(at int) time.Duration {
	if at < 2<<keptBits {
		return time.Duration(at)
	}
	cut := at>>keptBits - 1
	return time.Duration(at-cut<<keptBits) << cut
}

// ErrVoid marks a run whose counts were wrong.
var ErrVoid = errors.New("void")
