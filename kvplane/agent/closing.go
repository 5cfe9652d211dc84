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

// shutdown is the orderly end of an owner: nothing new begins, peers get BYE or CANCEL, and writes in progress may end.
type shutdown struct {
	begun bool
	until time.Duration // the longest
	wake  time.Duration
}

func (e *shutdown) Due() time.Duration { return e.wake }

// beginShutdown fails everything that is under way: P sends BYE, D sends CANCEL.
func (o *owner) beginShutdown() {
	if o.shutdown.begun {
		return
	}
	o.shutdown = shutdown{begun: true, until: o.now() + closeWait}
	o.step(core.Event{Kind: core.EvClose})
	o.sendAcks()
	o.shutdown.wake = o.now() + flushTime
	o.timers.Set(&o.shutdown)
}

// shutdownDone says that nothing is left to wait for, or no time to do so.
func (o *owner) shutdownDone() bool {
	if !o.shutdown.begun {
		return false
	}
	now := o.now()
	if now >= o.shutdown.until {
		return true
	}
	if len(o.writes) > 0 || o.awaits() {
		o.wakeAt(o.shutdown.until)
		return false
	}
	if quiet := o.sentAt + flushTime; o.sentAt > 0 && now < quiet {
		o.wakeAt(min(quiet, o.shutdown.until))
		return false
	}
	return true
}

// wakeAt makes the owner check again at a time.
func (o *owner) wakeAt(at time.Duration) {
	if o.shutdown.wake != at {
		o.shutdown.wake = at
		o.timers.Set(&o.shutdown)
	}
}

// closeTransport closes the transport and takes the consequences. A write that was in progress has ended: nothing is read from
// here any more. And nothing lands here any more, except what a process copies without a transport (mayCopyDirectly): of that only its death is
// proof, unless the transport could fence it. A transport that could not be closed may go on with everything: the error
// releases no blocks.
func (o *owner) closeTransport() error {
	known := map[metadata.Incarnation][]metadata.Record{}
	for inc, e := range o.engines {
		known[inc] = e.records
	}
	for inc, records := range o.liveness.unprovenDead {
		known[inc] = records
	}
	fenced := map[metadata.Incarnation]bool{}
	incarnations := slices.SortedFunc(maps.Keys(known), compareIncarnations)
	for _, inc := range incarnations {
		fenced[inc] = o.fenceAll(known[inc])
	}
	err := o.cfg.Transport.Close()
	closed := err == nil
	for _, id := range slices.Sorted(maps.Keys(o.writes)) {
		if closed {
			o.ended(transport.Incoming{Kind: transport.WriteEnded, ID: id, Err: errEnded})
		}
	}
	for _, inc := range incarnations {
		o.step(core.Event{Kind: core.EvGone, Inc: inc, Fenced: fenced[inc] || closed && !o.anyMayCopyDirectly(known[inc])})
	}
	return err
}

func compareIncarnations(x, y metadata.Incarnation) int {
	return cmp.Or(cmp.Compare(x.Engine, y.Engine), cmp.Compare(x.Generation, y.Generation))
}

// anyMayCopyDirectly says that a rank of an engine may copy into this rank's memory without this agent's doing.
func (o *owner) anyMayCopyDirectly(records []metadata.Record) bool {
	for _, r := range records {
		if o.mayCopyDirectly(r) {
			return true
		}
	}
	return false
}

// mayCopyDirectly says that a rank may reach this rank's memory without this agent's transport: nothing proves that its process is not one of this host,
// or both have their KV in GPU memory, which multi-node NVLink (UCX_CUDA_IPC_ENABLE_MNNVL) maps from other hosts too.
func (o *owner) mayCopyDirectly(r metadata.Record) bool {
	near := r.Process.IsZero() || o.self.Process.IsZero() || r.Process.Boot == o.self.Process.Boot
	return near || r.Layout.MemoryType == "vram" && o.self.Layout.MemoryType == "vram"
}
