package agent

import "time"

// stuckAfter is how long a write may be in progress before it is called stuck. It is polled on all the same: only its
// end says that the transport no longer reads from here and writes there.
const stuckAfter = 30 * time.Second

// stuck is the alarm that looks for such writes while there are any writes at all.
type stuck struct{ wake time.Duration }

func (s *stuck) Due() time.Duration { return s.wake }

// posted notes that a write is in progress from now on.
func (w *owner) posted(x *write) {
	x.at = w.now()
	w.writes[w.lastID] = x
	x.peer.writes++
	w.active = x.at
	w.moving = max(w.moving, x.at) + time.Duration(x.bytes)*slowest
	if w.stuck.wake == 0 {
		w.stuck.wake = x.at + stuckAfter
		w.timers.Set(&w.stuck)
	}
}

// unposted notes that a write has ended.
func (w *owner) unposted(id uint64) {
	w.writes[id].peer.writes--
	delete(w.writes, id)
	if len(w.writes) == 0 {
		w.stuck.wake = 0 // no timer without a write
	}
}

// lookForStuck logs each stuck write once.
func (w *owner) lookForStuck() {
	w.stuck.wake = 0
	now := w.now()
	for _, x := range w.writes {
		if now-x.at >= stuckAfter && !x.logged {
			x.logged = true
			w.log.Warn("kvplane: a write does not end", "transfer", x.id, "peer", x.peer.record.Agent, "bytes", x.bytes,
				"seconds", int((now - x.at).Seconds()))
		}
	}
	if len(w.writes) > 0 {
		w.stuck.wake = now + stuckAfter/3
		w.timers.Set(&w.stuck)
	}
}

// stuckWrites counts them by engine id.
func (w *owner) stuckWrites() map[string]int {
	out, now := map[string]int{}, w.now()
	for _, x := range w.writes {
		if now-x.at >= stuckAfter {
			out[x.peer.record.ID()]++
		}
	}
	return out
}
