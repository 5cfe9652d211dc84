package core

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

// play gives one side the events of a script, one to a line; lines that begin with > are the effects that it must
// have, those with = what is remembered after it. It returns the side.
func play(t *testing.T, side, text string) *stepper {
	t.Helper()
	s := newStepper(side)
	s.play(t, text)
	return s
}

func (s *stepper) play(t *testing.T, text string) {
	t.Helper()
	var got, want []string
	last := ""
	check := func() {
		t.Helper()
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("%s has other effects (-got +want):\n%s", last, diff)
		}
		got, want = nil, nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch effect, is := strings.CutPrefix(line, "> "); {
		case line == "" || strings.HasPrefix(line, "#"):
		case is:
			want = append(want, effect)
		case strings.HasPrefix(line, "="):
			if got := s.states(); got != line {
				t.Errorf("after %s: %s; want %s", last, got, line)
			}
		default:
			check()
			last = line
			got = s.step(parseEvent(t, line))
		}
	}
	check()
}

// The rows of the table of faults that concern the plane, as scripts of one side each. What they have in common: no
// report is ready where a writer has not said done.

func TestFault54ProducerDiesOrItsWriteFails(t *testing.T) {
	t.Run("write error", func(t *testing.T) {
		play(t, "consumer", `
			expect tid=1
			producers tid=1 from=1,2
			> send-write-request peer=1 seq=1 tid=1
			> send-write-request peer=2 seq=1 tid=1
			status peer=1 seq=1 state=writing
			status peer=1 seq=1 state=failed reason=write_failed at=100ms
			> send-ack peer=1 seq=1
			> report failed tid=1 because=write_failed 0/2
			> send-cancel peer=2 seq=1 tid=1 because=write_failed
			status peer=2 seq=1 state=not_begun reason=cancelled
			> send-ack peer=2 seq=1
			# What it had sent may land for the net delay.
			tick at=1s
			tick at=1101ms
			> flush peer=1 seq=1 tid=1
			flushed peer=1 seq=1 tid=1
			> report reusable tid=1 because=write_failed 0/2
			= peer 1 low-water 2, peer 2 low-water 2`)
		play(t, "producer", `
			write-request peer=1 seq=1 tid=1 low=1
			> send-status peer=1 seq=1 tid=1 waiting
			offer tid=1
			consumers tid=1 owed=1,2
			> post peer=1 seq=1 tid=1
			broken peer=1 seq=1 tid=1
			> send-status peer=1 seq=1 tid=1 failed (write_failed)
			> report sent tid=1 because=write_failed 0/2
			# The other consumer of the same transfer is told at once, and nothing is posted twice.
			write-request peer=2 seq=1 tid=1 low=1
			> send-status peer=2 seq=1 tid=1 not_begun (sibling)
			write-request peer=1 seq=1 tid=1 low=1
			> drop repeat peer=1 seq=1 tid=1
			> send-status peer=1 seq=1 tid=1 failed (write_failed)`)
	})
	t.Run("dies after the registration", func(t *testing.T) {
		play(t, "consumer", `
			expect tid=1
			producers tid=1 from=1
			> send-write-request peer=1 seq=1 tid=1
			status peer=1 seq=1 state=writing
			down peer=1 at=2s
			> pair peer=1
			tick at=3001ms
			> report failed tid=1 because=peer_gone 0/1
			> fence peer=1
			# Silence for an hour is no proof; where the transport cannot fence, the blocks stay.
			tick at=1h
			gone inc=far proof
			> send-ack peer=1 seq=1
			tick at=3602s
			> flush peer=1 seq=1 tid=1
			flushed peer=1 seq=1 tid=1
			> report reusable tid=1 because=peer_gone 0/1
			= nothing`)
	})
	t.Run("falls silent", func(t *testing.T) {
		play(t, "consumer", `
			expect tid=1
			producers tid=1 from=1
			> send-write-request peer=1 seq=1 tid=1
			status peer=1 seq=1 state=waiting
			# A long prefill is no fault: its agent answers.
			tick at=5002ms
			> send-heartbeat peer=1 1:1
			heartbeat-ack peer=1
			tick at=6002ms
			tick at=10002ms
			> send-heartbeat peer=1 1:1
			tick at=11002ms
			> send-heartbeat peer=1 1:1
			tick at=12002ms
			> send-heartbeat peer=1 1:1
			tick at=13002ms
			> send-heartbeat peer=1 1:1
			tick at=14002ms
			> report failed tid=1 because=peer_gone 0/1
			> send-cancel peer=1 seq=1 tid=1 because=peer_gone
			> send-heartbeat peer=1 1:0
			tick at=15002ms
			> send-cancel peer=1 seq=1 tid=1 because=peer_gone
			> fence peer=1
			> send-heartbeat peer=1 1:0`)
	})
}

func TestFault54AStoppedConsumerBlamesNobody(t *testing.T) {
	play(t, "consumer", `
		expect tid=1
		producers tid=1 from=1
		> send-write-request peer=1 seq=1 tid=1
		status peer=1 seq=1 state=waiting
		tick at=5002ms
		> send-heartbeat peer=1 1:1
		# D itself stands still for 15 s; the answer lies in its inbox.
		tick at=20s
		> send-heartbeat peer=1 1:1
		heartbeat-ack peer=1
		tick at=21s
		tick at=24s
		= tid 1 receiving [1 acked], peer 1 low-water 1`)
}

func TestFault55LeaseExpiresWhileQueued(t *testing.T) {
	t.Run("it expires", func(t *testing.T) {
		play(t, "producer", `
			offer tid=1
			consumers tid=1 owed=1
			tick at=31s
			> report sent tid=1 because=lease_over 0/1
			# Whoever comes now is told why, at once.
			heartbeat peer=1 low=1 lines=0:1
			> send-heartbeat-ack peer=1 0:1 not_begun (lease_over)
			write-request peer=1 seq=1 tid=1 low=1
			> send-status peer=1 seq=1 tid=1 not_begun (lease_over)`)
		play(t, "consumer", `
			queue tid=1
			producers tid=1 from=1,2
			tick at=30ms
			> send-heartbeat peer=1 0:1
			> send-heartbeat peer=2 0:1
			heartbeat-ack peer=1 lines=0:1:not_begun:lease_over
			> report failed tid=1 because=lease_over 0/0
			> report reusable tid=1 because=lease_over 0/0
			# An expectation that crosses the news registers nothing.
			expect tid=1
			> report failed tid=1 because=lease_over 0/0
			> report reusable tid=1 because=lease_over 0/0`)
	})
	t.Run("it expires while the registration pairs", func(t *testing.T) {
		play(t, "producer", `
			write-request peer=1 seq=1 tid=1 low=1
			> send-status peer=1 seq=1 tid=1 waiting
			down peer=1
			offer tid=1
			consumers tid=1 owed=1
			> send-status peer=1 seq=1 tid=1 pairing
			> pair peer=1
			tick at=31s
			> send-status peer=1 seq=1 tid=1 not_begun (lease_over)
			> report sent tid=1 because=lease_over 0/1`)
	})
	t.Run("beats keep it", func(t *testing.T) {
		play(t, "producer", `
			offer tid=1 at=1s
			consumers tid=1 owed=1
			heartbeat peer=1 low=1 lines=0:1 at=25s
			> send-heartbeat-ack peer=1
			# An earlier end is not brought forward, a stranger's beat keeps nothing.
			heartbeat peer=9 low=1 lines=0:1 inc=other at=44s
			> send-heartbeat-ack peer=9
			tick at=44900ms
			= tid 1 held
			write-request peer=1 seq=1 tid=1 low=1
			> post peer=1 seq=1 tid=1
			written peer=1 seq=1 tid=1
			> report sent tid=1 1/1`)
		play(t, "producer", `
			offer tid=1 at=1s
			consumers tid=1 owed=1
			heartbeat peer=1 low=1 lines=0:1 at=25s
			> send-heartbeat-ack peer=1
			tick at=45001ms
			> report sent tid=1 because=lease_over 0/1`)
	})
}

func TestFault56CompletionsThatDoNotCount(t *testing.T) {
	play(t, "consumer", `
		expect tid=1
		producers tid=1 from=1,2,3
		> send-write-request peer=1 seq=1 tid=1
		> send-write-request peer=2 seq=1 tid=1
		> send-write-request peer=3 seq=1 tid=1
		status peer=1 seq=1 state=done
		> send-ack peer=1 seq=1
		# Twice, and then in contradiction to itself: the first final word stands.
		status peer=1 seq=1 state=done
		> drop settled peer=1 seq=1
		> send-ack peer=1 seq=1
		status peer=1 seq=1 state=failed reason=write_failed
		> drop conflict peer=1 seq=1
		> send-ack peer=1 seq=1
		# A number that was never given, an agent that was never asked.
		status peer=1 seq=9 state=done
		> drop stranger peer=1 seq=9
		status peer=7 seq=1 state=done
		> drop stranger peer=7 seq=1
		# An agent cannot speak for another one: its own number is all that it has.
		status peer=2 seq=1 state=done
		> send-ack peer=2 seq=1
		status peer=2 seq=2 state=done
		> drop stranger peer=2 seq=2
		status peer=3 seq=1 state=done
		> send-ack peer=3 seq=1
		> report ready tid=1 3/3
		# Late.
		status peer=3 seq=1 state=done
		> drop settled peer=3 seq=1
		> send-ack peer=3 seq=1
		heartbeat-ack peer=3 lines=1:1:done
		> drop repeat peer=3 seq=1
		= peer 1 low-water 2, peer 2 low-water 2, peer 3 low-water 2`)
	play(t, "producer", `
		write-request peer=1 seq=1 tid=1 low=1
		> send-status peer=1 seq=1 tid=1 waiting
		offer tid=1
		consumers tid=1 owed=1,2
		> post peer=1 seq=1 tid=1
		written peer=1 seq=1 tid=1
		written peer=1 seq=1 tid=1
		> drop unknown peer=1 seq=1 tid=1
		written peer=2 seq=1 tid=1
		> drop unknown peer=2 seq=1 tid=1
		= tid 1 held, peer 1 seq 1 ended`)
}

func TestFault57OneRankNeverCompletes(t *testing.T) {
	whole := `
		expect tid=1
		producers tid=1 from=1,2
		> send-write-request peer=1 seq=1 tid=1
		> send-write-request peer=2 seq=1 tid=1
		status peer=1 seq=1 state=done
		> send-ack peer=1 seq=1
		`
	play(t, "consumer", whole+`
		status peer=2 seq=1 state=writing at=1s
		# Its agent lives and answers, so that only the deadline can end it.
		tick at=5002ms
		> send-heartbeat peer=2 1:1
		heartbeat-ack peer=2
		tick at=10002ms
		> send-heartbeat peer=2 1:1
		heartbeat-ack peer=2 lines=1:1:writing
		tick at=11001ms
		> report failed tid=1 because=deadline 1/2
		> send-cancel peer=2 seq=1 tid=1 because=deadline
		# It completes after all: too late for decode, and the blocks are free.
		status peer=2 seq=1 state=done
		> send-ack peer=2 seq=1
		> report reusable tid=1 because=deadline 2/2
		= peer 1 low-water 2, peer 2 low-water 2`)
	// The engine: one rank is ready, the other is not; decode is never released, and all ranks are told.
	ranks := []metadata.Rank{{TP: 0}, {TP: 1}}
	a := sched.NewRankBarrier(ranks)
	for i, want := range []sched.EngineOutcome{sched.Nothing, sched.Failed, sched.Closed} {
		r := kvplane.Report{ID: kvplane.TransferID{1}, Rank: ranks[min(i, 1)], Kind: []kvplane.ReportKind{kvplane.Ready, kvplane.Failed, kvplane.Reusable}[i]}
		if got := a.Step(r); got != want {
			t.Errorf("%s of rank %s: verdict %s; want %s", r.Kind, r.Rank, got, want)
		}
	}
	play(t, "consumer", whole+`
		abandon tid=1
		> report failed tid=1 because=stopped 1/2
		> send-cancel peer=2 seq=1 tid=1 because=stopped`)
}
