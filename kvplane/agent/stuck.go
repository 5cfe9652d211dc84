package agent

import "time"

// stuckAfter is how long a write may be in progress, or blocks of a failed transfer in quarantine, before somebody is told. A write is
// polled on all the same: only its end says that the transport no longer reads from here and writes there.
const stuckAfter = 30 * time.Second

// stuck is the alarm that looks for both.
type stuck struct{ wake time.Duration }

func (s *stuck) Due() time.Duration { return s.wake }

// setStuckAlarm sets the alarm, if it is not set.
func (o *owner) setStuckAlarm() {
	if o.stuck.wake == 0 {
		o.stuck.wake = o.now() + stuckAfter
		o.timers.Set(&o.stuck)
	}
}

// clearStuckAlarm takes the alarm back when there is nothing that could be stuck.
func (o *owner) clearStuckAlarm() {
	if len(o.writes) == 0 && len(o.awaited) == 0 {
		o.stuck.wake = 0
	}
}

// lookForStuck logs each stuck write and each transfer in quarantine once.
func (o *owner) lookForStuck() {
	o.stuck.wake = 0
	now, later := o.now(), false
	for _, x := range o.writes {
		switch {
		case x.logged:
		case now-x.at < stuckAfter:
			later = true
		default:
			x.logged = true
			o.log.Warn("kvplane: a write does not end", "transfer", x.id, "peer", x.peer.record.Agent, "bytes", x.bytes,
				"seconds", int((now - x.at).Seconds()))
		}
	}
	for id, a := range o.awaited {
		switch {
		case a.logged || a.failed == 0:
		case now-a.failed < stuckAfter:
			later = true
		default:
			a.logged = true
			o.log.Warn("kvplane: blocks stay in quarantine until the peer's death is proven or this engine is started anew",
				"transfer", id, "peer", a.inc.ID(), "blocks", a.blocks, "seconds", int((now - a.failed).Seconds()))
		}
	}
	if later {
		o.stuck.wake = now + stuckAfter/3
		o.timers.Set(&o.stuck)
	}
}

// stuckWrites counts them by engine id.
func (o *owner) stuckWrites() map[string]int {
	out, now := map[string]int{}, o.now()
	for _, x := range o.writes {
		if now-x.at >= stuckAfter {
			out[x.peer.record.ID()]++
		}
	}
	return out
}
