package migration

import (
	"sync"
	"time"

	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/router/fleet"
)

// Plans decides which moves there are to be, and keeps what it decides by: conversations, budgets, what waits and what runs. It reads no clock and begins
// nothing: what is to be carried out is returned, and Ended is told of its end. It is safe for concurrent use.
type Plans struct {
	budgets fleet.PerEngine[budget]

	mu     sync.Mutex
	pairs  pairBudgets
	moves  string // what migration.mode and migration.uses were when Update looked last
	known  *conversations
	pins   pins
	lanes  map[lane]*queue
	unable fleet.PerEngine[inability]
	seen   seen
	untold []Ended   // what Told returns
	lookAt time.Time // when to look next for what conversations share

	arrivals // Look's, which one goroutine calls
}

// NewPlans returns one that knows no conversations, and keeps none before Update.
func NewPlans() *Plans {
	p := &Plans{
		budgets: fleet.NewPerEngine[budget](), pairs: pairBudgets{}, pins: newPins(), unable: fleet.NewPerEngine[inability](), lanes: map[lane]*queue{},
		seen: seen{running: map[*Planned]Shown{}},
	}
	p.known = newConversations(func(c *conversation) {
		if c.pin != nil {
			p.pins.give(c.pin, PinReplaced)
		}
	})
	return p
}

// Planned is a move that is to be carried out.
type Planned struct {
	Reason   Reason
	From, To *fleet.Engine
	IDs      []uint32      // that are moved: whole blocks. Whoever carries it out may leave some of the last ones out
	Within   time.Duration // it ends within that
	Pin      *Pin          // From pins them for another engine already; nil: it is to be asked. Whoever carries it out sees that it is read or freed

	predicted, patience time.Duration // as those of Ended
	s                   *Snapshot
	c                   *conversation
	run                 uint64     // of From
	role                fleet.Role // of From
	queue               *queue     // that the move was in; nil: none
	waits               float64    // seconds that both engines were thought to have others to serve when it began
	began               time.Time
}

// ended is the move as it is told of.
func (w *Planned) ended(result Result, took time.Duration) Ended {
	return Ended{Reason: w.Reason, Result: result, Tokens: len(w.IDs), Took: took, From: w.From.Name, To: w.To.Name, Predicted: w.predicted, Patience: w.patience}
}

// bytes is how large what is moved is at the engine that receives it; 0 if that does not say how large its blocks are.
func (w *Planned) bytes() float64 {
	return metadata.TokenBytes(w.s.Fleet.Records(w.To)) * float64(len(w.IDs))
}

// inability is what a run of an engine has shown by a move: none of its conversations can be moved. The zero value is of one that has shown nothing.
type inability struct {
	run uint64
	why Result
}

// of returns why nothing can be moved off a run.
func (i *inability) of(run uint64) (why Result, unable bool) {
	return i.why, i.why != Moved && i.run == run
}

// beginLocked notes that a move begins.
func (p *Plans) beginLocked(w *Planned, now time.Time) {
	w.began = now
	p.seen.running[w] = Shown{Began: now, Reason: w.Reason.String(), State: "running", From: w.From.Name, To: w.To.Name, Moves: 1, Tokens: len(w.IDs)}
	w.waits = workOf(w.From, now).Wait + workOf(w.To, now).Wait
	for _, e := range []*fleet.Engine{w.From, w.To} {
		p.budgets.Of(e).begin(now, len(w.IDs), w.s.Config.Migration.TokensPerSecond)
	}
	p.pairs.begin(pair{w.From, w.To}, now, w.bytes(), int(w.s.Config.Migration.BytesPerSecond))
}

// Ended notes the end of a move, and returns it as it is told of.
func (p *Plans) Ended(w *Planned, result Result, now time.Time) Ended {
	out := w.ended(result, now.Sub(w.began))
	if w.Pin == nil {
		p.learn(w, out, fleet.Seconds(now))
	}
	p.mu.Lock()
	if w.Pin != nil {
		p.pins.read(w.From, result, now)
	}
	if w.queue != nil {
		w.queue.moving--
	}
	delete(p.seen.running, w)
	w.c.awaited, w.c.moved = w.c.awaited && out.Reason != ForRoute, w.c.moved || out.Result == Moved
	for _, e := range []*fleet.Engine{w.From, w.To} {
		b := p.budgets.Of(e)
		b.end()
		if out.Reason == ForRoute && (out.Result == Failed || out.Result == Refused || out.Result == Late) {
			b.failed = now.Add(w.s.Config.Migration.Timeout)
		}
	}
	if out.Result == Moved {
		out.Bytes = w.bytes()
	}
	switch {
	case (out.Result == Moved || out.Result == AlreadyThere) && out.Reason == ForDrain && p.known.has(w.c):
		w.c.at[w.role] = place{w.To, w.s.Fleet.RunOf(w.To)}
	case out.Result == Moved || out.Result == AlreadyThere:
		w.c.copied(w.To, w.s.Fleet.RunOf(w.To), len(w.IDs))
	case out.Result == HybridCache, out.Result == NoHandOff && !w.From.Publishes: // one that publishes records may have restarted meanwhile
		*p.unable.Of(w.From) = inability{w.run, out.Result}
	}
	w.c.lastMove = &out
	p.tellLocked(out, now)
	p.mu.Unlock()
	if out.Result == Moved {
		w.c.trace.Note(w.To, out.Tokens, w.c.prompt)
	}
	return out
}

// learn takes in how long a move took. One that failed says only that it takes at least as long.
func (p *Plans) learn(w *Planned, out Ended, now float64) {
	model := w.s.Fleet.Models[w.c.model]
	if model == nil {
		return
	}
	from, to, seconds := w.From.Forecast(), w.To.Forecast(), max(out.Took.Seconds()-w.waits, 1e-6)
	switch out.Result {
	case Moved:
		model.Forecast.Migrated(now, from, to, out.Tokens, seconds)
	case Late, Failed:
		if expected, _ := model.Forecast.Migration(from, to, out.Tokens); seconds > expected {
			model.Forecast.Migrated(now, from, to, out.Tokens, seconds)
		}
	}
}

// workOf is what an engine has to do.
func workOf(e *fleet.Engine, now time.Time) policies.Work {
	return e.Forecast().Work(fleet.Seconds(now))
}

// tellLocked notes a move that has ended, or that there is not.
func (p *Plans) tellLocked(e Ended, now time.Time) {
	p.seen.endedLocked(e, now)
	p.untold = append(p.untold, e)
}

// Told returns the moves that have ended, or that there are not, since it was called last.
func (p *Plans) Told() []Ended {
	p.mu.Lock()
	defer p.mu.Unlock()
	untold := p.untold
	p.untold = nil
	return untold
}

// Stats is what there is now.
type Stats struct {
	Conversations int `json:"conversations"` // that are kept
	Bytes         int `json:"bytes"`         // of memory
	Running       int `json:"running"`       // moves
	Waiting       int `json:"waiting"`       // conversations that are to be moved

	PinnedBlocks map[string]int  `json:"pinned_blocks,omitempty"` // by engine, that it pins for a move of this gateway
	PinsEnded    [PinEnds]uint64 `json:"-"`                       // what became of what engines had pinned

	Moves []Shown `json:"moves,omitempty"` // those that run, those that wait, and the latest that are over, the last first
}

// Stats returns what there is now.
func (p *Plans) Stats(now time.Time) Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Conversations: len(p.known.by), Bytes: p.known.used, Running: len(p.seen.running), Moves: p.shownLocked(now), PinnedBlocks: p.pins.blocks(), PinsEnded: p.pins.ended}
	for _, q := range p.lanes {
		s.Waiting += len(q.waiting)
	}
	return s
}
