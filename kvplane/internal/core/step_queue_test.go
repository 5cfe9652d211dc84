package core

import (
	"testing"

	"pdrouter/metadata"
)

// TestBurstOfQueuedLegsIsNoSilence: a heartbeat that was not answered yet is not sent again for what was queued meanwhile,
// and only what is repeated for want of an answer counts as missed.
func TestBurstOfQueuedLegsIsNoSilence(t *testing.T) {
	s := play(t, "consumer", `
		queue tid=1
		producers tid=1 from=1
		tick at=25ms
		> send-heartbeat peer=1 0:1
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
		= tid 1 queued, tid 2 queued, tid 3 queued, tid 4 queued, tid 5 queued, peer 1 low-water 1
		# What waits for the answer is said as soon as that is here.
		heartbeat-ack peer=1
		tick at=201ms
		> send-heartbeat peer=1 0:1 0:2 0:3 0:4 0:5
		heartbeat-ack peer=1
		tick at=1500ms
		tick at=5200ms
		tick at=5202ms
		> send-heartbeat peer=1 0:1 0:2 0:3 0:4 0:5
		tick at=6203ms
		> send-heartbeat peer=1 0:1 0:2 0:3 0:4 0:5
		tick at=7204ms
		> send-heartbeat peer=1 0:1 0:2 0:3 0:4 0:5
		tick at=8205ms
		> send-heartbeat peer=1 0:1 0:2 0:3 0:4 0:5
		= tid 1 queued, tid 2 queued, tid 3 queued, tid 4 queued, tid 5 queued, peer 1 low-water 1`)
	if out := s.step(parseEvent(t, "tick at=9206ms")); len(out) != 10 {
		t.Errorf("after four that were not answered: %q; want two reports of each", out)
	}
}

// TestQueuedLegOutlivesItsConnection: what is queued is reason enough to connect anew, and heartbeats go on then. It ends
// when the producer, which hears nothing, has given it up.
func TestQueuedLegOutlivesItsConnection(t *testing.T) {
	const lost = `
		queue tid=1
		producers tid=1 from=1
		tick at=25ms
		> send-heartbeat peer=1 0:1
		heartbeat-ack peer=1
		down peer=1 at=1s
		> pair peer=1
		`
	for name, script := range map[string]string{
		"it comes back": lost + `
			up peer=1 at=2s
			tick at=2021ms
			> send-heartbeat peer=1 0:1
			heartbeat-ack peer=1
			tick at=7010ms
			tick at=7030ms
			> send-heartbeat peer=1 0:1
			heartbeat-ack peer=1
			tick at=31s
			> send-heartbeat peer=1 0:1
			= tid 1 queued, peer 1 low-water 1`,
		"it does not": lost + `
			tick at=30s
			= tid 1 queued, peer 1 low-water 1
			tick at=31001ms
			> report failed tid=1 because=peer_gone 0/0
			> report reusable tid=1 because=peer_gone 0/0
			= tid 1 reusable, peer 1 low-water 1`,
		"it comes and goes without a word": lost + `
			up peer=1 at=10s
			tick at=10021ms
			> send-heartbeat peer=1 0:1
			down peer=1 at=12s
			> pair peer=1
			up peer=1 at=30s
			tick at=30021ms
			> send-heartbeat peer=1 0:1
			down peer=1 at=30500ms
			> pair peer=1
			tick at=31001ms
			> report failed tid=1 because=peer_gone 0/0
			> report reusable tid=1 because=peer_gone 0/0`,
		"queued while there is none": `
			queue tid=1
			producers tid=1 from=1
			down peer=1
			> pair peer=1
			queue tid=2
			producers tid=2 from=1
			> pair peer=1
			up peer=1
			tick at=25ms
			> send-heartbeat peer=1 0:1 0:2`,
		"nothing is queued any more": `
			queue tid=1
			producers tid=1 from=1
			heartbeat-ack peer=1 lines=0:1:not_begun:spent
			> report failed tid=1 because=spent 0/0
			> report reusable tid=1 because=spent 0/0
			down peer=1`,
	} {
		t.Run(name, func(t *testing.T) { play(t, "consumer", script) })
	}
}

// hanging says that something hangs on an engine, so that the owner looks whether its process is dead.
func hanging(c *Consumer, on metadata.Incarnation) bool {
	out := map[metadata.Incarnation]bool{}
	c.PendingEngines(out)
	return out[on]
}

// TestQueuedLegHangsOnItsProducer: the owner looks whether that one's process is dead.
func TestQueuedLegHangsOnItsProducer(t *testing.T) {
	s := play(t, "consumer", `
		queue tid=1
		producers tid=1 from=1`)
	if !hanging(s.c, far) {
		t.Error("nothing hangs on a producer that is asked to keep a transfer")
	}
	s.play(t, `
		abandon tid=1
		> send-cancel peer=1 seq=1 tid=1 because=stopped
		status peer=1 seq=1 state=not_begun reason=cancelled
		> send-ack peer=1 seq=1`)
	if hanging(s.c, far) {
		t.Error("something hangs on a producer from whom nothing is wanted any more")
	}
}
