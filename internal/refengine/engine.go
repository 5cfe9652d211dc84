package refengine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/ticket"
	"pdrouter/metadata"
)

// Engine computes sequences. One goroutine (run) owns every field below inbox; everything else talks to it through
// post. Its methods are safe for concurrent use.
type Engine struct {
	cfg      Config
	model    *Model
	self     metadata.Incarnation
	plane    *plane // nil: only whole requests
	admitter *ticket.Admitter
	ended    chan struct{}
	wake     chan struct{}
	port     int          // of its side channel; see Pull
	exported atomic.Int64 // how many requests have kept blocks for another engine; see Pull

	mu    sync.Mutex
	inbox []func()

	group     *group
	pool      *pool
	waiting   []*Sequence
	running   []*Sequence
	hanging   map[*Sequence]bool
	transfers map[kvplane.TransferID]*transfer
	exports   map[string]*export // by the request's name; see Pull
	fresh     []*transfer        // decode legs of which the plane must hear unless they have blocks now
	step      []entry            // computed, its cost not over yet; nil: none
	cost      *time.Timer
	late      *time.Timer // the plane's earliest deadline
	stopping  bool
	settling  bool // only blocks in quarantine are left, and their time is bounded
	killed    bool
	faults    []Fault // cfg.Faults, or what SetFaults has put in their place
	legs      [legs]int
	counts    counts
}

// entry is one sequence's part of a step.
type entry struct {
	seq  *Sequence
	item item
}

// New allocates the memory of every rank and starts the engine. Close ends it.
func New(cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("refengine: %w", err)
	}
	m := NewModel(cfg.Shape)
	g, err := newGroup(m, cfg)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, faults: cfg.Faults, model: m, self: metadata.Incarnation{Engine: cfg.Name, Generation: cfg.Generation},
		ended: make(chan struct{}), wake: make(chan struct{}, 1),
		group: g, pool: newPool(cfg.Blocks), hanging: map[*Sequence]bool{}, transfers: map[kvplane.TransferID]*transfer{}, exports: map[string]*export{},
		cost: time.NewTimer(time.Hour), late: time.NewTimer(time.Hour), counts: newCounts(),
	}
	e.cost.Stop()
	e.late.Stop()
	e.admitter = ticket.NewAdmitter(e.self, cfg.Plane.Tickets)
	if cfg.Plane.Transport != nil {
		if e.plane, err = openPlane(cfg, g, e.self, e.ring); err != nil {
			return nil, errors.Join(err, g.close())
		}
	}
	cfg.Pull.join(e)
	go e.run()
	return e, nil
}

// Incarnation names this run of the engine.
func (e *Engine) Incarnation() metadata.Incarnation { return e.self }

// post lets the engine's goroutine call f. It never blocks.
func (e *Engine) post(f func()) {
	e.mu.Lock()
	e.inbox = append(e.inbox, f)
	e.mu.Unlock()
	e.ring()
}

// ring wakes the engine's goroutine. It never blocks.
func (e *Engine) ring() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// take empties the inbox.
func (e *Engine) take() []func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	in := e.inbox
	e.inbox = nil
	return in
}

// ask posts f and waits until it has run. It reports whether it has: false means that the engine has ended.
func (e *Engine) ask(f func()) bool {
	ran := make(chan struct{})
	e.post(func() { f(); close(ran) })
	select {
	case <-ran:
		return true
	case <-e.ended:
		return false
	}
}

// Submit takes a request. Every sequence ends in an Output that says so, unless a fault lets it hang.
func (e *Engine) Submit(req Request) (*Sequence, error) {
	switch {
	case len(req.Tokens) == 0 || req.MaxTokens < 1:
		return nil, fmt.Errorf("%w: a prompt of %d tokens, an answer of %d", ErrTooLong, len(req.Tokens), req.MaxTokens)
	case len(req.Tokens)+req.MaxTokens > e.cfg.MaxModelLen:
		return nil, fmt.Errorf("%w: this model's maximum context length is %d tokens; the prompt has %d and the answer may have %d",
			ErrTooLong, e.cfg.MaxModelLen, len(req.Tokens), req.MaxTokens)
	case !serves(e.cfg.Role, req.Leg) || req.Leg == AnyLeg:
		return nil, fmt.Errorf("%w: a %s engine was asked for the %s leg", ErrLeg, e.cfg.Role, req.Leg)
	case req.Leg.byPlane() && e.plane == nil:
		return nil, fmt.Errorf("%w: the engine has no plane", ErrLeg)
	}
	if req.Leg.byPlane() {
		if err := e.ticketed(&req); err != nil {
			return nil, err
		}
	}
	s := &Sequence{req: req, out: make(chan Output, req.MaxTokens+2), hashes: chain(req.Salt, req.Tokens, e.cfg.BlockTokens)}
	s.tokens = append(make([]int32, 0, len(req.Tokens)+req.MaxTokens), req.Tokens...)
	var err error
	if !e.ask(func() { err = e.submitted(s) }) {
		return nil, ErrStopping
	}
	return s, err
}

func (e *Engine) submitted(s *Sequence) error {
	if e.stopping {
		return ErrStopping
	}
	s.times.Leg, s.times.Submitted = s.req.Leg, time.Now()
	s.faults = strike(e.faults, &e.legs, s.req.Leg)
	if f, ok := find(s.faults, Refuse); ok {
		return refusal(f)
	}
	if s.req.Leg.byPlane() {
		if err := e.begin(s); err != nil {
			return err
		}
	}
	if _, ok := find(s.faults, Hang); ok {
		s.state = hanging
		e.hanging[s] = true
		return nil
	}
	e.waiting = append(e.waiting, s)
	return nil
}

// Cancel ends a sequence whose answer nobody wants. It may be called at any time, also after the end.
func (e *Engine) Cancel(s *Sequence) {
	e.post(func() { e.abort(s, ErrLeft, "client left") })
}

// CancelTransfer ends the leg that belongs to a transfer, and gives up what is held for it.
func (e *Engine) CancelTransfer(id kvplane.TransferID, why string) {
	e.post(func() {
		if t := e.transfers[id]; t != nil {
			e.cancelTransfer(t, why)
		}
	})
}

// run is the engine's goroutine.
func (e *Engine) run() {
	defer close(e.ended)
	defer e.cfg.Pull.leave(e)
	for {
		for _, f := range e.take() {
			f()
		}
		e.hear()
		if e.killed || e.stopping && e.idle() {
			return
		}
		if e.stopping {
			e.settle()
		}
		if e.step == nil && e.compute() {
			continue
		}
		e.queue() // what came during a step
		e.tell()
		select {
		case <-e.wake:
		case <-e.late.C:
		case <-e.cost.C:
			e.deliver()
		}
	}
}

// idle reports whether nothing is under way. A step whose sequences have all ended does not count.
func (e *Engine) idle() bool {
	return len(e.waiting)+len(e.running)+len(e.hanging)+len(e.transfers) == 0
}

// settleTime is how long an engine that stops waits for peers to answer for blocks that nobody else waits for.
const settleTime = 2 * time.Second

// settle bounds the wait for blocks in quarantine, once nothing else is left: a writer that is silent may be so for
// ever, and its target goes with this process.
func (e *Engine) settle() {
	if e.settling || len(e.waiting)+len(e.running)+len(e.hanging) > 0 {
		return
	}
	for _, t := range e.transfers {
		if t.seq.req.Leg != DecodeLeg || t.seq.state != done {
			return // somebody waits for it
		}
	}
	e.settling = true
	time.AfterFunc(settleTime, func() { e.post(e.kill) })
}

// Close takes no more requests, lets those in flight and the transfers they owe come to their end, or ends them when
// ctx does, and frees everything. It may be called twice.
func (e *Engine) Close(ctx context.Context) error {
	e.post(func() { e.stopping = true })
	select {
	case <-e.ended:
	case <-ctx.Done():
		e.post(e.kill)
		<-e.ended
	}
	var err error
	if e.plane != nil {
		err = e.plane.close()
	}
	return errors.Join(err, e.group.close())
}

// kill ends every sequence; the blocks go with the memory.
func (e *Engine) kill() {
	e.killed = true
	for _, s := range append(append([]*Sequence(nil), e.waiting...), e.running...) {
		e.abort(s, ErrStopping, "stopping")
	}
	for s := range e.hanging {
		e.abort(s, ErrStopping, "stopping")
	}
	for _, t := range e.transfers {
		e.cancelTransfer(t, "stopping")
	}
}
