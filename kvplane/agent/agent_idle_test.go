package agent

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// blocked is what an owner shows of itself when it waits for nothing: neither a timer nor anything to poll for.
func blocked(t *testing.T, a *Agent) bool {
	t.Helper()
	answer := make(chan bool, 1)
	if !a.owner.engineCall(func() {
		w := a.owner
		answer <- w.next() == 0 && len(w.writes) == 0 && len(w.awaited) == 0
	}) {
		t.Fatal("the agent is closed")
	}
	return <-answer
}

// TestIdleOwnerIsBlocked: when the last transfer has settled and what is remembered of it is forgotten, the owner has
// no timer, polls nothing and is not woken.
func TestIdleOwnerIsBlocked(t *testing.T) {
	for _, polled := range []bool{false, true} {
		t.Run(fmt.Sprintf("polled %v", polled), func(t *testing.T) {
			net := newFakeNet()
			net.polled = polled
			inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
				transferAll(t, p, d)
				time.Sleep(5 * time.Minute)
				for _, a := range []*Agent{p.agents[0], d.agents[0]} {
					if !blocked(t, a) {
						t.Error("the owner has a timer, or something to poll for")
					}
					first := a.Status()
					time.Sleep(time.Second) // Status itself is work for a moment
					second := a.Status()
					time.Sleep(24 * time.Hour)
					third := a.Status()
					if third.Polls-second.Polls > second.Polls-first.Polls {
						t.Errorf("%d polls in an idle day; a call of Status alone makes %d", third.Polls-second.Polls, second.Polls-first.Polls)
					}
					if third.Wakeups-second.Wakeups > 1 {
						t.Errorf("woken %d times in an idle day; want once, by Status", third.Wakeups-second.Wakeups)
					}
				}
			})
		})
	}
}

// TestIdleOwnerOverNIXL: over real NIXL too nothing is polled when nothing is outstanding. What two idle agents cost is
// printed.
func TestIdleOwnerOverNIXL(t *testing.T) {
	newTransport(t, "nixl") // skips without it
	p, d, _ := pairOf(t, func() transport.Transport { return newTransport(t, "nixl") }, side(1), side(1), patientTimes)
	transferAll(t, p, d)
	agents := []*Agent{p.agents[0], d.agents[0]}
	time.Sleep(4 * grace) // what was said last has been answered
	var before [2]Status
	for i, a := range agents {
		before[i] = a.Status()
	}
	time.Sleep(2 * grace) // that was work for a moment
	cpu := transporttest.ProcessorTime(t)
	time.Sleep(time.Second)
	t.Logf("%v of processor time in an idle second of two agents", transporttest.ProcessorTime(t)-cpu)
	for i, a := range agents {
		after := a.Status()
		if n := after.Wakeups - before[i].Wakeups; n > 2 {
			t.Errorf("woken %d times; want at most twice, by Status", n)
		}
		if n := after.Polls - before[i].Polls; n > 3000 { // of a grace
			t.Errorf("%d polls around two calls of Status and an idle second", n)
		}
	}
}

// TestLateRegistrationWakesTheOwner: a writer that has offered and gone to sleep is woken by the write request
// that comes much later.
func TestLateRegistrationWakesTheOwner(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		net := newFakeNet()
		net.polled = true
		inBubble(t, net, 2, 2, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
			id := kvplane.NewTransferID()
			p.fill(id, fromP[0], 12)
			p.offer(id, d, 12, fromP)
			time.Sleep(20 * time.Second) // of a lease of 30
			start := time.Now()
			d.expect(id, p, [2]int{0, 12}, toD)
			d.await(id, kvplane.Ready)
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Errorf("the registration was seen after %v", took)
			}
			p.await(id, kvplane.Sent)
		})
	})
	t.Run("nixl", func(t *testing.T) {
		newTransport(t, "nixl") // skips without it
		p, d, _ := pairOf(t, func() transport.Transport { return newTransport(t, "nixl") }, side(1), side(1), patientTimes)
		transferAll(t, p, d) // both know each other
		id := kvplane.NewTransferID()
		p.fill(id, fromP[0], 12)
		p.offer(id, d, 12, fromP)
		time.Sleep(4 * grace) // nothing is polled any more
		polls := p.agents[0].Status().Polls
		time.Sleep(4 * grace)
		if n := p.agents[0].Status().Polls - polls; n > 5000 {
			t.Errorf("%d polls while nobody came", n)
		}
		start := time.Now()
		d.expect(id, p, [2]int{0, 12}, toD)
		d.await(id, kvplane.Ready)
		t.Logf("ready %v after the late registration", time.Since(start).Round(10*time.Microsecond))
		p.await(id, kvplane.Sent)
		if wrong := d.wrong(id, toD[0], 0, 12); wrong > 0 {
			t.Errorf("%d bytes are wrong", wrong)
		}
	})
}

// TestTrapUnmatchedOfferIsNotPolledFor: an offer for which nobody comes, and a write request whose request never
// finishes, do not keep the writer polling. On D whoever waits polls, ever more rarely, until the wait ends.
func TestTrapUnmatchedOfferIsNotPolledFor(t *testing.T) {
	net := newFakeNet()
	net.polled = true
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		p.offer(kvplane.NewTransferID(), d, 12, fromP)
		d.expect(kvplane.NewTransferID(), p, [2]int{0, 12}, toD)
		time.Sleep(time.Second)
		before := []uint64{p.agents[0].Status().Polls, d.agents[0].Status().Polls}
		time.Sleep(20 * time.Second)
		polls := p.agents[0].Status().Polls - before[0]
		// What it is told meanwhile (heartbeats, every 5 s) is followed by a grace of polling.
		if most := uint64(10 * 3000); polls > most {
			t.Errorf("P has polled %d times in 20 s for what never matched; want at most %d", polls, most)
		}
		if n := d.agents[0].Status().Polls - before[1]; n > 80000 {
			t.Errorf("D has polled %d times in 20 s; want growing pauses", n)
		}
		time.Sleep(5 * time.Minute)
		for _, a := range []*Agent{p.agents[0], d.agents[0]} {
			if !blocked(t, a) {
				t.Error("the owner has a timer, or something to poll for")
			}
		}
	})
}

// BenchmarkPass is one pass of an owner with so many transfers outstanding on P and on D: it must not walk them.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprintf("outstanding=%d", n), func(b *testing.B) {
			w := busyWriter(b, n)
			for b.Loop() {
				w.pass()
			}
		})
		b.Run(fmt.Sprintf("look/outstanding=%d", n), func(b *testing.B) {
			w := busyWriter(b, n)
			for b.Loop() {
				w.pendingEngines()
			}
		})
	}
}

// busyWriter is an owner that is not run, with n offers that nobody comes for and n write requests of what is never
// offered.
func busyWriter(b *testing.B, n int) *owner {
	b.Helper()
	net := newFakeNet()
	records := map[string][]metadata.Record{}
	for _, name := range []string{"self", "peer"} {
		record := side(1).WithDefaults().Records(name)[0]
		key, _, err := transport.NewKey()
		if err != nil {
			b.Fatal(err)
		}
		record.Agent, record.Key, record.Transport, record.Generation = name+"@1/0/0/0", key, "fake", 1
		if name == "peer" {
			if _, _, err := net.transport().Open(record.Agent, nil); err != nil {
				b.Fatal(err)
			}
		}
		records[name] = []metadata.Record{record}
	}
	self, peer := records["self"][0], records["peer"][0]
	_, agree, err := transport.NewKey()
	if err != nil {
		b.Fatal(err)
	}
	tr := net.transport()
	if _, _, err := tr.Open(self.Agent, nil); err != nil {
		b.Fatal(err)
	}
	h := host{now: clock(time.Now()), agree: agree, exited: func(metadata.Process) bool { return false }}
	w := newOwner(b.Context(), Config{Transport: tr, Times: patientTimes.WithDefaults(), Log: slog.New(slog.DiscardHandler)}, self, h)
	w.host.ask = func(_ metadata.Incarnation, then func([]metadata.Record, error)) {
		w.enqueue(func() { then([]metadata.Record{peer}, nil) })
	}
	for range n {
		w.offer(&kvplane.Offer{ID: kvplane.NewTransferID(), Peer: peer.Incarnation, Tokens: 12, Groups: fromP})
		w.expect(&kvplane.Expectation{ID: kvplane.NewTransferID(), Peer: peer.Incarnation, Need: [2]int{0, 12}, Groups: toD})
	}
	for range 10 {
		w.pass()
	}
	if len(w.awaited) != n || w.owing[peer.Incarnation] != n {
		b.Fatalf("%d transfers are awaited and %d owed; want %d", len(w.awaited), w.owing[peer.Incarnation], n)
	}
	return w
}
