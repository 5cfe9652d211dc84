package agent

import (
	"runtime"
	"time"

	"pdrouter/kvplane/transport"
)

// idleBackoff is what an owner of a polled transport has done since something last happened.
type idleBackoff struct {
	passes int
	sleeps int
	first  time.Duration // when it first polled
	still  bool          // the clock does not move while the owner spins
}

const (
	// gosched is after how many spins other goroutines are let run: each time wakes a thread that looks for more of them,
	// on a processor that the peer may need, and takes 10 µs. The goroutine that waits for a report has run before.
	gosched = 32
	// contendedYield is how long that takes where other owners of this process spin too, more than it has processors: each waits
	// until all others have spun so often. After that so many turns are taken one spin at a time, in which letting others run
	// costs next to nothing, as no thread is to be had that could be woken.
	contendedYield = 40 * time.Microsecond
	turns          = 256
	// spins in which the clock has not moved say that it never will.
	spins = 1000
	// shortest is the least length of the short sleeps after Attention.
	shortest = 50 * time.Microsecond
	// sleepShortly stands for one of them.
	sleepShortly = time.Duration(-1)
	// grace is how long a polled transport is polled after something has happened: a message may be on its way out, a
	// connection being made, or what a doorbell announced not there yet.
	grace = 50 * time.Millisecond
	// slowest is how long a byte takes of a write that the owner spins for. Whatever is slower waits for a network.
	slowest = 2 * time.Nanosecond
)

// spin lets others run between two polls of an owner that does not sleep.
func (o *owner) spin(passes int) {
	if o.contended == 0 && passes%gosched > 0 {
		yield()
		return
	}
	began := o.now()
	runtime.Gosched()
	switch took := o.now() - began; {
	case took > contendedYield:
		o.contended = turns
	case o.contended > 0:
		o.contended--
	}
	yield()
}

// idleWait is how long the owner may sleep after a pass without news: 0 is not at all, sleepShortly for about 0.1 ms; forever: until
// a wakeup, without a timer.
func (o *owner) idleWait(l *idleBackoff) (wait time.Duration, forever bool) {
	at := o.next()
	if at > 0 {
		wait = max(at-o.now(), 1)
	}
	if !o.cfg.Transport.Polled() || !o.outstanding() {
		return wait, at == 0
	}
	if p := o.pause(l); at == 0 || p < wait {
		wait = p
	}
	return wait, false
}

// pause is how long the owner of a polled transport sleeps after a pass without news. What a peer posts is announced by
// its doorbell, or has come before this owner's attention ended; the last step is only for what comes without.
func (o *owner) pause(l *idleBackoff) time.Duration {
	l.passes++
	if l.passes == 1 {
		l.first = o.polledAt
	}
	l.still = l.still || l.passes == spins && o.polledAt == l.first
	quiet := o.polledAt - o.active // not until now: the last poll must have been after the end of attention
	switch {
	case !l.still && (quiet < transport.Attention || len(o.writes) > 0 && o.polledAt < o.moving):
		return 0
	case !l.still && l.sleeps < int(transport.Dozing/shortest) && (len(o.writes) > 0 || o.awaits()):
		l.sleeps++
		return sleepShortly
	case quiet < 10*time.Second:
		return time.Millisecond
	}
	return 10 * time.Millisecond
}

// outstanding says whether a polled transport must be polled: a write is in progress, somebody writes here or may, or
// something has just happened. An offer that no consumer has asked for, and a write request that waits for its offer, need no
// polling on P: the consumer or the engine wakes the owner. D polls for everything that it waits for, also for P's first answer.
func (o *owner) outstanding() bool {
	return len(o.writes) > 0 || o.awaits() || o.now()-o.active < grace || o.polledAt-o.active < transport.Attention
}

// awaits says whether somebody writes here or may.
func (o *owner) awaits() bool { return len(o.awaited) > 0 }
