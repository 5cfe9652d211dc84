package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ModelFleet is modelled engines and the links between them, in virtual time: the same requests at the same times give the same
// schedule, to the nanosecond. It reads no clock and is not safe for concurrent use; its times never go back.
type ModelFleet struct {
	engines []*modelEngine
	push    bool // prefill writes as soon as both sides are there; else decode reads what prefill's answer names
	now     time.Duration
	events  modelEvents
	drawn   int
	told    []ModelToken
	spare   []ModelToken // told, the time before
	over    map[string]*modelHandover

	seen     map[uint64]int // of the runs of prompts that any engine was asked for: blocks
	prompts  int            // tokens of prompts that were asked for
	possible int            // of those, tokens that one cache without bounds would have had
}

// modelHandover is the KV of one request on its way.
type modelHandover struct {
	from, to *ModelSeq // nil until prefill has finished; until decode has blocks
	wants    *ModelSeq // decode's leg; nil until it came
	moving   bool
	finished time.Duration // prefill
	asked    time.Duration // decode: when its leg came
}

// holdFor is how long prefill keeps KV for a decode leg that does not come: vLLM's lease. One that came and waits extends it.
const holdFor = 30 * time.Second

func NewModelFleet(push bool, engines ...*modelEngine) *ModelFleet {
	return &ModelFleet{push: push, engines: engines, over: map[string]*modelHandover{}, seen: map[uint64]int{}}
}

// modelEvent is something that will happen.
type modelEvent struct {
	at     time.Duration
	nth    int // among those at the same time
	kind   modelKind
	engine *modelEngine
	seq    *ModelSeq
	over   *modelHandover
}

type modelKind uint8

const (
	evAdmitted modelKind = iota // the scheduler has seq
	evStepped                   // engine's step is over
	evMoved                     // over's KV is where it belongs
	evExpired                   // nobody came for what seq holds
)

type modelEvents []modelEvent

func (h modelEvents) Len() int      { return len(h) }
func (h modelEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h modelEvents) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].nth < h[j].nth
}
func (h *modelEvents) Push(x any) { *h = append(*h, x.(modelEvent)) }
func (h *modelEvents) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

func (f *ModelFleet) later(e modelEvent) {
	f.drawn++
	e.nth = f.drawn
	heap.Push(&f.events, e)
}

// Next is when something happens without anybody asking for it.
func (f *ModelFleet) Next() (time.Duration, bool) {
	if len(f.events) == 0 {
		return 0, false
	}
	return f.events[0].at, true
}

// Advance lets everything happen until then, and returns what was said. It is overwritten by the next but one call.
func (f *ModelFleet) Advance(until time.Duration) []ModelToken {
	for len(f.events) > 0 && f.events[0].at <= until {
		e := heap.Pop(&f.events).(modelEvent)
		f.now = e.at
		f.step(e)
	}
	f.now = max(f.now, until)
	told := f.told
	f.told, f.spare = f.spare[:0], told
	return told
}

var (
	errTooLarge = errors.New("the request can never have enough KV blocks")
	errNoKV     = errors.New("no prefill leg holds KV for this request")
)

// Submit takes a request at the present time.
func (f *ModelFleet) Submit(engine int, s *ModelSeq) error {
	s.engine = f.engines[engine]
	if s.Prompt < 1 || s.Answer < 1 || s.need() > s.engine.pool.blocks {
		return fmt.Errorf("bench: %w: a prompt of %d tokens, an answer of %d", errTooLarge, s.Prompt, s.Answer)
	}
	if s.Leg == DecodeLeg {
		h := f.over[s.Key]
		if h == nil && !f.push {
			return fmt.Errorf("bench: %w", errNoKV)
		}
		if h == nil {
			h = &modelHandover{}
			f.over[s.Key] = h
		}
		h.asked, h.wants = f.now, s
	} else {
		f.count(s)
	}
	f.later(modelEvent{at: f.now + s.engine.costs.admit(s.Prompt), kind: evAdmitted, seq: s})
	return nil
}

// count notes what one prefix cache for all engines, without bounds, would have had of a prompt.
func (f *ModelFleet) count(s *ModelSeq) {
	f.prompts += s.Prompt
	most := (s.Prompt - 1) / BlockTokens
	for _, r := range s.Runs {
		was := f.seen[r.ID]
		f.seen[r.ID] = max(was, r.Blocks)
		hit := min(was, r.Blocks, most)
		f.possible += hit * BlockTokens
		if most -= hit; hit < r.Blocks {
			most = 0
		}
	}
}

func (f *ModelFleet) step(e modelEvent) {
	switch e.kind {
	case evAdmitted:
		if e.seq.state == seqDone {
			return
		}
		e.seq.state = seqWaiting
		e.seq.engine.waiting = append(e.seq.engine.waiting, e.seq)
		f.work(e.seq.engine)
	case evStepped:
		for _, s := range e.engine.end() {
			f.told = append(f.told, ModelToken{Seq: s, At: f.now, nth: s.said, Last: s.said == s.Answer})
			if s.state == seqHolding {
				f.hold(s)
			}
		}
		f.work(e.engine)
	case evMoved:
		from, to := e.over.from, e.over.to
		f.free(from)
		f.work(from.engine)
		if to.state == seqDone { // its client has left
			to.engine.pool.release(&to.kv)
			to.engine.coming--
		} else {
			to.engine.received(to)
		}
		f.work(to.engine)
	case evExpired:
		h := f.over[e.seq.Key]
		switch {
		case h == nil || h.from != e.seq || h.moving:
		case h.wants != nil && h.wants.state != seqDone:
			f.later(modelEvent{at: f.now + holdFor, kind: evExpired, seq: e.seq})
		default:
			delete(f.over, e.seq.Key)
			f.free(e.seq)
			f.work(e.seq.engine)
		}
	}
}

// free ends a prefill leg that holds KV.
func (f *ModelFleet) free(s *ModelSeq) {
	s.state = seqDone
	s.engine.pool.release(&s.kv)
}

// hold keeps what a prefill leg has computed until decode has it.
func (f *ModelFleet) hold(s *ModelSeq) {
	h := f.over[s.Key]
	if h == nil {
		h = &modelHandover{}
		f.over[s.Key] = h
	}
	h.from, h.finished = s, f.now
	f.later(modelEvent{at: f.now + holdFor, kind: evExpired, seq: s})
	f.move(s.Key, h)
}

// work lets requests in and starts the next step.
func (f *ModelFleet) work(e *modelEngine) {
	for _, s := range e.let() {
		if s.state != seqReceiving {
			continue
		}
		h := f.over[s.Key]
		if h == nil { // the lease has ended
			s.state = seqDone
			e.pool.release(&s.kv)
			e.coming--
			f.told = append(f.told, ModelToken{Seq: s, At: f.now, Last: true, Err: errNoKV})
			continue
		}
		h.to = s
		f.move(s.Key, h)
	}
	if took, ok := e.begin(); ok {
		f.later(modelEvent{at: f.now + took, kind: evStepped, engine: e})
	}
}

// move starts a transfer if both sides are there. An engine's transfers follow each other on its link.
func (f *ModelFleet) move(key string, h *modelHandover) {
	if h.from == nil || h.to == nil || h.moving {
		return
	}
	h.moving = true
	h.to.over = h
	delete(f.over, key)
	from, to := h.from.engine, h.to.engine
	end := max(f.now, from.link, to.link) + from.costs.move(h.to.Prompt-h.to.cached)
	from.link, to.link = end, end
	f.later(modelEvent{at: end, kind: evMoved, over: h})
}

// Restart has an engine begin anew, with nothing in its cache. What it has still is ended by Cancel, or goes on as if another engine had it.
func (f *ModelFleet) Restart(engine int) {
	f.engines[engine] = newModelEngine(f.engines[engine].costs, f.engines[engine].budget)
}

// Cancel ends a request whose client has left.
func (f *ModelFleet) Cancel(s *ModelSeq) {
	was := s.state
	if was == seqDone || was == seqHolding {
		return
	}
	s.state = seqDone
	e := s.engine
	is := func(o *ModelSeq) bool { return o == s }
	switch was {
	case seqWaiting:
		e.waiting = slices.DeleteFunc(e.waiting, is)
	case seqRunning:
		e.running = slices.DeleteFunc(e.running, is)
		e.pool.release(&s.kv)
	case seqReceiving:
		if h := f.over[s.Key]; h != nil && h.to == s { // nothing is on its way yet
			h.to = nil
			e.coming--
			e.pool.release(&s.kv)
		}
	}
	f.work(e)
}
