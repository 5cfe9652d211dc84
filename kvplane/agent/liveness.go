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

// watch makes sure that checkLiveness runs within the pause.
func (w *owner) watch(pause time.Duration) {
	v, at := &w.liveness, w.now()+pause
	if w.self.Process.IsZero() || v.wake > 0 && v.wake <= at {
		return
	}
	v.pause, v.wake = pause, at
	w.timers.Set(v)
}

// checkLiveness asks for every peer on which blocks or answers depend whether its processes are dead.
func (w *owner) checkLiveness() {
	w.liveness.wake = 0
	again, hanging := false, w.hanging()
	for inc := range w.liveness.unprovenDead {
		if !hanging[inc] {
			delete(w.liveness.unprovenDead, inc)
		}
	}
	for _, inc := range slices.SortedFunc(maps.Keys(hanging), compareIncarnations) {
		switch records := w.recordsOf(inc); {
		case w.dead(records):
			w.log.Info("kvplane: a peer's processes are dead", "peer", inc.ID())
			w.gone(inc, true)
		case records == nil || local(w.self.Process, records):
			again = true
		}
	}
	again = w.recheckQuarantine(func(x *quarantinedTransfer) bool { return w.dead(x.near) }) || again
	if again {
		w.watch(min(2*w.liveness.pause, w.cfg.Times.Pause))
	}
}

// hanging lists the engines that may still write here, or for which blocks or answers are held. It reads engines and sessions,
// never single transfers.
func (w *owner) hanging() map[metadata.Incarnation]bool {
	out := map[metadata.Incarnation]bool{}
	w.consumer.Hanging(out)
	w.producer.Hanging(out)
	for inc, e := range w.engines {
		if len(e.expects) > 0 { // which wait until it is known whom they hear from
			out[inc] = true
		}
	}
	for inc := range w.owing {
		out[inc] = true
	}
	return out
}

// recordsOf returns what is known of an engine, void or not; nil while it is looked up.
func (w *owner) recordsOf(inc metadata.Incarnation) []metadata.Record {
	if e := w.engines[inc]; e != nil {
		return e.records
	}
	return w.liveness.unprovenDead[inc]
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
func (w *owner) dead(records []metadata.Record) bool {
	for _, r := range records {
		if !procid.CanProbe(w.self.Process, r.Process) || !w.host.exited(r.Process) {
			return false
		}
	}
	return len(records) > 0
}
