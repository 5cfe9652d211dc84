package core

import "testing"

// TestGoodbyeEndsAWriteThatWasHeardOf: whoever says goodbye has no write in progress, so that its last word may get lost
// without leaving blocks in quarantine for ever.
func TestGoodbyeEndsAWriteThatWasHeardOf(t *testing.T) {
	const writing = `
		expect tid=1
		producers tid=1 from=1
		> send-write-request peer=1 seq=1 tid=1
		status peer=1 seq=1 state=writing
		`
	const drained = `
		tick at=2s
		> flush peer=1 seq=1 tid=1
		flushed peer=1 seq=1 tid=1
		`
	for name, script := range map[string]string{
		"under way": writing + `
			bye peer=1
			> send-ack peer=1 seq=1
			> report failed tid=1 because=closing 0/1` + drained + `
			> report reusable tid=1 because=closing 0/1
			= peer 1 low-water 2`,
		"under way, and done after all": writing + `
			bye peer=1
			> send-ack peer=1 seq=1
			> report failed tid=1 because=closing 0/1
			status peer=1 seq=1 state=done
			> drop settled peer=1 seq=1
			> send-ack peer=1 seq=1` + drained + `
			> report reusable tid=1 because=closing 0/1`,
		"given up before": writing + `
			abandon tid=1
			> report failed tid=1 because=stopped 0/1
			> send-cancel peer=1 seq=1 tid=1 because=stopped
			bye peer=1
			> send-ack peer=1 seq=1
			down peer=1` + drained + `
			> report reusable tid=1 because=stopped 0/1
			= peer 1 low-water 2`,
	} {
		t.Run(name, func(t *testing.T) { play(t, "consumer", script) })
	}
}
