package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/alarm"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// restless is an owner of a polled transport at a time of the test's choosing.
func restless(t *testing.T) (*owner, *time.Duration) {
	t.Helper()
	now := time.Hour
	net := newFakeNet()
	net.polled = true
	tr := net.transport()
	cfg := Config{Transport: tr, Times: kvplane.Times{}.WithDefaults(), Log: slog.New(slog.DiscardHandler)}
	return newOwner(context.Background(), cfg, metadata.Record{Agent: "d@1/0/0/0"}, host{now: func() time.Duration { return now }}), &now
}

// TestRest says how long an owner sleeps after a pass without news, by when something last happened and when it looked.
func TestRest(t *testing.T) {
	const never = time.Duration(1<<63 - 1)
	for _, tc := range []struct {
		name     string
		looked   time.Duration // after something happened
		now      time.Duration // likewise; 0 is when it looked
		writing  int           // bytes in progress
		awaiting bool
		want     time.Duration
	}{
		{name: "attentive", looked: transport.Attention - 1, want: 0},
		{name: "no longer", looked: transport.Attention, want: time.Millisecond},
		{name: "held up behind its last look", looked: transport.Attention - 1, now: time.Minute, want: 0},
		{name: "attention is over, grace is not", looked: grace - 1, want: time.Millisecond},
		{name: "idle", looked: grace, want: never},
		{name: "awaits", looked: transport.Attention, awaiting: true, want: sleepShortly},
		{name: "awaits for long", looked: 11 * time.Second, awaiting: true, want: sleepShortly},
		{name: "moves bytes", looked: 100*time.Microsecond + transport.Attention, writing: 1 << 20, want: 0},
		{name: "should have moved them", looked: time.Second, writing: 1 << 20, want: sleepShortly},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, now := restless(t)
			w.active, w.polledAt = *now, *now+tc.looked
			if tc.writing > 0 {
				w.posted(&write{peer: &peer{}, bytes: uint64(tc.writing)})
				w.timers = alarm.Timers{} // not the one that looks for stuck writes
			}
			if tc.awaiting {
				w.awaited[kvplane.TransferID{1}] = &awaitedTransfer{}
			}
			*now += max(tc.looked, tc.now)
			wait, forever := w.idleWait(&idleBackoff{})
			if forever {
				wait = never
			}
			if wait != tc.want {
				t.Errorf("rests for %v; want %v", wait, tc.want)
			}
		})
	}
}

// TestLullEnds: spinning and dozing come to an end, also where the clock stands still while the owner spins.
func TestLullEnds(t *testing.T) {
	for _, step := range []time.Duration{0, time.Microsecond} {
		w, now := restless(t)
		w.active, w.polledAt = *now, *now
		w.awaited[kvplane.TransferID{1}] = &awaitedTransfer{}
		var l idleBackoff
		var spun, dozed int
		for i := 0; ; i++ {
			if i > 10*(spins+int(transport.Dozing/shortest)) {
				t.Fatalf("a clock in steps of %v: %d spins and %d dozes, and no end", step, spun, dozed)
			}
			wait, _ := w.idleWait(&l)
			if wait > 0 {
				break
			}
			if wait == sleepShortly {
				dozed++
			} else {
				spun++
			}
			*now += step
			w.polledAt = *now
		}
		if dozed > 0 && step == 0 || spun > spins {
			t.Errorf("a clock in steps of %v: %d spins, %d dozes", step, spun, dozed)
		}
	}
}

// TestSpin: an owner lets the process's others run once in a while, and after each look while that takes so long that
// others must be spinning too.
func TestSpin(t *testing.T) {
	w, now := restless(t)
	step := time.Microsecond
	w.host.now = func() time.Duration { *now += step; return *now }
	let := func(passes int) bool { // whether the others were let run
		before := *now
		w.spin(passes)
		return *now > before
	}
	if let(1) || let(gosched-1) || !let(gosched) {
		t.Errorf("alone it does not let others run at spin %d and at no other", gosched)
	}
	if w.contended != 0 {
		t.Error("others that take no time are taken for a crowd")
	}
	step = 2 * contendedYield
	let(gosched)
	if step = time.Microsecond; !let(1) {
		t.Error("in a crowd it keeps the processor")
	}
	for range turns {
		let(1)
	}
	if let(1) {
		t.Errorf("the crowd is not over after %d turns in which nobody took time", turns)
	}
}
