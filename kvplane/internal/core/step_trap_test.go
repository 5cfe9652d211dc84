package core

import (
	"testing"
)

// Each of these names a mistake that planes of this kind have made.

func TestTrapCompleteAtTheFirstOfSeveralNotifications(t *testing.T) {
	play(t, "consumer", `
		expect tid=1
		producers tid=1 from=1,2,3,(4)
		> send-write-request peer=1 seq=1 tid=1
		> send-write-request peer=2 seq=1 tid=1
		> send-write-request peer=3 seq=1 tid=1
		> send-write-request peer=4 seq=1 tid=1
		status peer=1 seq=1 state=done
		> send-ack peer=1 seq=1
		status peer=1 seq=1 state=done
		> drop settled peer=1 seq=1
		> send-ack peer=1 seq=1
		# One that only notifies does not stand for a writer.
		status peer=4 seq=1 state=done
		> send-ack peer=4 seq=1
		status peer=2 seq=1 state=done
		> send-ack peer=2 seq=1
		= tid 1 receiving [1 final] [2 final] [3 sent] [4 final], peer 1 low-water 2, peer 2 low-water 2, peer 3 low-water 1, peer 4 low-water 2
		status peer=3 seq=1 state=done
		> send-ack peer=3 seq=1
		> report ready tid=1 3/3`)
}

func TestTrapRegistrationOfARequestThatNeverFinishes(t *testing.T) {
	register := `
		write-request peer=1 seq=1 tid=1 low=1
		> send-status peer=1 seq=1 tid=1 waiting
		`
	for name, script := range map[string]string{
		"aborted or rejected": `
			abandon tid=1
			> send-status peer=1 seq=1 tid=1 not_begun (aborted)
			ack peer=1 low=2
			tick at=61s
			= nothing`,
		"never mentioned again": `
			tick at=5002ms
			> send-status peer=1 seq=1 tid=1 not_begun (no_offer)
			ack peer=1 low=2
			tick at=36s
			= nothing`,
		"never mentioned again, and D does not answer": `
			tick at=5002ms
			> send-status peer=1 seq=1 tid=1 not_begun (no_offer)
			tick at=6s
			> send-status peer=1 seq=1 tid=1 not_begun (no_offer)
			tick at=36s
			= nothing
			# Its number is never begun, however late it comes.
			write-request peer=1 seq=1 tid=1 low=1
			> drop conflict peer=1 seq=1 tid=1
			> send-status peer=1 seq=1 tid=1 not_begun (spent)
			cancel peer=1 seq=1 tid=1 low=1
			> drop conflict peer=1 seq=1 tid=1
			> send-status peer=1 seq=1 tid=1 not_begun (spent)
			heartbeat peer=1 low=1 lines=1:1
			> send-heartbeat-ack peer=1 1:1 not_begun (spent)
			= nothing`,
		"D restarted": `
			gone inc=far
			tick at=36s
			= nothing`,
		"P closes": `
			close
			> send-status peer=1 seq=1 tid=1 not_begun (closing)
			> send-bye peer=1
			ack peer=1 low=2
			tick at=36s
			= nothing`,
	} {
		t.Run(name, func(t *testing.T) { play(t, "producer", register+script) })
	}
	t.Run("P restarted", func(t *testing.T) {
		play(t, "consumer", `
			expect tid=1
			producers tid=1 from=1
			> send-write-request peer=1 seq=1 tid=1
			gone inc=far
			> report failed tid=1 because=superseded 0/1`)
	})
}

func TestTrapRegistrationAfterTheLeaseWaitsForAWatchdog(t *testing.T) {
	play(t, "producer", `
		offer tid=1
		consumers tid=1 owed=1,2
		tick at=30002ms
		> report sent tid=1 because=lease_over 0/2
		write-request peer=1 seq=1 tid=1 low=1
		> send-status peer=1 seq=1 tid=1 not_begun (lease_over)
		cancel peer=2 seq=1 tid=1 low=1
		> send-status peer=2 seq=1 tid=1 not_begun (cancelled)
		# What is remembered of it is forgotten, on both sides of its number.
		ack peer=1 low=2
		tick at=91s
		= nothing`)
}
