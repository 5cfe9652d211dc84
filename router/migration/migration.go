// Package migration moves the KV of conversations from one engine to another before it is needed there. It owns what the gateway keeps of
// conversations (Mover.Note has it from package exchange at the end of each turn) and decides which of them move, when and where to. A move is
// two requests of one token for the same token ids: the source keeps their KV for another engine, the target reads it and has it in its prefix
// cache from then on. So it is exact whatever the client sends next: the KV is of these tokens, and an engine finds it by these tokens alone.
//
// Plans (plans.go) decides: it takes the time and begins nothing. drain.go, warm.go and replicate.go say which moves there are to be, each for one
// Reason, choose.go and shared.go what of all that is kept is worth it, and schedule.go which of them begin within the budgets. Those of route.go come
// before a request that waits for them, where package policies has found that this is its best path; no request waits for another, and none fails by
// a move. Package policies, by way of package router/fleet, says where a conversation goes. pins.go is the ledger of what decode engines pin, which a
// move can read without a request to its source. Mover carries out what Plans decides: move.go is one move as a pure state machine, drive.go its I/O.
// What a move that fails leaves with engines is handed to package reclaim. Package bench/simulate has Plans decide of modelled engines.
package migration

import (
	"context"
	"log/slog"
	"time"

	"pdrouter/internal/background"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/reclaim"
	"pdrouter/router/upstream"
)

// Snapshot is what moves go by at one moment. It is never changed.
type Snapshot struct {
	Config  *config.Config
	Fleet   *fleet.Fleet
	Token   func() (string, error) // bearer token for the engines' control routes; nil: none is sent
	Tickets kvtransfer.Signer      // nil: no tickets
	Reclaim *reclaim.Snapshot
}

// Parts are what a Mover works with.
type Parts struct {
	Log       *slog.Logger
	Current   func() *Snapshot // what the next move goes by
	Tasks     *background.Tasks
	Cancels   *upstream.CancelSet
	Reclaim   *reclaim.Reclaimer
	Transfers *kvtransfer.Transfers
	// Observe is called at the end of each move, and once for each that there is not; it must not block. May be nil.
	Observe func(Ended)
}

// Ended is a move that is over, or a conversation that is not moved.
type Ended struct {
	Reason   Reason
	Result   Result
	Tokens   int     // that were moved, or would have been
	Bytes    float64 // that KV takes on the target's ranks; 0 if nothing was moved, or the target does not say
	Took     time.Duration
	From, To string // engines; To is "" if none was found
	// Of ForRoute: what the move was predicted to take, and what it may take until the request does as well without it.
	Predicted, Patience time.Duration
}

// Mover moves conversations. It is safe for concurrent use.
type Mover struct {
	log       *slog.Logger
	current   func() *Snapshot
	tasks     *background.Tasks
	cancels   *upstream.CancelSet
	reclaim   *reclaim.Reclaimer
	transfers *kvtransfer.Transfers
	observe   func(Ended)
	wake      chan struct{}   // has a buffer of one
	over      context.Context // ends with Run
	end       context.CancelFunc
	plans     *Plans
}

// New returns one that moves nothing before Run.
func New(p Parts) *Mover {
	if p.Observe == nil {
		p.Observe = func(Ended) {}
	}
	over, end := context.WithCancel(context.Background())
	return &Mover{
		over: over, end: end, log: p.Log, current: p.Current, tasks: p.Tasks, cancels: p.Cancels, reclaim: p.Reclaim, transfers: p.Transfers, observe: p.Observe,
		wake: make(chan struct{}, 1), plans: NewPlans(),
	}
}

// Run begins moves as they are due, until ctx ends. Then those that are under way end, too.
func (m *Mover) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			m.end()
			return
		case <-m.wake:
		case <-timer.C:
		}
		now := time.Now()
		again := m.look(now)
		timer.Reset(min(again, m.startDue(now), m.sweep(false)))
	}
}

// Close frees what decode pins for moves, and keeps nothing more. It is to be called while engines can still be told; it does not wait for that.
func (m *Mover) Close() { m.sweep(true) }

// sweep frees what decode is not to pin any longer, and returns when to look again. With stops that is all of it.
func (m *Mover) sweep(stops bool) time.Duration {
	again := m.plans.Sweep(m.current(), stops, time.Now())
	m.tell()
	return again
}

// Answered is called when a decode engine has answered a split request to its end. What it pins of the answer is kept for a move if a turn is to name it,
// and freed otherwise. kv are the kv_transfer_params of the answer. It does not block.
func (m *Mover) Answered(turn string, d *fleet.Engine, kv []byte) {
	s := m.current()
	held := m.reclaim.Pinned(s.Reclaim, d, kv)
	switch {
	case held == nil:
	case m.plans.Keep(s, turn, d, held, time.Now()):
		m.tell()
		background.Notify(m.wake)
	default:
		m.reclaim.Unpin([]*reclaim.Pinned{held})
	}
}

// look looks for moves that no engine's drain asks for, and returns when to look again.
func (m *Mover) look(now time.Time) time.Duration {
	s := m.current()
	again, found := m.plans.Look(s, now)
	m.plans.Rest(now.Add(replicatePart * time.Since(now)))
	m.tell()
	for _, f := range found {
		m.log.Info("moves planned", "reason", f.Reason.String(), "mode", s.Config.Migration.Mode, "moves", f.Moves, "tokens", f.Tokens)
	}
	return again
}

// dueAgain is after how long moves that wait are looked at again: meanwhile some may have come not to be needed, or to go to other engines.
const dueAgain = 10 * time.Second

// startDue begins the moves that are due, and returns when to look again.
func (m *Mover) startDue(now time.Time) time.Duration {
	s := m.current()
	for {
		due, again, more := m.plans.Due(s, now, m.mayBegin(s))
		m.tell()
		for _, w := range due {
			m.begin(&driver{Planned: w})
		}
		if !more {
			return min(again, dueAgain)
		}
	}
}

// mayBegin returns a function that takes a place for a move in the background. It returns false if too much runs there.
func (m *Mover) mayBegin(s *Snapshot) func() bool {
	return func() bool { return m.tasks.Reserve(s.Config.Limits.Background) }
}

// begin has a move carried out that has its place in the background.
func (m *Mover) begin(dr *driver) {
	dr.Mover, dr.conn = m, dr.s.Fleet.Models[dr.c.model].Connector
	m.tasks.GoReserved(dr.Within, func(ctx context.Context) {
		result := Failed
		defer func() { m.ended(dr, result) }()
		result = dr.drive(ctx)
	})
}

// ended notes the end of a move.
func (m *Mover) ended(dr *driver, result Result) {
	out := m.plans.Ended(dr.Planned, result, time.Now())
	m.tell()
	message := "conversation not moved"
	if out.Result == Moved {
		message = "conversation moved"
	}
	m.log.Info(message, "reason", out.Reason.String(), "result", out.Result.String(), "from", out.From, "to", out.To, "tokens", out.Tokens, "pinned", dr.Pin != nil,
		"took_seconds", out.Took.Seconds(), "transfer_id", dr.h.Transfer)
	background.Notify(m.wake)
	if dr.told != nil {
		dr.told(out)
	}
}

// tell tells of the moves that have ended, or that there are not, since the last time, and frees what decode is not to pin any longer.
func (m *Mover) tell() {
	m.reclaim.Unpin(m.plans.Freed())
	for _, e := range m.plans.Told() {
		m.observe(e)
	}
}

// Update takes the present configuration into use: what is kept, which engines drain, and what is moved.
func (m *Mover) Update() {
	m.plans.Update(m.current(), time.Now())
	m.tell()
	background.Notify(m.wake)
}

// Note keeps a conversation after a turn, as Plans.Note.
func (m *Mover) Note(t *Turn) (moved *Ended) {
	s := m.current()
	if !s.Config.Migration.On() {
		return nil
	}
	t.identify()
	moved, due := m.plans.Note(s, t, time.Now())
	m.tell()
	if due {
		background.Notify(m.wake)
	}
	return moved
}

// Remaining is how many conversations an engine that drains has yet to give away.
func (m *Mover) Remaining(e *fleet.Engine) int { return m.plans.Remaining(e) }

// Stats returns what there is now.
func (m *Mover) Stats() Stats { return m.plans.Stats(time.Now()) }
