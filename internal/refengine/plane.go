package refengine

import (
	"errors"
	"fmt"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/control"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/ticket"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// Plane says how an engine hands KV to others and takes it from them. Without a Transport it does neither.
type Plane struct {
	Transport    func(rank int) (transport.Transport, error) // makes the transport of one rank's agent; ranks count stage by stage
	Directory    agent.Directory                             // finds the peers that legs name
	Times        kvplane.Times
	Events       *control.Broadcaster // may be nil
	SerialStarts bool                 // as in agent.Config
	HTTP         string               // base URL of the engine's OpenAI routes, for its records
	Control      string               // base URL of its control routes, for its records
	Tickets      ticket.Verifier      // checks the tickets of legs; nil: legs need none
}

// plane is the agents of one engine, one per rank, and what ties them to its scheduler: orders to all of them, reports
// of all of them. The engine's goroutine owns what is below agents.
type plane struct {
	agents []*agent.Agent

	start    time.Time
	orders   sched.Orders // of the step that is being decided
	together *sched.Aggregator
	reports  []sched.RankReport // scratch
	outcome  sched.Outcome
	muted    *muted // nil without such a fault
}

// openPlane starts the agents. notify is called on their goroutines when there is something to collect.
func openPlane(c Config, g *group, self metadata.Incarnation, notify func()) (*plane, error) {
	p := &plane{start: time.Now()}
	size := metadata.Rank{DP: 1, PP: c.PP, TP: c.TP}
	var ranks []metadata.Rank
	for i, r := range g.ranks {
		t, err := c.Plane.Transport(i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("refengine: transport of rank %d: %w", i, err), p.close())
		}
		rank := metadata.Rank{PP: i / c.TP, TP: i % c.TP}
		a, err := agent.Open(agent.Config{
			Self: metadata.Record{
				Version: metadata.RecordVersion, Incarnation: self, Role: c.Role, Rank: rank, Size: size,
				Connector: "kvplane", Compatibility: c.Shape.Compatibility(),
				HTTP: c.Plane.HTTP, Control: c.Plane.Control, EngineID: self.ID(), Layout: r.cache.layout(c.Shape.Heads),
			},
			Memory: []memory.Region{r.cache.memory.where()}, Transport: t, Directory: c.Plane.Directory,
			Notify: notify, Times: c.Plane.Times, SerialStarts: c.Plane.SerialStarts,
			Log: c.Log.With("rank", rank.String()),
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("refengine: agent of rank %d: %w", i, err), p.close())
		}
		p.agents, ranks = append(p.agents, a), append(ranks, rank)
	}
	p.together = sched.NewAggregator(self, ranks, c.Plane.Times)
	if withholds(c.Faults) {
		p.muted = newMuted(len(ranks))
	}
	return p, nil
}

// now is the scheduler's clock.
func (p *plane) now() time.Duration { return time.Since(p.start) }

// abandon orders every rank to give a transfer up.
func (p *plane) abandon(id kvplane.TransferID, why string) {
	p.orders.Abandon = append(p.orders.Abandon, sched.Abandonment{ID: id, Why: why})
}

// tell gives every rank what has been ordered since it was told last.
func (e *Engine) tell() {
	p := e.plane
	if p == nil {
		return
	}
	if !p.orders.Empty() {
		p.together.Order(p.now(), &p.orders)
		for i, a := range p.agents {
			if p.muted == nil {
				a.Do(p.orders)
			} else {
				a.Do(p.muted.orders(p.orders, i, a.Record().Rank, e.ring))
			}
		}
		p.orders = sched.Orders{} // the ranks keep what they were given
	}
	if at := p.together.Next(); at > 0 {
		e.late.Reset(max(at-p.now(), 0))
	}
}

// hear takes what all ranks have to say, and acts on what it means. What was ordered before comes first, so that it is
// known to be.
func (e *Engine) hear() {
	p := e.plane
	if p == nil {
		return
	}
	e.tell()
	p.reports = p.reports[:0]
	for i, a := range p.agents {
		r := a.Collect()
		if p.muted != nil {
			r = p.muted.report(r, i)
		}
		e.rests(i, r.Reports)
		p.reports = append(p.reports, r)
	}
	out := &p.outcome
	p.together.Step(p.now(), p.reports, out)
	if e.cfg.Plane.Events != nil {
		for _, ev := range out.Events {
			e.cfg.Plane.Events.Publish(ev)
		}
	}
	for i := range out.Released {
		e.release(&out.Released[i])
	}
	for i := range out.Failed {
		e.failed(&out.Failed[i])
	}
	for i := range out.Closed {
		e.settled(&out.Closed[i], "failed")
	}
	for i := range out.Freed {
		ending := "sent"
		if why := out.Freed[i].Reason; why != 0 {
			ending = "sent_" + why.String()
		}
		e.settled(&out.Freed[i], ending)
	}
}

// Records returns the complete record of every rank, for publishing.
func (e *Engine) Records() []metadata.Record {
	var out []metadata.Record
	if e.plane != nil {
		for _, a := range e.plane.agents {
			out = append(out, a.Record())
		}
	}
	return out
}

// Agents returns what each rank's agent holds and has seen.
func (e *Engine) Agents() []agent.Status {
	var out []agent.Status
	if e.plane != nil {
		for _, a := range e.plane.agents {
			out = append(out, a.Status())
		}
	}
	return out
}

func (p *plane) close() error {
	var errs []error
	for _, a := range p.agents {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}
