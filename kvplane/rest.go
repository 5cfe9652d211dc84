package kvplane

import "time"

// rest is how long the owner may sleep after so many passes without news; forever: until something rings, without a
// timer.
func (w *writer) rest(idle int) (wait time.Duration, forever bool) {
	at := w.next()
	if at > 0 {
		wait = max(at-w.now(), 1)
	}
	if !w.cfg.Transport.Polled() || !w.outstanding() {
		return wait, at == 0
	}
	if p := pause(idle); at == 0 || p < wait {
		wait = p
	}
	return wait, false
}

// pause is how long the owner of a polled transport sleeps after so many passes without news. What a peer posts is
// announced by its doorbell; the last step is only for what comes without.
func pause(idle int) time.Duration {
	switch {
	case idle < 200:
		return 0
	case idle < 1000:
		return 20 * time.Microsecond
	case idle < 3000:
		return 100 * time.Microsecond
	case idle < 13000:
		return time.Millisecond
	}
	return 10 * time.Millisecond
}

// grace is how long a polled transport is polled after something has happened: a message may be on its way out, a
// connection being made, or what a doorbell announced not there yet.
const grace = 50 * time.Millisecond

// outstanding says whether a polled transport must be polled: a write is in progress, somebody writes here or may, or
// something has just happened. What waits for the engine or for a peer's first word needs no polling.
func (w *writer) outstanding() bool {
	return len(w.writes) > 0 || len(w.awaited) > len(w.remnants) || w.now()-w.active < grace
}
