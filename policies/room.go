package policies

import (
	"math"
	"slices"
)

// With queue.by_objective requests wait in the gateway's queue, in its order, and not at engines. What follows says when engines have room for a
// request, and how long it may wait for that.

const (
	// waitShare is for which part of the objective a prompt may wait at an engine that it is given to. It keeps engines busy; more would only have
	// requests wait where their order cannot be changed any more.
	waitShare = 1. / 8
	// mostBroken is how many objectives a request may break more than it would on idle engines.
	mostBroken = .5
	// unboundedEach of requests, one waits as long as any may: so none is refused for ever whose kind never finds room in time.
	unboundedEach = 16
)

// OnIdle is what would be chosen for a request if the engines had nothing to do.
func (p *Policy) OnIdle(q Request, f Fleet, d Draw) Choice {
	f.Forecast = f.Forecast.Idle()
	return p.Choose(q, f, d)
}

// Room reports whether engines can be given a request now: on the path that it would take its prompt waits little to be computed, and it breaks few
// objectives that it would not break on idle engines. Of a request that would miss its own in any case it is the others' that count. The request must then
// be chosen for by the same draw, or it may go to other engines. unbegun requests, whose prompts have so many tokens in all, are on their way to engines.
// The forecast does not have them yet, so room is left for them.
func (p *Policy) Room(q Request, f Fleet, d Draw, unbegun, tokens int) bool {
	f.Forecast = f.with(unbegun, tokens)
	now := p.Choose(q, f, d)
	return now.Decode < 0 || p.waitsLittle(&q, f.Forecast, &now) && (now.Breaks <= mostBroken || now.Breaks-p.OnIdle(q, f, d).Breaks <= mostBroken)
}

// waitsLittle reports whether the engine that is to compute the prompt begins with it soon. A request that may come later than others waits for that in the
// queue: at an engine it would hold up those that come after it.
func (p *Policy) waitsLittle(q *Request, f *Forecast, c *Choice) bool {
	if f == nil {
		return true
	}
	w := workOf(f.Decode, c.Decode)
	if c.Split {
		w = workOf(f.Prefill, c.Prefill)
	}
	usual := p.Objective(q.Model)
	return w.Wait <= waitShare*min(q.Objective.or(usual).TTFT, usual.TTFT)
}

// longestRoom is how far RoomIn looks, in seconds.
const longestRoom = 60

// RoomIn is after how many seconds engines are thought to have room for a request, if they do what they have to do now and are given nothing else: at
// most longestRoom. Answers are thought to end evenly until the last one has.
func (p *Policy) RoomIn(q Request, f Fleet, d Draw) float64 {
	works := f.Forecast
	has := func(at float64) bool {
		f.Forecast = works.after(at)
		return p.Room(q, f, d, 0, 0)
	}
	if has(0) {
		return 0
	}
	least, at := 0., 1./32
	for ; at < longestRoom && !has(at); at *= 1.5 {
		least = at
	}
	for range 3 { // so few, 23 at most in all: a refusal must cost less than serving the request
		if mid := (least + at) / 2; has(mid) {
			at = mid
		} else {
			least = mid
		}
	}
	return min(at, longestRoom)
}

// MaxWait is how many seconds a request may wait for room: as long as it can keep its time to the first token, if engines that have nothing else to
// do need idle seconds. One that they would not serve in time either may wait as long as the shortest one: it has no less right to its turn. bounded
// is false of one in unboundedEach. draw is random.
func (o Objective) MaxWait(idle float64, draw uint64) (seconds float64, bounded bool) {
	most := (1 - waitShare) * o.TTFT
	if seconds = most - idle; seconds <= 0 {
		seconds = most
	}
	return seconds, draw%unboundedEach != 0
}

// Idle is the forecast of the same engines if they had nothing to do.
func (f *Forecast) Idle() *Forecast {
	return f.but(func(w *Work) { *w = Work{Speed: w.Speed} })
}

// after is the forecast of the same engines some seconds later, if they are given nothing meanwhile.
func (f *Forecast) after(seconds float64) *Forecast {
	fades := math.Exp(-seconds / Recent)
	later := f.but(func(w *Work) {
		itl, _ := w.ITL()
		left := 1.
		if lasts := max(2, f.Demand.Answer) * itl; seconds > 0 {
			left = max(0, 1-seconds/lasts) // 0 also where nothing is known of its steps
		}
		w.Streams, w.Context = int(math.Ceil(left*float64(w.Streams))), int(left*float64(w.Context))
		w.Prompts *= fades
		w.Wait, w.Soon, w.Reading = max(0, w.Wait-seconds), max(0, w.Soon-seconds), max(0, w.Reading-seconds)
	})
	if later != nil {
		later.Demand.Rate *= fades
	}
	return later
}

// with is the forecast of the engines with so many requests more. Which of them these go to is not known: an even part of their prompts counts at each
// of a role.
func (f *Fleet) with(requests, tokens int) *Forecast {
	if requests == 0 || f.Forecast == nil {
		return f.Forecast
	}
	part := func(engines []Engine) float64 {
		usable := 0
		for i := range engines {
			if engines[i].Usable {
				usable++
			}
		}
		return float64(requests) / float64(max(1, usable))
	}
	more, each := *f.Forecast, tokens/requests
	computes := func(works []Work, part float64) []Work {
		works = slices.Clone(works)
		for i := range works {
			_, work := works[i].prompt(each, each)
			works[i].Wait += part * work
			works[i].Soon += part * work
		}
		return works
	}
	more.Prefill, more.Decode = computes(more.Prefill, part(f.Prefill)), computes(more.Decode, part(f.Decode))
	streams := int(math.Ceil(part(f.Decode)))
	for i := range more.Decode {
		more.Decode[i].Streams += streams
		more.Decode[i].Context += streams * each
	}
	return &more
}

// but is the forecast with other work of each engine.
func (f *Forecast) but(change func(*Work)) *Forecast {
	if f == nil {
		return nil
	}
	changed := func(works []Work) []Work {
		works = slices.Clone(works)
		for i := range works {
			change(&works[i])
		}
		return works
	}
	return &Forecast{Prefill: changed(f.Prefill), Decode: changed(f.Decode), Demand: f.Demand, Pairs: f.Pairs}
}
