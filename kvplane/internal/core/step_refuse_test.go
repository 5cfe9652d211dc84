package core

import "testing"

// TestRefusedNumberIsNeverBegun: whoever was told not_begun uses its blocks again, so that a late copy of what was
// refused for want of room starts nothing when there is room.
func TestRefusedNumberIsNeverBegun(t *testing.T) {
	const full = `
		write-request peer=1 seq=1 tid=1 low=1
		> send-status peer=1 seq=1 tid=1 waiting
		write-request peer=1 seq=3 tid=3 low=1
		> drop full peer=1 seq=3 tid=3
		> send-status peer=1 seq=3 tid=3 not_begun (full)
		abandon tid=1
		> send-status peer=1 seq=1 tid=1 not_begun (aborted)
		offer tid=3
		consumers tid=3 owed=1
		`
	for name, tc := range map[string]struct {
		bounds Bounds
		script string
	}{
		"a registration": {Bounds{1, 8, 8}, full + `
			write-request peer=1 seq=3 tid=3 low=1
			> drop conflict peer=1 seq=3 tid=3
			> send-status peer=1 seq=3 tid=3 not_begun (spent)
			heartbeat peer=1 low=1 lines=3:3
			> send-heartbeat-ack peer=1 3:3 not_begun (spent)`},
		"one before it, overtaken": {Bounds{1, 8, 8}, full + `
			offer tid=2
			consumers tid=2 owed=1
			write-request peer=1 seq=2 tid=2 low=1
			> drop conflict peer=1 seq=2 tid=2
			> send-status peer=1 seq=2 tid=2 not_begun (spent)`},
		"the next one": {Bounds{1, 8, 8}, full + `
			offer tid=4
			consumers tid=4 owed=1
			write-request peer=1 seq=4 tid=4 low=1
			> post peer=1 seq=4 tid=4`},
		"a cancel that has overtaken it": {Bounds{8, 1, 8}, `
			write-request peer=1 seq=1 tid=1 low=1
			> send-status peer=1 seq=1 tid=1 waiting
			cancel peer=1 seq=2 tid=2 low=1
			> drop full peer=1 seq=2 tid=2
			> send-status peer=1 seq=2 tid=2 not_begun (full)
			tick at=5002ms
			> send-status peer=1 seq=1 tid=1 not_begun (no_offer)
			tick at=80s
			offer tid=2
			consumers tid=2 owed=1
			write-request peer=1 seq=2 tid=2 low=1
			> drop conflict peer=1 seq=2 tid=2
			> send-status peer=1 seq=2 tid=2 not_begun (spent)`},
		"another one of the same transfer": {Bounds{8, 8, 8}, `
			write-request peer=1 seq=1 tid=1 low=1
			> send-status peer=1 seq=1 tid=1 waiting
			write-request peer=1 seq=2 tid=1 low=1
			> drop conflict peer=1 seq=2 tid=1
			> send-status peer=1 seq=2 tid=1 not_begun (conflict)
			tick at=5002ms
			> send-status peer=1 seq=1 tid=1 not_begun (no_offer)
			tick at=80s
			offer tid=1
			consumers tid=1 owed=1
			write-request peer=1 seq=2 tid=1 low=1
			> drop conflict peer=1 seq=2 tid=1
			> send-status peer=1 seq=2 tid=1 not_begun (spent)`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStepper("producer")
			s.p.Bounds = tc.bounds
			s.play(t, tc.script)
		})
	}
}

// TestWriteIsNotDenied: that something was posted under a number outlives all that was kept of it, so that D flushes.
func TestWriteIsNotDenied(t *testing.T) {
	const write = `
		write-request peer=1 seq=1 tid=1 low=1
		> send-status peer=1 seq=1 tid=1 waiting
		offer tid=1
		consumers tid=1 owed=1
		> post peer=1 seq=1 tid=1
		`
	const broken = write + `
		broken peer=1 seq=1 tid=1
		> send-status peer=1 seq=1 tid=1 failed (write_failed)
		> report sent tid=1 because=write_failed 0/1
		`
	const late = `
		= nothing
		cancel peer=1 seq=1 tid=1 low=1
		> drop conflict peer=1 seq=1 tid=1
		> send-status peer=1 seq=1 tid=1 failed (spent)
		write-request peer=1 seq=1 tid=1 low=1
		> drop conflict peer=1 seq=1 tid=1
		> send-status peer=1 seq=1 tid=1 failed (spent)
		heartbeat peer=1 low=1 lines=1:1
		> send-heartbeat-ack peer=1 1:1 failed (spent)
		`
	for name, script := range map[string]string{
		"it failed": broken + `
			tick at=100s` + late,
		"it was done, and D does not know": write + `
			written peer=1 seq=1 tid=1
			> report sent tid=1 1/1
			tick at=100s` + late,
		"it failed, and the agent ends": broken + `
			tick at=100s
			close
			> send-bye peer=1
			cancel peer=1 seq=1 tid=1 low=1
			> drop state peer=1 seq=1 tid=1
			> send-status peer=1 seq=1 tid=1 failed (spent)
			heartbeat peer=1 low=1 lines=1:1
			> send-heartbeat-ack peer=1 1:1 failed (spent)
			write-request peer=1 seq=2 tid=2 low=1
			> drop state peer=1 seq=2 tid=2
			> send-status peer=1 seq=2 tid=2 not_begun (closing)`,
		"the table is full": broken + `
			offer tid=2
			write-request peer=2 seq=1 tid=3 low=1
			> send-status peer=2 seq=1 tid=3 waiting
			= tid 2 held, tid 3 early, peer 2 seq 1 waiting
			heartbeat peer=1 low=1 lines=1:1
			> send-heartbeat-ack peer=1 1:1 failed (spent)
			cancel peer=1 seq=1 tid=1 low=1
			> drop conflict peer=1 seq=1 tid=1
			> send-status peer=1 seq=1 tid=1 failed (spent)
			# One after it never was.
			heartbeat peer=1 low=1 lines=2:7
			> send-heartbeat-ack peer=1 2:7 none`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStepper("producer")
			s.p.Bounds = Bounds{2, 2, 2}
			s.play(t, script)
		})
	}
}
