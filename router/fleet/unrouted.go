package fleet

import (
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/policies/forecast"
)

// Report is what an engine says of its requests, whoever has sent them.
type Report struct {
	Running  int     // at work
	Waiting  int     // for a place, or for KV
	Deferred int     // of those that wait, those that wait for something else than a place
	Held     int     // tokens of KV that requests hold; below 0 if it does not say
	Computed float64 // tokens of prompts that it has computed since its start; below 0 if it does not say
}

// reading is a Report, and what gateways had at the engine meanwhile.
type reading struct {
	Report
	at        time.Time
	own       int // legs of this gateway: those that were there when the engine was asked, and those that began until it had answered
	elsewhere int // legs of other gateways: the most since the reading before this one, and until the next one
	streams   int // answers that the engine gives or is to give to all gateways
	context   int // tokens that these hold
}

// unrouted is what the engine has beyond what gateways know of, by one reading.
func (r *reading) unrouted() (u forecast.Unrouted) {
	gateways := r.own + r.elsewhere
	beyond := max(0, r.Running+r.Waiting-gateways)
	u.Prompts = min(beyond, max(0, r.Waiting-r.Deferred-max(0, gateways-r.streams)))
	if u.Streams = beyond - u.Prompts; u.Streams > 0 {
		u.Context = max(0, r.Held-r.context)
	}
	return u
}

// unroutedOf is what two readings in a row have both shown. One alone may have met a request whose end a gateway has seen before the engine has.
func unroutedOf(was, last *reading) forecast.Unrouted {
	a, b := was.unrouted(), last.unrouted()
	requests := min(a.Requests(), b.Requests())
	prompts := min(a.Prompts, b.Prompts, requests)
	u := forecast.Unrouted{Prompts: prompts, Streams: requests - prompts}
	if u.Streams > 0 {
		u.Context = min(a.Context, b.Context)
	}
	return u
}

// reports are what an engine has said lately. It is safe for concurrent use.
type reports struct {
	mu        sync.Mutex
	was, last reading       // the two latest; the zero value of at is that of none
	due       time.Duration // from the last one to the next
	elsewhere int           // legs of other gateways, the most lately
	most      int           // the most of them since the last report
	told      int           // the most of this gateway, by the latest call of mostLegs

	latest atomic.Pointer[unrouted] // what choices go by; nil before the first report
}

// unrouted is what choices know of an engine's unrouted requests. It is never changed.
type unrouted struct {
	forecast.Unrouted
	tokens  int     // that the prompts which wait are thought to have
	at, due float64 // as forecasts count them
}

// ReportsApart is the shortest time between two reports that count.
const ReportsApart = 500 * time.Millisecond

// CountedLegs is how many legs the engine had at a time, and how many have begun there before.
type CountedLegs struct{ inFlight, begun int64 }

// CountLegs is called before the engine is asked for a Report.
func (e *Engine) CountLegs() CountedLegs {
	c := CountedLegs{begun: e.begun.Load()} // first: a leg that begins now counts twice rather than not at all
	c.inFlight = e.InFlight.Load()
	return c
}

// mostLegs is how many legs this gateway has had at the engine at once, at most, since the call before the last one.
func (e *Engine) mostLegs() int {
	s := &e.reports
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.told
	s.told = int(e.most.Swap(e.InFlight.Load()))
	return max(before, s.told)
}

// NoteReport notes what the engine says of its requests. It was asked after before was counted, and is to be asked again when due is over.
func (e *Engine) NoteReport(r Report, before CountedLegs, now time.Time, due time.Duration) {
	s := &e.reports
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.last.at) < ReportsApart {
		return
	}
	s.was, s.last, s.due = s.last, reading{Report: r, at: now, own: int(before.inFlight + e.begun.Load() - before.begun), elsewhere: s.most}, due
	s.last.streams, s.last.context = e.forecast.Gateways()
	s.most = s.elsewhere
	e.forecast.Computed(Seconds(now), due.Seconds(), r.Computed)
	e.compareLocked()
}

// setElsewhere notes how many legs other gateways have.
func (e *Engine) setElsewhere(legs int) {
	s := &e.reports
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elsewhere, s.most = legs, max(s.most, legs)
	if legs > s.last.elsewhere && !s.last.at.IsZero() { // they had them before they told of them
		s.last.elsewhere = legs
		e.compareLocked()
	}
}

// compareLocked finds what the latest reports have beyond what gateways know of.
func (e *Engine) compareLocked() {
	s, now := &e.reports, unrouted{}
	if now.at, now.due = Seconds(s.last.at), s.due.Seconds(); s.last.at.Sub(s.was.at) <= 2*s.due {
		now.Unrouted = unroutedOf(&s.was, &s.last)
	}
	e.forecast.SetUnrouted(now.Unrouted, now.at, now.due)
	if now.Prompts > 0 {
		now.tokens = now.Prompts * e.forecast.UsualPrompt()
	}
	s.latest.Store(&now)
}

// unroutedAt is how many unrouted requests the engine is thought to have, and how many tokens of their prompts wait to be computed.
func (e *Engine) unroutedAt(now time.Time) (requests, tokens int) {
	u := e.reports.latest.Load()
	if u == nil || u.Requests() == 0 {
		return 0, 0
	}
	counts := forecast.Counts(Seconds(now)-u.at, u.due)
	return int(counts*float64(u.Requests()) + .5), int(counts * float64(u.tokens))
}

// UnroutedLoad is what an engine reports beyond what gateways have sent there, for people.
type UnroutedLoad struct {
	Requests int     `json:"requests"`
	Waiting  int     `json:"waiting"`      // of them, those whose prompts wait to be computed
	Wait     float64 `json:"wait_seconds"` // that these prompts are thought to take
	Prompts  float64 `json:"prompts"`      // the part of its recent time in which it computed prompts of such requests
	Age      float64 `json:"age_seconds"`  // of the report
}

// UnroutedAt is what the engine reports beyond what gateways have sent there, as far as it counts; nil if it has not reported for so long that nothing
// counts, or never.
func (e *Engine) UnroutedAt(now time.Time) *UnroutedLoad {
	u, at := e.reports.latest.Load(), Seconds(now)
	if u == nil {
		return nil
	}
	counts := forecast.Counts(at-u.at, u.due)
	if counts == 0 {
		return nil
	}
	w, out := e.forecast.ForUnrouted(at), &UnroutedLoad{Age: max(0, at-u.at)}
	out.Requests, _ = e.unroutedAt(now)
	out.Waiting = min(out.Requests, int(counts*float64(u.Prompts)+.5))
	out.Wait, out.Prompts = w.Wait, w.Prompts
	return out
}
