package reclaim

import (
	"testing"
)

// TestDecodeHeldNext walks through what may be known of KV that decode holds for a request that is over.
func TestDecodeHeldNext(t *testing.T) {
	able := decodeHeld{agent: true, channel: true, named: true, begun: true}
	with := func(o decodeHeld, f func(*decodeHeld)) decodeHeld { f(&o); return o }
	for _, row := range []struct {
		name string
		o    decodeHeld
		want step
		why  Cause
	}{
		{"nothing is known", decodeHeld{}, stepAskAgain, CauseNone},
		{"prefill was asked again and lives", with(able, func(o *decodeHeld) { o.tried, o.run = true, runLives }), stepLook, CauseNone},
		{"prefill has written", with(able, func(o *decodeHeld) { o.tried, o.written = true, true }), stepNothing, CauseNone},
		{"prefill is over", with(able, func(o *decodeHeld) { o.run = runOver }), stepBarrier, CauseNone},
		{"prefill is over, decode has yet to begin", with(able, func(o *decodeHeld) { o.run, o.begun, o.open = runOver, false, true }), stepAwait, CauseNone},
		{"prefill is over, decode may have begun or not", with(able, func(o *decodeHeld) { o.run, o.begun, o.passed = runOver, false, true }), stepCount, CauseUnbegun},
		{"no time, decode has yet to begin", with(able, func(o *decodeHeld) { o.run, o.begun, o.open, o.over = runOver, false, true, true }), stepCount, CauseUnbegun},
		{"prefill is over, decode has noticed", with(able, func(o *decodeHeld) { o.run, o.passed = runOver, true }), stepNotifyDecode, CauseNone},
		{"decode has noticed, prefill may live", with(able, func(o *decodeHeld) { o.tried, o.passed = true, true }), stepLook, CauseNone},
		{"no time, prefill may live", with(able, func(o *decodeHeld) { o.tried, o.passed, o.over = true, true, true }), stepCount, CauseUnproven},
		{"no time, decode has not noticed", with(able, func(o *decodeHeld) { o.run, o.over = runOver, true }), stepCount, CauseNoBarrier},
		{"no agent", with(able, func(o *decodeHeld) { o.agent, o.run = false, runOver }), stepCount, CauseNoAgent},
		{"random names", with(able, func(o *decodeHeld) { o.named, o.run = false, runOver }), stepCount, CauseNames},
		{"no side channel", with(able, func(o *decodeHeld) { o.channel, o.run = false, runOver }), stepCount, CauseChannel},
		{"prefill is down, nothing could be told", decodeHeld{down: true, tried: true}, stepCount, CauseNoAgent},
		{"prefill may have it under that name", with(able, func(o *decodeHeld) { o.barred = true }), stepLook, CauseNone},
		{"prefill may have it under that name, and lives", with(able, func(o *decodeHeld) { o.barred, o.run = true, runLives }), stepCount, CausePossible},
		{"prefill may run it still under that name, if it lives", with(able, func(o *decodeHeld) { o.lost = true }), stepLook, CauseNone},
		{"prefill may run it still under that name", with(able, func(o *decodeHeld) { o.lost, o.run = true, runLives }), stepClear, CauseNone},
		{"prefill may run it still under that name, and cannot be told", decodeHeld{lost: true, run: runLives}, stepCount, CausePossible},
		{"prefill may run it still under that name, is down, and nothing could be told", decodeHeld{lost: true, down: true}, stepCount, CauseNoAgent},
		{"prefill may run it still, and there is no time", with(able, func(o *decodeHeld) { o.lost, o.over = true, true }), stepCount, CauseUnproven},
		{"prefill may hold it, as nothing shows that it does not", with(able, func(o *decodeHeld) { o.lost, o.barred, o.run = true, true, runLives }), stepCount, CausePossible},
		{"prefill has answered, and lives", with(able, func(o *decodeHeld) { o.finished, o.open = true, true }), stepFlush, CauseNone},
		{"prefill has answered, decode's leg is over", with(able, func(o *decodeHeld) { o.finished, o.barred, o.run = true, true, runLives }), stepCount, CausePossible},
		{"prefill has answered, no time", with(able, func(o *decodeHeld) { o.finished, o.open, o.over = true, true, true }), stepCount, CausePossible},
		{"prefill has answered, and is over", with(able, func(o *decodeHeld) { o.finished, o.open, o.run, o.begun = true, true, runOver, false }), stepAwait, CauseNone},
		{"prefill lives, and writes nothing any more", with(able, func(o *decodeHeld) { o.finished, o.run, o.flushed = true, runLives, true }), stepBarrier, CauseNone},
		{"prefill writes nothing any more, decode has noticed", with(able, func(o *decodeHeld) { o.run, o.flushed, o.passed = runLives, true, true }), stepNotifyDecode, CauseNone},
		{"prefill may run it still under that name, its leg was given up", with(able, func(o *decodeHeld) { o.lost, o.barred, o.run, o.open = true, true, runLives, true }), stepIdle, CauseNone},
		{"prefill is down", with(able, func(o *decodeHeld) { o.down, o.tried = true, true }), stepLook, CauseNone},
	} {
		if got, why := row.o.next(); got != row.want || why != row.why {
			t.Errorf("%s: %v, %v; want %v, %v", row.name, got, why, row.want, row.why)
		}
	}
}

// TestDecodeHeldProperties: whatever is known, decode is told only with everything shown, prefill is never asked again when its
// run is over, and what has no more time comes to an end.
func TestDecodeHeldProperties(t *testing.T) {
	for bits := range 1 << 14 {
		for _, run := range []proof{runUnknown, runLives, runOver} {
			b := func(i int) bool { return bits>>i&1 == 1 }
			o := decodeHeld{b(0), b(1), b(2), run, b(3), b(4), b(5), b(6), b(7), b(8), b(9), b(10), b(11), b(12), b(13)}
			s, why := o.next()
			safe := o.agent && o.channel && o.named && o.begun && o.passed && (o.run == runOver || o.flushed)
			if s == stepNotifyDecode && !safe {
				t.Fatalf("%+v: decode is told", o)
			}
			if s == stepAskAgain && (o.run == runOver || o.barred || o.lost) {
				t.Fatalf("%+v: prefill is asked again", o)
			}
			if s == stepFlush && (!o.finished || !o.open || !o.agent || !o.channel || !o.named) {
				t.Fatalf("%+v: a wait that does not lead to telling decode", o)
			}
			if s == stepIdle && (o.run != runLives || !o.lost || !o.agent) {
				t.Fatalf("%+v: a wait for a prefill engine that may be dead", o)
			}
			if s == stepClear && (o.run != runLives || !o.agent) {
				t.Fatalf("%+v: a wait for what may be dead, or cannot be told", o)
			}
			if o.over && s != stepCount && s != stepNothing && s != stepNotifyDecode {
				t.Fatalf("%+v: %v without time", o, s)
			}
			if (s == stepCount) != (why != CauseNone) {
				t.Fatalf("%+v: %v because of %v", o, s, why)
			}
		}
	}
}

// TestPrefillHeldNext walks through all that may be known of KV that prefill holds: it is told only when nothing can be
// reading, a decode leg under the same id comes only if there was none, and there is always an end.
func TestPrefillHeldNext(t *testing.T) {
	for bits := range 1 << 8 {
		b := func(i int) bool { return bits>>i&1 == 1 }
		l := PrefillHeld{b(0), b(1), b(2), b(3), b(4), b(5), b(6), b(7)}
		s, why := l.next()
		if s == stepNotifyPrefill && (!l.agent || !l.Answered || l.Asked && l.reads && !l.ended || l.Asked && !l.ended && !l.passed) {
			t.Fatalf("%+v: prefill is told", l)
		}
		if s == stepTake && l.Asked {
			t.Fatalf("%+v: taken a second time", l)
		}
		if (s == stepCount) != (why != CauseNone) {
			t.Fatalf("%+v: %v because of %v", l, s, why)
		}
		steps := 0
		for s != stepCount && s != stepNothing { // everything fails
			switch s {
			case stepNotifyPrefill:
				l.notifyFailed = true
			case stepTake:
				l.TakeFailed = true
			case stepBarrier:
				l.passed = true
			}
			if s, _ = l.next(); steps > 4 {
				t.Fatalf("%+v: no end", l)
			}
			steps++
		}
	}
}
