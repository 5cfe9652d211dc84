package kvplane

import "testing"

// TestBurstOfQueuedLegsIsNoSilence: a beat that was not answered yet is not sent again for what was queued meanwhile,
// and only what is repeated for want of an answer counts as missed.
func TestBurstOfQueuedLegsIsNoSilence(t *testing.T) {
	s := play(t, "consumer", `
		queue tid=1
		producers tid=1 from=1
		tick at=25ms
		> send-beat peer=1 0:1
		queue tid=2
		producers tid=2 from=1
		tick at=50ms
		queue tid=3
		producers tid=3 from=1
		tick at=75ms
		queue tid=4
		producers tid=4 from=1
		tick at=100ms
		queue tid=5
		producers tid=5 from=1
		tick at=200ms
		= tid 1 queued, tid 2 queued, tid 3 queued, tid 4 queued, tid 5 queued, peer 1 floor 1
		# What waits for the answer is said as soon as that is here.
		beatack peer=1
		tick at=201ms
		> send-beat peer=1 0:1 0:2 0:3 0:4 0:5
		beatack peer=1
		tick at=1500ms
		tick at=5200ms
		tick at=5202ms
		> send-beat peer=1 0:1 0:2 0:3 0:4 0:5
		tick at=6203ms
		> send-beat peer=1 0:1 0:2 0:3 0:4 0:5
		tick at=7204ms
		> send-beat peer=1 0:1 0:2 0:3 0:4 0:5
		tick at=8205ms
		> send-beat peer=1 0:1 0:2 0:3 0:4 0:5
		= tid 1 queued, tid 2 queued, tid 3 queued, tid 4 queued, tid 5 queued, peer 1 floor 1`)
	if out := s.step(parseEvent(t, "tick at=9206ms")); len(out) != 10 {
		t.Errorf("after four that were not answered: %q; want two reports of each", out)
	}
}
