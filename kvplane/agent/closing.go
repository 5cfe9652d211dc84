package agent

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

const (
	closeWait = time.Second           // longest that an agent waits for its peers before it ends
	flushTime = 20 * time.Millisecond // what is said last has so long to leave
)

// errEnded is how writes end whose transport was closed.
var errEnded = errors.New("the transport was closed")

// ending is the orderly end of an owner: nothing new is begun, peers are told, and what is in progress may end.
type ending struct {
	begun bool
	until time.Duration // the longest
	wake  time.Duration
}

func (e *ending) Due() time.Duration { return e.wake }

// wind begins the end: whatever is under way is reported as failed, P says goodbye, D cancels.
func (w *writer) wind() {
	if w.ending.begun {
		return
	}
	w.ending = ending{begun: true, until: w.now() + closeWait}
	w.step(core.Event{Kind: core.EvClose})
	w.tellSettled()
	w.ending.wake = w.now() + flushTime
	w.timers.Set(&w.ending)
}

// wound says that nothing is left to wait for, or no time to do so.
func (w *writer) wound() bool {
	if !w.ending.begun {
		return false
	}
	now := w.now()
	if now >= w.ending.until {
		return true
	}
	if len(w.writes) > 0 || w.awaits() {
		w.rouse(w.ending.until)
		return false
	}
	if quiet := w.spoke + flushTime; w.spoke > 0 && now < quiet {
		w.rouse(min(quiet, w.ending.until))
		return false
	}
	return true
}

// rouse has the owner look again at a time.
func (w *writer) rouse(at time.Duration) {
	if w.ending.wake != at {
		w.ending.wake = at
		w.timers.Set(&w.ending)
	}
}

// sever closes the transport and takes the consequences. A write that was in progress has ended: nothing is read from
// here any more. And nothing lands here any more, except what a near process copies by itself: of that only its death is
// proof, unless the transport could fence it. A transport that could not be closed may go on with everything: the error
// releases no blocks.
func (w *writer) sever() error {
	known := map[metadata.Incarnation][]metadata.Record{}
	for inc, e := range w.engines {
		known[inc] = e.records
	}
	for inc, records := range w.vigil.suspects {
		known[inc] = records
	}
	fenced := map[metadata.Incarnation]bool{}
	incarnations := slices.SortedFunc(maps.Keys(known), compareIncarnations)
	for _, inc := range incarnations {
		fenced[inc] = w.fenceAll(known[inc])
	}
	err := w.cfg.Transport.Close()
	closed := err == nil
	for _, id := range slices.Sorted(maps.Keys(w.writes)) {
		if closed {
			w.ended(transport.Incoming{Kind: transport.WriteEnded, ID: id, Err: errEnded})
		}
	}
	for _, inc := range incarnations {
		w.step(core.Event{Kind: core.EvGone, Inc: inc, Fenced: fenced[inc] || closed && !w.neighbours(known[inc])})
	}
	return err
}

func compareIncarnations(x, y metadata.Incarnation) int {
	return cmp.Or(cmp.Compare(x.Engine, y.Engine), cmp.Compare(x.Generation, y.Generation))
}

// neighbours says that a rank of an engine may copy into this rank's memory without this agent's doing.
func (w *writer) neighbours(records []metadata.Record) bool {
	for _, r := range records {
		if w.neighbour(r) {
			return true
		}
	}
	return false
}

// neighbour says that a rank may reach this rank's memory by itself: nothing proves that its process is not one of this host,
// or both have their KV in GPU memory, which multi-node NVLink (UCX_CUDA_IPC_ENABLE_MNNVL) maps from other hosts too.
func (w *writer) neighbour(r metadata.Record) bool {
	near := r.Process.IsZero() || w.self.Process.IsZero() || r.Process.Boot == w.self.Process.Boot
	return near || r.Layout.MemoryType == "vram" && w.self.Layout.MemoryType == "vram"
}
