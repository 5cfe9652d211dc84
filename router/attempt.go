package router

import (
	"context"
	"sync"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/reason"
)

// attempt is one dispatch of a request: a pair of engines, or one engine alone, and ids of its own.
type attempt struct {
	h       connector.Handoff
	split   bool
	couple  *couple // of a pair; nil if it is not one that is kept warm
	prefill call
	decode  call

	parked   bool    // waits for the pair; owner only
	asked    bool    // the decode leg was asked; owner only
	stranded bool    // KV may be held for nobody; owner only
	stream   *stream // decode's answer, up to its first event, until somebody takes it

	prefillTimer *time.Timer // the prefill leg's time; set before the leg is asked

	reads      bool    // decode reads what prefill holds; set once
	unstreamed bool    // decode's first byte comes with its last, and says nothing of the transfer; set once
	looks      *Router // has it looked what decode has in hand, where nothing else tells; nil if nobody asks; set once
	// lost is told that the transfer has not come, and leaves decode's leg open: prefill writes, and how the leg may be ended is for
	// whoever frees decode's blocks. Nil where decode reads, or its engine ends a transfer that fails; set once.
	lost   func(why reason.Reason)
	landed func() bool // whether the transfer is over, as far as is known; nil if nobody tells; set once

	mu       sync.Mutex
	due      time.Time     // of decode's first token; zero until prefill has answered
	transfer *time.Timer   // ends the decode leg when it is due; nil until then
	watcher  *time.Timer   // begins to look after a transfer that nobody tells of; nil if nobody is to
	unwatch  func()        // ends that; nil until it has begun
	over     bool          // the decode leg's first event is here, or the leg is over
	came     bool          // it has brought tokens
	closed   bool          // nobody wants what it brings
	disowned bool          // it is open still for whoever sees to what decode holds
	overdue  bool          // its KV should have come
	supplied bool          // a look has shown that decode has its KV; an answer that is not streamed does not tell
	broken   bool          // it was begun, and the engine has failed at it
	ended    chan struct{} // closed when it is over; made for who waits for that
	orphan   *remains      // the prefill leg runs on for decode's blocks alone; what is to be done if it fails
	hurried  bool          // nobody waits for the answer
	works    bool          // when it was ended decode was at work with all that it had, so it had its blocks
	usable   bool          // the prefill leg is over, and what decode needs is here
	unknown  bool          // it is over, and what the engine has left of it is not known
	parted   bool          // it is over, and the engine has shown that it knows
	failed   bool          // it is over, and has not written decode's blocks
	bare     bool          // it is over, and has handed nothing off
}

// spoiled reports whether decode may have used up what it refers to at prefill, so that nobody else may refer to it.
func (a *attempt) spoiled() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.broken
}

// runs are the runs of the engines that the pair consists of.
func (a *attempt) runs() metadata.Pair {
	if a.prefill.engine.publishes {
		return metadata.Pair{Prefill: a.h.Prefill, Decode: a.h.Decode}
	}
	return metadata.Pair{Prefill: a.prefill.engine.incarnation(), Decode: a.decode.engine.incarnation()}
}

// prefilled notes how the prefill leg has ended. If decode's blocks stay held, and nobody sees to that, it returns what is
// left.
func (a *attempt) prefilled(e dispatch.Event) *remains {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.usable = e.Kind == dispatch.EvPrefillUsable
	a.parted = e.Why != reason.Panic && a.prefill.parted()
	left := e.Kind.Leaves()
	a.bare = left == dispatch.LegBare
	a.unknown = left == dispatch.LegLost || left == dispatch.LegBroken || a.bare // an error does not say that nothing runs, or is held
	if a.failed = !a.usable && e.Kind != dispatch.EvPrefillRejected; a.failed {  // what prefill rejects, decode rejects as well
		if a.orphan != nil {
			a.orphan.lost, a.orphan.parted, a.orphan.closed = a.unknown, a.parted, time.Now()
		}
		return a.orphan
	}
	return nil
}

// legOf returns the leg that an event is about, nil if it is about none. Of a pair that does not come about it is prefill's.
func (a *attempt) legOf(e dispatch.Event) *call {
	switch k := e.Kind; {
	case k == dispatch.EvTransferLost:
		a.prefill.err = errRunOver
		if e.Why == reason.TransferTimeout {
			a.prefill.err = errTransferLate
		}
		return &a.prefill
	case k.OfPrefill(), k == dispatch.EvPairFailed:
		return &a.prefill
	case k.OfDecode(), k.Breaks():
		return &a.decode
	}
	return nil
}

// answered reports whether the prefill leg's usable answer is here.
func (a *attempt) answered() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.usable
}

// keptAll reports that the prefill leg is over and has handed nothing off. never says that its engine surely writes nothing: it has ended
// for a reason of its own. One that was cut at its limit may write without saying so.
func (a *attempt) keptAll() (kept, never bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bare, a.bare && !capped(a.prefill.body)
}

// refused reports that the prefill leg is over and that nothing of it is left at the engine that it was for, which has not begun or
// is another run now.
func (a *attempt) refused() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed && !a.unknown
}

// expect gives decode d to come up with its first token. It may be called twice; the first call counts.
//
// An answer that is not streamed may take as long as it is generated, so there it is the transfer itself that is due,
// if there is a way to know of it.
func (a *attempt) expect(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.due.IsZero() || a.over {
		return
	}
	a.due = time.Now().Add(d)
	switch {
	case a.unstreamed && a.hurried:
		a.transfer = a.leave(min(d, leftFor))
	case !a.unstreamed:
		a.transfer = a.lapse(d)
	case a.landed != nil:
		a.transfer = time.AfterFunc(d, func() {
			if !a.landed() {
				a.decode.Cancel(errTransferLate)
			}
		})
	}
}

// lapse has the transfer have failed after d. The timer is to be stopped.
func (a *attempt) lapse(d time.Duration) *time.Timer {
	if a.lost == nil {
		return a.decode.later(d, errTransferLate)
	}
	return time.AfterFunc(d, func() { a.lapsed(reason.TransferTimeout) })
}

// lapsed tells that the transfer has not come, unless decode's leg is over.
func (a *attempt) lapsed(why reason.Reason) {
	if a.isOverdue() {
		a.lost(why)
	}
}

// isOverdue notes that the KV should have come, and reports false if decode's leg is over.
func (a *attempt) isOverdue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over && !a.overdue && !a.supplied {
		a.overdue = true
		a.decode.engine.overdue.Add(1)
	}
	return !a.over
}

// hurry notes that nobody waits for the answer. A decode leg must have begun with what prefill wrote, or else it leaves that
// behind; with its first token it has. One that is not streamed does not tell, so where prefill writes it is given a while
// behind prefill's answer, and where it reads itself the time of a transfer.
func (a *attempt) hurry() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hurried = true
	if !a.unstreamed || a.transfer != nil || a.over || a.due.IsZero() {
		return
	}
	d := time.Until(a.due)
	if !a.reads {
		d = min(leftFor, d)
	}
	a.transfer = a.leave(d)
}

// supply notes that decode has its KV, as a look has shown.
func (a *attempt) supply() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || a.supplied {
		return
	}
	a.supplied = true
	a.decode.engine.supplied.Add(1)
	if a.overdue {
		a.overdue = false
		a.decode.engine.overdue.Add(-1)
	}
}

// leave ends the decode leg after d, behind a look at whether all that decode has is at work. If it is not, and decode can be told what
// to free, the leg is left open for that. The timer is to be stopped.
func (a *attempt) leave(d time.Duration) *time.Timer {
	r := a.looks
	if r == nil {
		return a.decode.later(d, errHurried)
	}
	return time.AfterFunc(d, func() {
		a.mu.Lock()
		if a.over {
			a.mu.Unlock()
			return
		}
		r.ended.Add(1) // decode's leg counts still
		a.mu.Unlock()
		defer r.ended.Done()
		works, said := false, tellsLater
		defer func() {
			if !works && said != tellsNot && r.untellable(a.decode.engine) == strandNone {
				a.lapsed(reason.ClientLeft)
			} else {
				a.decode.Cancel(errHurried)
			}
		}()
		r.survive("a look at a load", func() {
			ctx, cancel := context.WithTimeout(r.legs, leftFor)
			defer cancel()
			var l load
			l, said = r.seeLoad(ctx, a.decode.engine)
			works = said == tells && l.running > 0 && l.waiting == 0
			a.mu.Lock()
			defer a.mu.Unlock()
			a.works = works
		})
	})
}

// worked reports whether a leg that was ended blind had its blocks all the same.
func (a *attempt) worked() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.works
}

// arrived notes that decode's first event is here, or that its leg is over; came says that it has brought tokens. It reports
// false if nobody wants them.
func (a *attempt) arrived(came bool) bool {
	defer a.unwatched()
	a.decode.hasRead()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over, a.came = true, came
	if a.overdue {
		a.overdue = false
		a.decode.engine.overdue.Add(-1)
	}
	if a.supplied {
		a.supplied = false
		a.decode.engine.supplied.Add(-1)
	}
	if came && a.stream != nil {
		a.decode.streams = true
		a.decode.engine.streaming.Add(1)
	}
	if a.ended != nil {
		close(a.ended)
	}
	if a.transfer != nil {
		a.transfer.Stop()
	}
	return !a.closed
}

// unwatched ends looking after the transfer: the leg is over.
func (a *attempt) unwatched() {
	a.mu.Lock()
	watcher, end := a.watcher, a.unwatch
	a.mu.Unlock()
	if watcher != nil {
		watcher.Stop()
	}
	if end != nil {
		end()
	}
}

// closeDecode ends the decode leg, in whatever it is. It may be called twice.
func (a *attempt) closeDecode() {
	a.mu.Lock()
	before := a.closed
	a.closed = true
	over := a.over || !a.asked
	a.mu.Unlock()
	switch {
	case !over:
		a.decode.Cancel(errEnded) // who asks it then ends it
	case !before: // else whoever asked it has seen that nobody wants it
		a.release()
	}
}

// disown has nobody want what the decode leg brings, and leaves it open until closeDecode is called.
func (a *attempt) disown() {
	a.mu.Lock()
	a.closed = true
	over := a.over || !a.asked
	a.disowned = !over
	a.mu.Unlock()
	if over {
		a.release()
	}
}

// letGo ends the decode leg, unless it was disowned.
func (a *attempt) letGo() {
	if !a.open() {
		a.closeDecode()
	}
}

// open reports whether the decode leg was disowned and is open still.
func (a *attempt) open() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.disowned && !a.over
}

// release ends a decode leg that is not being asked.
func (a *attempt) release() {
	if a.stream != nil {
		a.stream.free()
		a.stream = nil
	}
	a.decode.end()
}

// tookAll reports whether decode has tokens, and so all that prefill held for it.
func (a *attempt) tookAll() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.came
}

// blind reports whether decode's leg was ended as nobody waits for its answer, though decode could not tell that it was at work.
func (a *attempt) blind() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unstreamed && a.hurried
}

// sent waits until a decode leg that was closed is over, and reports whether a byte of it may have left.
func (a *attempt) sent(ctx context.Context) bool {
	a.mu.Lock()
	over := a.over
	if !over && a.ended == nil {
		a.ended = make(chan struct{})
	}
	ended := a.ended
	a.mu.Unlock()
	if !over {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	return !a.unsent()
}

// unsent reports that the decode leg is over and no byte of it has left.
func (a *attempt) unsent() bool {
	a.mu.Lock()
	over := a.over
	a.mu.Unlock()
	return over && a.decode.unsent()
}
