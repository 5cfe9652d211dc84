package agent

import (
	"maps"
	"slices"
	"time"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/metadata"
)

// vigil is how the owner learns that a peer's process on this host is dead: it looks while something hangs on a peer,
// ever more rarely, and not at all when nothing does.
type vigil struct {
	wake     time.Duration
	pause    time.Duration
	suspects map[metadata.Incarnation][]metadata.Record // void, and not proven dead
}

func (v *vigil) Due() time.Duration { return v.wake }

// watch makes sure that a look is taken within the pause.
func (w *writer) watch(pause time.Duration) {
	v, at := &w.vigil, w.now()+pause
	if w.self.Process.IsZero() || v.wake > 0 && v.wake <= at {
		return
	}
	v.pause, v.wake = pause, at
	w.timers.Set(v)
}

// look asks for every peer on which something hangs.
func (w *writer) look() {
	w.vigil.wake = 0
	again, hanging := false, w.hanging()
	for inc := range w.vigil.suspects {
		if !hanging[inc] {
			delete(w.vigil.suspects, inc)
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
	again = w.lookAtRemnants(func(x *remnant) bool { return w.dead(x.near) }) || again
	if again {
		w.watch(min(2*w.vigil.pause, w.cfg.Times.Pause))
	}
}

// hanging lists the engines that may still write here, or for which blocks or answers are held. It looks at engines and sessions,
// never at single transfers.
func (w *writer) hanging() map[metadata.Incarnation]bool {
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
func (w *writer) recordsOf(inc metadata.Incarnation) []metadata.Record {
	if e := w.engines[inc]; e != nil {
		return e.records
	}
	return w.vigil.suspects[inc]
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
func (w *writer) dead(records []metadata.Record) bool {
	for _, r := range records {
		if !procid.CanProbe(w.self.Process, r.Process) || !w.host.exited(r.Process) {
			return false
		}
	}
	return len(records) > 0
}
