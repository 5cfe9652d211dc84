// Package reclaim frees KV that ended requests leak at stock engines: decode may wait for KV that prefill will not write, and prefill may
// hold KV that decode will not take. Two pure values decide which step is safe next (decodeHeld, PrefillHeld), and Reclaimer takes it: it
// asks an engine again, or notifies the engine's ranks by the gateway's own agent after a later request has shown that the engine has
// noticed the end. What cannot be freed is counted in Leaks, by cause. The exchange and the handshake pass a Job when a request is over.
// Package reclaim never decides how a request ends.
package reclaim

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/openai"
)

// Agent is the gateway's own agent among those of stock engines. It must be safe for concurrent use.
type Agent interface {
	// Notify sends a message as often as times says to the agent of each of these ranks, as their own peer would. It may block until
	// ctx ends. Nil means that the messages are on their way.
	Notify(ctx context.Context, to []metadata.Record, message string, times int) error
	// Forget drops what is known of an engine, whose run is over. It must not block.
	Forget(engine string)
}

// Snapshot is the configuration that a job is done with. It is never changed.
type Snapshot struct {
	Fleet    *fleet.Fleet
	Limits   config.Limits
	Timeouts config.Timeouts
	Agent    Agent         // nil: no engine can be told anything
	Stock    monitor.Stock // asks engines which run they are; nil: they are not asked
	// HandOff sends a whole request of the gateway's own to the two engines of a pair, and returns when decode has answered it.
	HandOff func(ctx context.Context, c *fleet.Pair) error
}

// Reclaimer frees KV that ended requests leak at stock engines. It is safe for concurrent use. For each request it uses the snapshot that
// the request was admitted with.
type Reclaimer struct {
	log     *slog.Logger
	tasks   *background.Tasks
	pairs   *fleet.Handshakes
	monitor *monitor.Monitor
	streams fleet.PerEngine[pinnedStreams]
	untold  fleet.PerEngine[untold]
	Leaks   *Leaks
}

// New returns one that counts with leaks what cannot be freed.
func New(log *slog.Logger, tasks *background.Tasks, pairs *fleet.Handshakes, m *monitor.Monitor, l *Leaks) *Reclaimer {
	return &Reclaimer{log: log, tasks: tasks, pairs: pairs, monitor: m, streams: fleet.NewPerEngine[pinnedStreams](), untold: fleet.NewPerEngine[untold](), Leaks: l}
}

// Job is a request that is over and may leak KV, with all that is needed to free it. One goroutine owns it, and retains its body.
type Job struct {
	Snapshot        *Snapshot // what the request was admitted with
	Handoff         connector.Handoff
	Body            *openai.Body // whose bytes Again and Taking are written from; nil if there are none
	conn            connector.Connector
	model           string
	Prefill, Decode *fleet.Engine
	run             string       // decode's, when the request ended; "" if it is not known
	Closed          time.Time    // when the decode leg had ended
	OpenLeg         *leg.Leg     // decode's, which is open still; nil if it was ended with the request
	BegunInOrder    bool         // decode begins requests in the order sent, so with this one before later ones
	PrefillLost     bool         // prefill's leg has ended without a usable answer: it may run there still, or be held
	Noticed         bool         // and prefill has shown that it knows that
	NoHandOff       bool         // prefill has answered and handed nothing off: it never writes what decode waits for
	Again           *leg.Request // prefill's request; nil if it is not to be asked again
	Taking          *leg.Request // decode's, of one token, under the same id; nil if none is to be sent
	Tokens          int          // of the prompt, estimated
	FirstParams     []byte       // what prefill has answered already; nil if it has not
	Pinned          bool         // what prefill holds it pins for longer than a prompt (bidirectional_kv_xfer)
	Probe           bool         // it is a handshake: no request is sent for its sake while others fail
	counted         bool         // KV of the request was counted as left already: with one engine or two, it is one ending
}

// Certainty is how sure it is that an engine holds something.
type Certainty uint8

const (
	Certain  Certainty = iota
	Possible           // it may be: if it cannot be freed, it is counted as such
	unlikely           // most likely it is not: then nothing is counted
)

// NewJob returns the job that frees what a hand-off between these engines may leak.
func NewJob(s *Snapshot, h *connector.Handoff, conn connector.Connector, model string, p, d *fleet.Engine) *Job {
	return &Job{Snapshot: s, Handoff: *h, conn: conn, model: model, Prefill: p, Decode: d, run: d.ChannelReport().Run, Closed: time.Now()}
}

// EndLeg ends a decode leg that is still open, and waits for its end. It may be called twice.
func (m *Job) EndLeg() {
	if m.OpenLeg == nil {
		return
	}
	m.OpenLeg.Cancel(leg.ErrEnded)
	m.OpenLeg.WaitSent() // that it is over
	m.OpenLeg = nil
}

// errMoved says that another run of an engine answers than the one that was to be told something.
var errMoved = errors.New("another run of the engine answers")

// ranksOf returns the records of all ranks of one run of an engine.
func ranksOf(ctx context.Context, s *Snapshot, e *fleet.Engine, c *connector.PrefillEndpoint) ([]metadata.Record, error) {
	if known := s.Fleet.Records(e); len(known) == c.PP*c.TP && known[0].EngineID == c.EngineID {
		return known, nil
	}
	stock := s.Stock
	at, ok := e.SideChannel(c)
	if stock == nil || !ok {
		return nil, errors.New("its side channel is not known")
	}
	recs, err := stock.All(ctx, at)
	if err != nil {
		if first, ferr := stock.First(ctx, at); ferr == nil && first.EngineID != c.EngineID {
			return nil, errMoved
		}
		return nil, err
	}
	for i := range recs {
		recs[i].Engine = e.Name
	}
	return recs, nil
}

// Start runs a job in the background. If too many run already, it reports false and counts what holder surely holds, unless holder is nil.
func (r *Reclaimer) Start(m *Job, see func(context.Context), holder *fleet.Engine) bool {
	if see != nil {
		m.Body.Retain()
		p := m.Prefill // what it holds is needed until the job has ended
		p.Uncollected.Add(1)
		if r.tasks.Try(m.Snapshot.Limits.Background, m.Snapshot.Timeouts.Cleanup, func(ctx context.Context) {
			defer p.Uncollected.Add(-1)
			defer m.Body.Release()
			see(ctx)
		}) {
			return true
		}
		p.Uncollected.Add(-1)
		m.Body.Release()
	}
	if holder != nil {
		r.addLeak(m, holder, CauseBusy, defaultBlock)
	}
	return false
}
