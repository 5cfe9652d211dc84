// Package migration moves the KV of conversations from one engine to another before it is needed there. It owns what the gateway keeps of
// conversations (Mover.Note has it from package exchange at the end of each turn) and decides which of them move, when and where to. A move is
// two requests of one token for the same token ids: the source keeps their KV for another engine, the target reads it and has it in its prefix
// cache from then on. So it is exact whatever the client sends next: the KV is of these tokens, and an engine finds it by these tokens alone.
//
// move.go is one move as a pure state machine, drive.go carries it out. drain.go, warm.go and replicate.go say which moves there are to be, each for
// one Reason, choose.go and shared.go what of all that is kept is worth it, and schedule.go begins them within the budgets. What a move that fails
// leaves with engines is handed to package reclaim. Those of route.go come before a request that waits for them, where package policies has found
// that this is its best path; no request waits for another, and none fails by a move. Package policies, by way of package router/fleet, says where a
// conversation goes.
package migration

import (
	"context"
	"log/slog"
	"sync"
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
	budgets   fleet.PerEngine[budget]

	mu     sync.Mutex
	moves  string // what migration.mode and migration.uses were when Update looked last
	known  *conversations
	lanes  map[lane]*queue
	unable fleet.PerEngine[inability]
	seen   seen
	untold []Ended   // what unlock tells of
	lookAt time.Time // when to look next for what conversations share
	slower float64   // how many times as long as was thought moves take, in the mean of recent ones

	arrivals // Run's
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

// New returns one that moves nothing before Run.
func New(p Parts) *Mover {
	if p.Observe == nil {
		p.Observe = func(Ended) {}
	}
	over, end := context.WithCancel(context.Background())
	return &Mover{
		over: over, end: end, log: p.Log, current: p.Current, tasks: p.Tasks, cancels: p.Cancels, reclaim: p.Reclaim, transfers: p.Transfers, observe: p.Observe,
		wake: make(chan struct{}, 1), budgets: fleet.NewPerEngine[budget](), known: newConversations(), unable: fleet.NewPerEngine[inability](), lanes: map[lane]*queue{}, slower: 1, seen: seen{running: map[*driver]Shown{}},
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
		again := m.plan(m.current(), now)
		timer.Reset(min(again, m.startDue(now)))
	}
}

// unlock gives mu up, and tells of the moves that have ended, or that there are not, since it was taken.
func (m *Mover) unlock() {
	untold := m.untold
	m.untold = nil
	for _, e := range untold {
		m.seen.endedLocked(e, time.Now())
	}
	m.mu.Unlock()
	for _, e := range untold {
		m.observe(e)
	}
}

// Stats is what there is now.
type Stats struct {
	Conversations int `json:"conversations"` // that are kept
	Bytes         int `json:"bytes"`         // of memory
	Running       int `json:"running"`       // moves
	Waiting       int `json:"waiting"`       // conversations that are to be moved

	Moves []Shown `json:"moves,omitempty"` // those that run, those that wait, and the latest that are over, the last first
}

// Stats returns what there is now.
func (m *Mover) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{Conversations: len(m.known.by), Bytes: m.known.used, Running: len(m.seen.running), Moves: m.shownLocked(time.Now())}
	for _, q := range m.lanes {
		s.Waiting += len(q.waiting)
	}
	return s
}
