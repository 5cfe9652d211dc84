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
	// and how long the generation of an engine of which nothing else is known is remembered. It is far longer than any
	// record lives, so that no older generation comes back through a record that was published before.
	forgetAfter = time.Hour
	// maxNames bounds the engines of which the newest generation is remembered.
	maxNames = 2 * transport.MaxPeers
)

// generation is what is known of an engine's runs: every one below least is void.
type generation struct {
	least uint64
	at    time.Duration // when that was last learnt
}

// raise makes every generation of an engine below least void.
func (w *owner) raise(name string, least uint64) {
	w.newest[name] = generation{max(w.newest[name].least, least), w.now()}
}

// makeRoom forgets engines that have left for good, now that another one is to be added. The directory is asked about
// the one that was unused for longest; where the table is full, idle ones are forgotten unasked, for a live one is
// looked up again when it is needed.
func (w *owner) makeRoom() error {
	w.forgetNames()
	now, full := w.now(), len(w.peers) >= w.room
	unused := forgetAfter
	if full {
		unused = w.cfg.Times.Lease + w.cfg.Times.Wait
	}
	if full || !w.asking {
		idle := w.idle(now - unused)
		if !full && len(idle) > 0 {
			w.ask(idle[0])
		}
		for len(idle) > 0 && len(w.peers) >= w.room {
			w.forget(idle[0])
			idle = idle[1:]
		}
	}
	if len(w.peers) >= w.room {
		return fmt.Errorf("kvplane: %d peers are known and in use; that is the most", len(w.peers))
	}
	return nil
}

// idle lists the engines with which nothing is under way and that were not used after a time, the longest unused first.
func (w *owner) idle(since time.Duration) []metadata.Incarnation {
	var out []metadata.Incarnation
	for inc, e := range w.engines {
		if e.used() <= since && w.isIdle(inc, e) {
			out = append(out, inc)
		}
	}
	slices.SortFunc(out, func(a, b metadata.Incarnation) int {
		return cmp.Or(cmp.Compare(w.engines[a].used(), w.engines[b].used()), compareIncarnations(a, b))
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
func (w *owner) isIdle(inc metadata.Incarnation, e *engine) bool {
	if e.peers == nil || e.refreshing || len(e.expects)+len(e.offers)+len(e.held) > 0 || w.owing[inc] > 0 {
		return false
	}
	for _, p := range e.peers {
		if p.writes > 0 || p.ackDue || w.producer.Busy(p.id) || w.consumer.Busy(p.id) {
			return false
		}
	}
	return true
}

// ask has the directory say whether an idle engine is still there. One that it does not know is forgotten.
func (w *owner) ask(inc metadata.Incarnation) {
	e := w.engines[inc]
	w.asking = true
	asked := w.now()
	w.lookup(inc, func(_ []metadata.Record, err error) {
		w.asking = false
		switch {
		case w.engines[inc] != e:
		case errors.Is(err, ErrSuperseded):
			w.gone(inc, w.cfg.SerialStarts)
		case err == nil:
			e.asked = asked // not again for a while
		case e.used() < asked && w.isIdle(inc, e):
			w.forget(inc)
		}
	})
}

// forget drops an engine with which nothing is under way. Should it come back, it is looked up anew; its write requests
// then have higher numbers than any before, so that it never takes one for an old one. What it asks about numbers that may have
// been written before is answered as if they had been.
func (w *owner) forget(inc metadata.Incarnation) {
	e := w.engines[inc]
	w.log.Info("kvplane: an engine that is not used is forgotten", "peer", inc.ID())
	delete(w.engines, inc)
	for _, p := range e.peers {
		w.consumer.EndSession(p.id)
		w.producer.EndSession(p.id)
		p.gone, p.retry = true, 0
	}
	w.step(core.Event{Kind: core.EvGone, Inc: inc})
	for _, p := range e.peers {
		w.release(p)
	}
}

// forgetNames drops the oldest generations of engines of which nothing else is known, when there are too many.
func (w *owner) forgetNames() {
	if len(w.newest) <= maxNames {
		return
	}
	known := map[string]bool{}
	for inc := range w.engines {
		known[inc.Engine] = true
	}
	for inc := range w.liveness.unprovenDead {
		known[inc.Engine] = true
	}
	for _, x := range w.quarantine {
		known[x.inc.Engine] = true
	}
	before := w.now() - forgetAfter
	maps.DeleteFunc(w.newest, func(name string, g generation) bool { return !known[name] && g.at <= before })
}
