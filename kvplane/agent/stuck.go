package agent

import "time"

// stuckAfter is how long a write may be in progress before it is called stuck. It is polled on all the same: only its
// end says that the transport no longer reads from here and writes there.
const stuckAfter = 30 * time.Second

// stuck is the alarm that looks for such writes while there are any writes at all.
type stuck struct{ wake time.Duration }

func (s *stuck) Due() time.Duration { return s.wake }

// posted notes that a write is in progress from now on.
func (o *owner) posted(x *write) {
	x.at = o.now()
	o.writes[o.lastID] = x
	x.peer.writes++
	o.active = x.at
	o.moving = max(o.moving, x.at) + time.Duration(x.bytes)*slowest
	if o.stuck.wake == 0 {
		o.stuck.wake = x.at + stuckAfter
		o.timers.Set(&o.stuck)
	}
}

// unposted notes that a write has ended.
func (o *owner) unposted(id uint64) {
	o.writes[id].peer.writes--
	delete(o.writes, id)
	if len(o.writes) == 0 {
		o.stuck.wake = 0 // no timer without a write
	}
}

// lookForStuck logs each stuck write once.
func (o *owner) lookForStuck() {
	o.stuck.wake = 0
	now := o.now()
	for _, x := range o.writes {
		if now-x.at >= stuckAfter && !x.logged {
			x.logged = true
			o.log.Warn("kvplane: a write does not end", "transfer", x.id, "peer", x.peer.record.Agent, "bytes", x.bytes,
				"seconds", int((now - x.at).Seconds()))
		}
	}
	if len(o.writes) > 0 {
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
