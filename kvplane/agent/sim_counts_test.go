package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
)

// simCounts says how often everything was reached, over many seeds.
type simCounts struct {
	seeds, events int
	faults        [simFaults]int
	ends          map[string]int
}

func newSimCounts() *simCounts { return &simCounts{ends: map[string]int{}} }

func (c *simCounts) reach(what string) { c.ends[what]++ }

// add takes another's counts in.
func (c *simCounts) add(o *simCounts) {
	c.seeds, c.events = c.seeds+o.seeds, c.events+o.events
	for f := range c.faults {
		c.faults[f] += o.faults[f]
	}
	for what, n := range o.ends {
		c.ends[what] += n
	}
}

// simWanted is what a long run must reach beside every fault.
var simWanted = [...]string{
	"released", "freed", "closed", "ready: ", "closed in order", "restarted", "two generations at once", "client left",
	"answer: ok", "answer: failed", "answer: left", "dispatched twice: refused",
	"fence", "admitted", "write refused by a fence", "proof by the kernel", "proof by a supervisor",
	"write failed", "landed after its failure was reported", "landed after its handle was given up", "landed after its writer's death",
	"failed: no_offer", "failed: aborted", "failed: handshake", "failed: lease_over", "failed: sibling", "failed: spent",
	"failed: stranger", "failed: short", "failed: write_failed", "failed: submit_failed", "failed: deadline",
	"failed: peer_gone", "failed: superseded", "failed: stopped", "failed: closing", "failed: ticket", "failed: tokens",
	"failed: full", "failed: unplannable", "sent: unplannable", "an unfit pair was refused", "number refused as full", "repeat of a refused number",
	"posted by places", "prepared too late", "forged message refused", "given up for its silence",
	"reusable: stopped", "reusable: write_failed", "reusable: superseded", "reusable: peer_gone", "reusable: deadline",
	"sent: ", "sent: cancelled", "sent: aborted", "sent: handshake", "sent: lease_over", "sent: short", "sent: submit_failed",
	"sent: write_failed", "sent: superseded", "sent: closing", "sent: ticket", "sent: tokens",
	"stale answer ignored", "restarted for what was lost",
	"made reusable by status", "made reusable by flushed", "made reusable by flushed after a proof", "made reusable by fenced", "made reusable by gone",
}

// missing lists what was not reached.
func (c *simCounts) missing() []string {
	var out []string
	for f, n := range c.faults {
		if n == 0 && simFault(f) != faultUnused {
			out = append(out, "fault "+simFault(f).String())
		}
	}
	for _, what := range simWanted {
		if c.ends[what] == 0 {
			out = append(out, what)
		}
	}
	return out
}

func (c *simCounts) String() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "seeds %d, events %d\n", c.seeds, c.events)
	for f, n := range c.faults {
		fmt.Fprintf(b, "%9d fault %s\n", n, simFault(f))
	}
	for _, what := range slices.Sorted(maps.Keys(c.ends)) {
		fmt.Fprintf(b, "%9d %s\n", c.ends[what], strings.TrimSuffix(what, ": "))
	}
	return b.String()
}

// watched counts by what failed transfers become safe.
func (n *simNode) watched(real applier) applier {
	return func(q delivery, out []core.Effect) []core.Effect {
		if q.producer {
			out = real(q, out)
			n.checkPaired(out)
			return out
		}
		how := "made reusable by " + q.event.Kind.String()
		if s := n.owner.consumer.Sessions[q.event.Peer]; q.event.Kind == core.EvFlushed && s != nil && s.ProvenDead {
			how += " after a proof"
		}
		out = real(q, out)
		n.checkPaired(out)
		for i := range out {
			if out[i].Do == core.DoReport && out[i].Report == kvplane.Reusable {
				n.s.counts.reach(how)
			}
		}
		return out
	}
}

func simStack() string { return string(debug.Stack()) }

// simLog writes an owner's log into the trace.
type simLog struct{ n *simNode }

func (l *simLog) Write(p []byte) (int, error) {
	l.n.s.note("  %s", strings.TrimSpace(string(p)))
	return len(p), nil
}

func simLogAttr(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
		return slog.Attr{}
	}
	return a
}

// simTail is the end of a trace.
func simTail(history []string, lines int) string {
	return strings.Join(history[max(0, len(history)-lines):], "\n")
}

// simLook is how often a long run says where it is.
const simLook = 10 * time.Second
