package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

const (
	// forgetAfter is how long an engine must have been unused before the directory is asked whether it is still there,
	// and how long the newest generation of an otherwise unknown engine is remembered. It is far longer than any
	// record lives, so that no older generation comes back through a record that was published before.
	forgetAfter = time.Hour
	// maxNames bounds the engines whose newest generation is remembered.
	maxNames = 2 * transport.MaxPeers
)

// generation is what is known of an engine's runs: every one below least is void.
type generation struct {
	least uint64
	at    time.Duration               // when that was last learnt
	past  map[string]core.PastSession // of its agents, if it was forgotten while it may still live
}

// raise makes every generation of an engine below least void.
func (o *owner) raise(name string, least uint64) {
	g := o.newest[name]
	if least > g.least {
		g.least, g.past = least, nil
	}
	g.at = o.now()
	o.newest[name] = g
}

// makeRoom forgets engines that have left for good, now that another one is to be added. The directory is asked about
// the one that was unused for longest; where the table is full, idle ones are forgotten unasked, for a live one is
// looked up again when it is needed.
func (o *owner) makeRoom() error {
	o.forgetNames()
	now, full := o.now(), len(o.peers) >= o.room
	unused := forgetAfter
	if full {
		unused = o.cfg.Times.Lease + o.cfg.Times.Wait
	}
	if full || !o.asking {
		idle := o.idle(now - unused)
		if !full && len(idle) > 0 {
			o.askWhetherThere(idle[0])
		}
		for len(idle) > 0 && len(o.peers) >= o.room {
			o.forget(idle[0])
			idle = idle[1:]
		}
	}
	if len(o.peers) >= o.room {
		return fmt.Errorf("kvplane: %d peers are known and in use; that is the most", len(o.peers))
	}
	return nil
}

// idle lists the engines with which nothing is under way and that were not used after a time, the longest unused first.
func (o *owner) idle(since time.Duration) []metadata.Incarnation {
	var out []metadata.Incarnation
	for inc, e := range o.engines {
		if e.used() <= since && o.isIdle(inc, e) {
			out = append(out, inc)
		}
	}
	slices.SortFunc(out, func(a, b metadata.Incarnation) int {
		return cmp.Or(cmp.Compare(o.engines[a].used(), o.engines[b].used()), compareIncarnations(a, b))
	})
	return out
}

// used is when anything was last said between an engine and this agent.
func (e *engine) used() time.Duration {
	at := e.asked
	for _, p := range e.peers {
		at = max(at, p.used)
	}
	return at
}

// isIdle says that nothing is under way with an engine, and nothing remembered but that it is there.
func (o *owner) isIdle(inc metadata.Incarnation, e *engine) bool {
	if e.peers == nil || o.owing[inc] > 0 {
		return false
	}
	for _, p := range e.peers {
		if p.writes > 0 || p.ackDue || o.producer.Busy(p.id) || o.consumer.Busy(p.id) {
			return false
		}
	}
	return true
}

// askWhetherThere asks the directory whether an idle engine is still there. One that it does not know is forgotten.
func (o *owner) askWhetherThere(inc metadata.Incarnation) {
	e := o.engines[inc]
	o.asking = true
	asked := o.now()
	o.lookup(inc, func(_ []metadata.Record, err error) {
		o.asking = false
		switch {
		case o.engines[inc] != e:
		case errors.Is(err, ErrSuperseded):
			o.gone(inc, o.cfg.SerialStarts)
		case errors.Is(err, metadata.ErrNotFound) && e.used() < asked && o.isIdle(inc, e):
			o.forget(inc)
		default: // it is there, or the directory cannot tell
			e.asked = asked // not again for a while
		}
	})
}

// forget drops an engine with which nothing is under way. Should it come back, it is looked up anew. Write requests to it then have higher
// numbers than any before, so that it never takes one for an old one. Late write requests from it find what stays of their session, so that
// none of them starts a write into blocks that were given away since.
func (o *owner) forget(inc metadata.Incarnation) {
	e := o.engines[inc]
	o.log.Info("kvplane: an engine that is not used is forgotten", "peer", inc.ID())
	delete(o.engines, inc)
	g := o.newest[inc.Engine]
	g.past = map[string]core.PastSession{}
	for _, p := range e.peers {
		o.consumer.EndSession(p.id)
		if past := o.producer.EndSession(p.id); past != (core.PastSession{}) {
			g.past[p.record.Agent] = past
		}
		p.gone, p.retry = true, 0
	}
	o.newest[inc.Engine] = g
	o.step(core.Event{Kind: core.EvGone, Inc: inc})
	for _, p := range e.peers {
		o.release(p)
	}
}

// forgetNames drops the oldest generations of otherwise unknown engines, when there are too many.
func (o *owner) forgetNames() {
	if len(o.newest) <= maxNames {
		return
	}
	known := map[string]bool{}
	for inc := range o.engines {
		known[inc.Engine] = true
	}
	for inc := range o.liveness.unprovenDead {
		known[inc.Engine] = true
	}
	before := o.now() - forgetAfter
	maps.DeleteFunc(o.newest, func(name string, g generation) bool { return !known[name] && g.at <= before })
}
