package embed

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/control"
	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/ticket"
	"pdrouter/metadata"
)

// Scheduler is one engine's side of its ranks: which legs it takes, what it orders, what all ranks together say.
type Scheduler struct {
	cfg     Config
	log     *slog.Logger
	endLog  func() error
	bell    *bell
	control *controlServer // nil: no control routes
	events  *control.Broadcaster
	start   time.Time
	keys    ticket.Verifier // of tickets; nil: legs need none
	stop    context.CancelFunc
	tasks   sync.WaitGroup // what stop ends

	mu       sync.Mutex
	closed   bool
	self     metadata.Incarnation // generation 0: no rank was heard, and none was configured
	admitter *ticket.Admitter     // nil until the generation is known
	together *sched.Aggregator    // the same
	legs     map[kvplane.TransferID]*leg
	orders   sched.Orders // since the last Orders
	ordered  []byte       // the form of what was taken out of orders and found no room
	listed   int          // blocks in orders
	late     *time.Timer  // the earliest deadline
	outcome  sched.Outcome
	results  results
	counts   schedulerCounts
}

// leg is one transfer, from its admission until its blocks are accounted for.
type leg struct {
	phase     legPhase
	role      metadata.Role // "" of what was not admitted
	peer      metadata.Incarnation
	ticket    [16]byte // digest; zero: there was none
	cancelled bool     // by the gateway
}

type legPhase uint8

const (
	legAdmitted legPhase = iota
	legQueued
	legLapsed // was queued and has failed; the caller has not polled that yet
	legExpected
	legOffered
)

// schedulerCounts are what Status shows.
type schedulerCounts struct {
	Admitted uint64            `json:"admitted"`
	Refused  map[string]uint64 `json:"refused"` // legs, by what was wrong with their tickets
	Outcomes map[string]uint64 `json:"outcomes"`
	Reports  uint64            `json:"reports"` // heard
	Strange  uint64            `json:"strange"` // cancels of transfers that are not known
}

// OpenScheduler opens the control routes, if any are configured.
func OpenScheduler(cfg Config) (_ *Scheduler, err error) {
	s := &Scheduler{
		cfg: cfg, events: control.NewBroadcaster(), start: time.Now(), legs: map[kvplane.TransferID]*leg{},
		counts: schedulerCounts{Refused: map[string]uint64{}, Outcomes: map[string]uint64{}},
	}
	if s.log, s.endLog, err = cfg.logger(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.bell, err = newBell(); err != nil {
		return nil, err
	}
	s.late = time.AfterFunc(time.Hour, s.lapse)
	s.late.Stop()
	files := &keyFiles{}
	records, err := files.records(cfg.Gateway)
	if err != nil {
		return nil, err
	}
	if records != nil {
		s.keys = records.Tickets()
	} else {
		s.log.Warn("the scheduler has no record keys: legs are taken without a ticket")
	}
	if cfg.Generation != 0 {
		s.begin(cfg.Generation)
	}
	if cfg.Control.Listen != "" {
		if s.control, err = openControl(cfg, files, s.events, s.CancelledByGateway, s.log); err != nil {
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.tasks.Go(func() { files.run(ctx, s.log) })
	return s, nil
}

// begin notes the engine's generation.
func (s *Scheduler) begin(generation uint64) {
	s.self = metadata.Incarnation{Engine: s.cfg.Engine, Generation: generation}
	s.admitter = ticket.NewAdmitter(s.self, s.keys)
	var ranks []metadata.Rank
	for pp := range s.cfg.Size.PP {
		for tp := range s.cfg.Size.TP {
			ranks = append(ranks, metadata.Rank{PP: pp, TP: tp})
		}
	}
	s.together = sched.NewAggregator(s.self, ranks, s.cfg.Times.plane())
}

// FD returns what is readable while Poll or Orders has something.
func (s *Scheduler) FD() int { return s.bell.fd }

func (s *Scheduler) now() time.Duration { return time.Since(s.start) + 1 }

// Admit says whether the engine takes a leg of a transfer with a peer. Early: ask again once the ranks were heard.
func (s *Scheduler) Admit(role metadata.Role, id kvplane.TransferID, peer metadata.Incarnation, text string) error {
	if err := checkPeer(id, peer); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.admitter == nil:
		s.counts.Refused["early"]++
		return wrong(Early, "embed: transfer %s: no rank was heard yet", id)
	case s.legs[id] != nil:
		return wrong(Known, "embed: transfer %s is known", id)
	case len(s.legs) >= maxLegs:
		return wrong(Full, "embed: %d transfers are open", len(s.legs))
	}
	digest, err := s.admitter.Admit(text, role, id, peer)
	if err != nil {
		if why := ticket.Fault(0); errors.As(err, &why) {
			s.counts.Refused[why.String()]++
		}
		return wrong(Ticket, "embed: transfer %s: %w", id, err)
	}
	s.counts.Admitted++
	s.legs[id] = &leg{role: role, peer: peer, ticket: digest}
	return nil
}

// settle sets the timer and the bell.
func (s *Scheduler) settle() {
	if s.closed {
		return
	}
	if s.together != nil {
		if at := s.together.Next(); at > 0 {
			s.late.Reset(max(at-s.now(), 0))
		} else {
			s.late.Stop()
		}
	}
	s.bell.set(len(s.results) > 0 || s.ordered != nil || !s.orders.Empty())
}

// Hear takes what one rank has collected.
func (s *Scheduler) Hear(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	x, err := sched.ParseRankReport(b)
	if err != nil {
		return wrong(Argument, "embed: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Reports++
	if s.together == nil && x.Engine.Engine == s.cfg.Engine && x.Engine.Generation != 0 {
		s.begin(x.Engine.Generation)
	}
	if s.together == nil {
		return wrong(Argument, "embed: a report of %s for the scheduler of %s", x.Engine.ID(), s.cfg.Engine)
	}
	s.step([]sched.RankReport{x})
	return nil
}

// lapse is called when a deadline is over.
func (s *Scheduler) lapse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && s.together != nil {
		s.step(nil)
	}
}

// step makes results of what the reports mean.
func (s *Scheduler) step(reports []sched.RankReport) {
	out := &s.outcome
	s.together.Step(s.now(), reports, out)
	for _, ev := range out.Events {
		s.events.Publish(ev)
	}
	s.ended(Released, out.Released)
	s.ended(Failed, out.Failed)
	s.ended(Closed, out.Closed)
	s.ended(Freed, out.Freed)
	s.settle()
}

// ended tells how transfers came out, and orders of a failed one that every rank gives it up.
func (s *Scheduler) ended(kind Kind, all []sched.Ended) {
	for i := range all {
		x := &all[i]
		l := s.legs[x.ID]
		if l == nil {
			continue // it was cancelled while it was queued
		}
		r := Result{Kind: kind, ID: x.ID, Reason: x.Reason, K: x.K, N: x.N, Tokens: x.Tokens, Bytes: x.Bytes, Text: x.Detail}
		if kind == Failed {
			r.Blocks = x.Blocks
			if x.Reason != kvplane.Deadline || x.Detail != "" {
				rank := x.Rank
				r.Rank = &rank
			}
			s.abandon(x.ID, x.Reason.String())
		}
		switch {
		case kind != Failed:
			delete(s.legs, x.ID)
		case l.phase == legQueued:
			l.phase = legLapsed
		}
		s.counts.Outcomes[kind.String()]++
		s.results = append(s.results, r)
	}
}

// Poll copies results into buf. *used is their bytes, or what the first one needs.
func (s *Scheduler) Poll(buf []byte, used *int) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.results
	n, *used, err = s.results.poll(buf)
	for i := range all[:n] {
		// The caller knows now that the leg is over, if nothing was registered or offered for it.
		if l := s.legs[all[i].ID]; l != nil && l.phase < legExpected && (all[i].Kind == Cancelled || all[i].Kind == Failed) {
			delete(s.legs, all[i].ID)
		}
	}
	s.settle()
	return n, err
}

// Close ends the control routes. Safe to call twice.
func (s *Scheduler) Close() error {
	s.mu.Lock()
	over := s.closed
	s.closed = true
	if s.late != nil {
		s.late.Stop()
	}
	s.mu.Unlock()
	if over {
		return nil
	}
	if s.stop != nil {
		s.stop()
	}
	s.tasks.Wait()
	var errs []error
	if s.control != nil {
		errs = append(errs, s.control.close())
	}
	if s.bell != nil {
		errs = append(errs, s.bell.close())
	}
	return errors.Join(append(errs, s.endLog())...)
}
