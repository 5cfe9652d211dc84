package bench

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/valyala/fasthttp"
)

// The moments of a request are those of `vllm bench serve`, but for two things: they are measured from the time at which the
// request was to be sent, so that a client or a queue that is late hides nothing, and the first token is the first content that
// is not empty.

// ttft is the time to the first token. Only an outcome with chunks has moments.
func (o *outcome) ttft() time.Duration { return o.chunks[0] - o.at }

// e2el is the time to the last chunk.
func (o *outcome) e2el() time.Duration { return o.chunks[len(o.chunks)-1] - o.at }

// tpot is the mean time of each token after the first, 0 where there is none after it.
func (o *outcome) tpot() time.Duration {
	if o.counted < 2 {
		return 0
	}
	return (o.e2el() - o.ttft()) / time.Duration(o.counted-1)
}

// slo is what a request must not exceed to count as good; 0 is no bound.
type slo struct{ ttft, tpot, e2el time.Duration }

// met reports whether a request with an answer meets every bound.
func (s slo) met(o *outcome) bool {
	within := func(got, most time.Duration) bool { return most == 0 || got <= most }
	return within(o.ttft(), s.ttft) && within(o.tpot(), s.tpot) && within(o.e2el(), s.e2el)
}

// quantiles of times. Of none at all each is 0.
type quantiles struct{ mean, p50, p90, p99 time.Duration }

// quantilesOf sums up times, interpolating between the nearest two as numpy.percentile does.
func quantilesOf(times []time.Duration) quantiles {
	if len(times) == 0 {
		return quantiles{}
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
	return quantiles{time.Duration(sum / float64(len(sorted))), at(.5), at(.9), at(.99)}
}

// summary is what an open loop has come to.
type summary struct {
	asked   int // requests
	whole   int // answered with status 200, whole, with as many tokens as were asked for
	refused int // answered with 429 or 503 and no content
	failed  int // anything else
	good    int // of the whole, those that meet the SLO
	first   error
	tokens  int           // of the whole answers
	elapsed time.Duration // from the loop's beginning to the end of the last answer
	cached  int           // tokens of their prompts that engines had already, where they told
	prompts int           // tokens of their prompts, as engines told

	ttft, itl, tpot, e2el quantiles // of the whole answers
	late                  quantiles // how much later than intended the client sent
}

// goodput is the requests a second that met the SLO.
func (s summary) goodput() float64 { return float64(s.good) / s.elapsed.Seconds() }

// verdict is an error if the run is void: an answer was cut or wrong, or none came. Whether requests may have been refused is
// the caller's to say: in a run that asks for more than the engines can do, it is an outcome like others.
func (s summary) verdict(mayRefuse bool) error {
	if s.asked == 0 {
		return fmt.Errorf("%w: nothing was asked", errVoid)
	}
	if s.failed > 0 || s.refused > 0 && !mayRefuse {
		return fmt.Errorf("%w: of %d requests %d failed and %d were refused, the first of them: %w", errVoid, s.asked, s.failed, s.refused, s.first)
	}
	return nil
}

// fault says what is wrong with an outcome, nil if it is a whole answer with the tokens that were asked for.
func (o *outcome) fault() error {
	switch {
	case o.err != nil:
		return o.err
	case o.status != fasthttp.StatusOK || !o.whole || len(o.chunks) == 0:
		return fmt.Errorf("status %d, %d chunks, whole: %t", o.status, len(o.chunks), o.whole)
	case o.tokens > 0 && o.counted != o.tokens:
		return fmt.Errorf("%d tokens; want %d", o.counted, o.tokens)
	}
	return nil
}

// summarise sums up what an open loop has seen.
func summarise(outcomes []outcome, s slo) summary {
	sum := summary{asked: len(outcomes)}
	var ttft, itl, tpot, e2el, late []time.Duration
	for i := range outcomes {
		o := &outcomes[i]
		sum.elapsed = max(sum.elapsed, o.ended)
		late = append(late, o.sent-o.at)
		if err := o.fault(); err != nil {
			if o.status == fasthttp.StatusTooManyRequests || o.status == fasthttp.StatusServiceUnavailable {
				sum.refused++
			} else {
				sum.failed++
			}
			if sum.first == nil {
				sum.first = err
			}
			continue
		}
		sum.whole++
		sum.tokens += o.counted
		sum.cached += o.usage.Details.Cached
		sum.prompts += o.usage.Prompt
		ttft, e2el = append(ttft, o.ttft()), append(e2el, o.e2el())
		if o.counted > 1 {
			tpot = append(tpot, o.tpot())
		}
		for j := 1; j < len(o.chunks); j++ {
			itl = append(itl, o.chunks[j]-o.chunks[j-1])
		}
		if s.met(o) {
			sum.good++
		}
	}
	sum.ttft, sum.itl, sum.tpot, sum.e2el, sum.late = quantilesOf(ttft), quantilesOf(itl), quantilesOf(tpot), quantilesOf(e2el), quantilesOf(late)
	return sum
}
