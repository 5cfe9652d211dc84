package core

import "testing"

// TestSessionMadeBetweenConnections: a peer that is known only since its connection was lost is not taken for one that
// can be reached.
func TestSessionMadeBetweenConnections(t *testing.T) {
	t.Run("registered with P", func(t *testing.T) {
		play(t, "producer", `
			offer tid=1
			consumers tid=1 owed=1
			write-request peer=1 seq=1 tid=1 low=1 down
			> send-status peer=1 seq=1 tid=1 pairing
			> pair peer=1
			= tid 1 held, peer 1 seq 1 pairing
			up peer=1
			> post peer=1 seq=1 tid=1`)
	})
	t.Run("registered by D", func(t *testing.T) {
		play(t, "consumer", `
			expect tid=1
			producers tid=1 from=1-,2
			> pair peer=1
			> send-write-request peer=2 seq=1 tid=1
			= tid 1 receiving [1 lost] [2 sent], peer 1 low-water 1, peer 2 low-water 1
			status peer=2 seq=1 state=not_begun reason=aborted
			> send-ack peer=2 seq=1
			> report failed tid=1 because=aborted 0/2
			> pair peer=1
			# Nothing has ever left for peer 1.
			> report reusable tid=1 because=aborted 0/2
			up peer=1
			> send-cancel peer=1 seq=1 tid=1 because=aborted`)
	})
	t.Run("queued on D", func(t *testing.T) {
		play(t, "consumer", `
			queue tid=1
			producers tid=1 from=1-
			> pair peer=1
			tick at=2s
			up peer=1
			tick at=2021ms
			> send-heartbeat peer=1 0:1`)
	})
}

// TestStatusAtEachChange: D hears without asking that its blocks are matched, and of a write that is not over at once.
func TestStatusAtEachChange(t *testing.T) {
	const post = `
		write-request peer=1 seq=1 tid=1 low=1
		> send-status peer=1 seq=1 tid=1 waiting
		offer tid=1
		consumers tid=1 owed=1
		> post peer=1 seq=1 tid=1
		`
	for name, script := range map[string]string{
		"a long write": post + `
			tick at=22ms
			> send-status peer=1 seq=1 tid=1 writing
			tick at=2s
			heartbeat peer=1 low=1 lines=1:1
			> send-heartbeat-ack peer=1 1:1 writing
			written peer=1 seq=1 tid=1
			> report sent tid=1 1/1`,
		"a short write": post + `
			written peer=1 seq=1 tid=1
			> report sent tid=1 1/1
			tick at=20ms`,
		"nothing to write": post + `
			nothing peer=1 seq=1 tid=1
			> send-status peer=1 seq=1 tid=1 done
			> report sent tid=1 1/1`,
		"a long write that D has settled": post + `
			ack peer=1 low=2
			tick at=22ms`,
		"matched, and not reachable": `
			offer tid=1
			consumers tid=1 owed=1
			ack peer=1 low=1
			down peer=1
			write-request peer=1 seq=1 tid=1 low=1
			> send-status peer=1 seq=1 tid=1 pairing
			> pair peer=1
			up peer=1
			> post peer=1 seq=1 tid=1
			tick at=30ms
			> send-status peer=1 seq=1 tid=1 writing`,
	} {
		t.Run(name, func(t *testing.T) { play(t, "producer", script) })
	}
}
