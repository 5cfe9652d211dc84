package agent

import (
	"maps"
	"slices"
	"time"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/metadata"
)

// livenessMonitor is how the owner learns that a peer's process on this host is dead: it checks while blocks or answers depend on a peer,
// with growing pauses, and not at all when nothing does.
type livenessMonitor struct {
	wake         time.Duration
	pause        time.Duration
	unprovenDead map[metadata.Incarnation][]metadata.Record // void, and not proven dead
}

func (v *livenessMonitor) Due() time.Duration { return v.wake }

// checkLivenessWithin makes sure that checkLiveness runs within the pause.
func (o *owner) checkLivenessWithin(pause time.Duration) {
	v, at := &o.liveness, o.now()+pause
	if o.self.Process.IsZero() || v.wake > 0 && v.wake <= at {
		return
	}
	v.pause, v.wake = pause, at
	o.timers.Set(v)
}

// checkLiveness asks for every peer on which blocks or answers depend whether its processes are dead.
func (o *owner) checkLiveness() {
	o.liveness.wake = 0
	again, pending := false, o.pendingEngines()
	for inc := range o.liveness.unprovenDead {
		if !pending[inc] {
			delete(o.liveness.unprovenDead, inc)
		}
	}
	for _, inc := range slices.SortedFunc(maps.Keys(pending), compareIncarnations) {
		switch records := o.recordsOf(inc); {
		case o.dead(records):
			o.log.Info("kvplane: a peer's processes are dead", "peer", inc.ID())
			o.gone(inc, true)
		case records == nil || local(o.self.Process, records):
			again = true
		}
	}
	if again {
		o.checkLivenessWithin(min(2*o.liveness.pause, o.cfg.Times.Pause))
	}
}

// pendingEngines lists the engines that may still write here, or for which blocks or answers are held. It reads engines and sessions,
// never single transfers.
func (o *owner) pendingEngines() map[metadata.Incarnation]bool {
	out := map[metadata.Incarnation]bool{}
	o.consumer.PendingEngines(out)
	o.producer.PendingEngines(out)
	for inc, e := range o.engines {
		if len(e.expects) > 0 { // which wait for the records of their producers
			out[inc] = true
		}
	}
	for inc := range o.owing {
		out[inc] = true
	}
	return out
}

// recordsOf returns what is known of an engine, void or not; nil while it is looked up.
func (o *owner) recordsOf(inc metadata.Incarnation) []metadata.Record {
	if e := o.engines[inc]; e != nil {
		return e.records
	}
	return o.liveness.unprovenDead[inc]
}

// local says that every rank of an engine lives where this process can tell whether it is dead.
func local(self metadata.Process, records []metadata.Record) bool {
	for _, r := range records {
		if !procid.CanProbe(self, r.Process) {
			return false
		}
	}
	return len(records) > 0
}

// dead says that every rank's process is proven dead. One that lives may still say how its writes have ended.
func (o *owner) dead(records []metadata.Record) bool {
	for _, r := range records {
		if !procid.CanProbe(o.self.Process, r.Process) || !o.host.exited(r.Process) {
			return false
		}
	}
	return len(records) > 0
}
