package agent

import (
	"runtime"
	"time"

	"pdrouter/kvplane/transport"
)

// lull is what an owner of a polled transport has done since the last news.
type lull struct {
	passes int
	dozes  int
	first  time.Duration // when it first looked
	still  bool          // the clock does not move while the owner spins
}

const (
	// gosched is after how many spins other goroutines are let run: each time wakes a thread that looks for more of them,
	// on a processor that the peer may need, and takes 10 µs. Whoever was told the news has run before.
	gosched = 32
	// crowded is how long that takes where other owners of this process spin too, more than it has processors: each waits
	// until all others have spun so often. After that so many turns are taken one spin at a time, in which letting others run
	// costs next to nothing, as no thread is to be had that could be woken.
	crowded = 40 * time.Microsecond
	turns   = 256
	// spins in which the clock has not moved say that it never will.
	spins = 1000
	// nap is how long one of the short sleeps is at least that follow Attention.
	nap = 50 * time.Microsecond
	// dozing stands for one of them.
	dozing = time.Duration(-1)
	// grace is how long a polled transport is polled after something has happened: a message may be on its way out, a
	// connection being made, or what a doorbell announced not there yet.
	grace = 50 * time.Millisecond
	// slowest is how long a byte takes of a write that the owner spins for. Whatever is slower waits for a network.
	slowest = 2 * time.Nanosecond
)

// spin lets others run between two looks of an owner that does not sleep.
func (w *writer) spin(passes int) {
	if w.crowd == 0 && passes%gosched > 0 {
		yield()
		return
	}
	began := w.now()
	runtime.Gosched()
	switch took := w.now() - began; {
	case took > crowded:
		w.crowd = turns
	case w.crowd > 0:
		w.crowd--
	}
	yield()
}

// rest is how long the owner may sleep after a pass without news: 0 is not at all, dozing for a moment; forever: until
// something rings, without a timer.
func (w *writer) rest(l *lull) (wait time.Duration, forever bool) {
	at := w.next()
	if at > 0 {
		wait = max(at-w.now(), 1)
	}
	if !w.cfg.Transport.Polled() || !w.outstanding() {
		return wait, at == 0
	}
	if p := w.pause(l); at == 0 || p < wait {
		wait = p
	}
	return wait, false
}

// pause is how long the owner of a polled transport sleeps after a pass without news. What a peer posts is announced by
// its doorbell, or has come before this owner's attention ended; the last step is only for what comes without.
func (w *writer) pause(l *lull) time.Duration {
	l.passes++
	if l.passes == 1 {
		l.first = w.looked
	}
	l.still = l.still || l.passes == spins && w.looked == l.first
	quiet := w.looked - w.active // not until now: the last look must have been after the end of attention
	switch {
	case !l.still && (quiet < transport.Attention || len(w.writes) > 0 && w.looked < w.moving):
		return 0
	case !l.still && l.dozes < int(transport.Dozing/nap) && (len(w.writes) > 0 || w.awaits()):
		l.dozes++
		return dozing
	case quiet < 10*time.Second:
		return time.Millisecond
	}
	return 10 * time.Millisecond
}

// outstanding says whether a polled transport must be polled: a write is in progress, somebody writes here or may, or
// something has just happened. An offer for which nobody comes, and a registration that waits for its offer, need no
// polling on P: whoever comes rings. D polls for whatever it waits for, also for P's first word.
func (w *writer) outstanding() bool {
	return len(w.writes) > 0 || w.awaits() || w.now()-w.active < grace || w.looked-w.active < transport.Attention
}

// awaits says whether somebody writes here or may.
func (w *writer) awaits() bool { return len(w.awaited) > len(w.remnants) }
