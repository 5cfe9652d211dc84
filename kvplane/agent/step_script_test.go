package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func sortedIDs[V any](m map[kvplane.TransferID]V) []kvplane.TransferID {
	return slices.SortedFunc(maps.Keys(m), func(a, b kvplane.TransferID) int { return bytes.Compare(a[:], b[:]) })
}

// parseEvent reads "kind key=value …". Peers are numbers; the peer engine is "far" unless inc says otherwise.
func parseEvent(t *testing.T, line string) event {
	t.Helper()
	words := strings.Fields(line)
	e := event{inc: metadata.Incarnation{Engine: "far", Generation: 1}, msg: &wire.Message{Wait: 5 * time.Second}, at: -1}
	for k, name := range eventNames {
		if name == words[0] {
			e.kind = eventKind(k)
		}
	}
	if e.kind == 0 {
		t.Fatalf("unknown event in %q", line)
	}
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return n
	}
	need := [2]int{0, 8}
	var ticket, hash [16]byte
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "at":
			d, err := time.ParseDuration(value)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			e.at = d
		case "peer":
			e.peer = peerID(number(value))
		case "seq":
			e.seq = number(value)
		case "tid":
			e.id = kvplane.TransferID{byte(number(value))}
		case "floor":
			e.msg.Floor = number(value)
		case "body":
			e.msg.Digest[0] = byte(number(value))
		case "inc":
			e.inc.Engine = value
		case "proof":
			e.proof = true
		case "fenced":
			e.fenced = true
		case "empty":
			need = [2]int{8, 8}
		case "settled":
			e.msg.Settled = append(e.msg.Settled, number(value))
		case "ticket":
			e.msg.Ticket[0] = byte(number(value))
			ticket[0] = e.msg.Ticket[0]
		case "hash":
			e.msg.Hash[0] = byte(number(value))
			hash[0] = e.msg.Hash[0]
		case "lines": // of a beat: seq:tid[:state[:reason]], …
			for _, line := range strings.Split(value, ",") {
				part := strings.Split(line+"::", ":")
				e.msg.Beats = append(e.msg.Beats, wire.Beat{
					Seq: number(part[0]), ID: kvplane.TransferID{byte(number(part[1]))},
					Status: wire.Status{State: stateNamed(part[2]), Reason: reasonNamed(part[3])},
				})
			}
		case "owed":
			for _, p := range strings.Split(value, ",") {
				if p != "" {
					e.owed = append(e.owed, peerID(number(p)))
				}
			}
		case "down":
			e.down = true
		case "from": // peers; one in brackets only notifies, one with a minus cannot be reached
			for _, p := range strings.Split(value, ",") {
				p, down := strings.CutSuffix(p, "-")
				bare := strings.Trim(p, "()")
				e.links = append(e.links, linkTo{peer: peerID(number(bare)), writes: bare == p, down: down})
			}
		case "state":
			e.msg.Status.State = stateNamed(value)
		case "reason":
			e.reason = reasonNamed(value)
			e.msg.Status.Reason = e.reason
		default:
			t.Fatalf("%q: unknown word %q", line, w)
		}
	}
	e.offer, e.expect = &kvplane.Offer{Peer: e.inc, Ticket: ticket, Hash: hash}, &kvplane.Expectation{Need: need}
	return e
}

func stateNamed(name string) wire.State {
	for s := wire.Waiting; s <= wire.Failed; s++ {
		if s.String() == name {
			return s
		}
	}
	return 0
}

func reasonNamed(name string) kvplane.Reason {
	for r := kvplane.Cancelled; int(r) < kvplane.Reasons; r++ {
		if r.String() == name {
			return r
		}
	}
	return 0
}

// stepper is either side of the plane under test.
type stepper struct {
	p   *producer
	c   *consumer
	now time.Duration
}

func newStepper(side string) *stepper {
	s := &stepper{now: time.Millisecond}
	if side == "producer" {
		s.p = newProducer(kvplane.Times{}.WithDefaults())
	} else {
		s.c = newConsumer(kvplane.Times{}.WithDefaults())
	}
	return s
}

func (s *stepper) step(e event) []string {
	if e.at < 0 {
		s.now += time.Microsecond
	} else {
		s.now = e.at
	}
	e.at = s.now
	var out []effect
	if s.p != nil {
		out = s.p.Step(e, nil)
	} else {
		out = s.c.Step(e, nil)
	}
	var lines []string
	for _, x := range out {
		lines = append(lines, effectText(x))
	}
	return lines
}

func effectText(x effect) string {
	b := []string{x.do.String()}
	add := func(ok bool, format string, args ...any) {
		if ok {
			b = append(b, fmt.Sprintf(format, args...))
		}
	}
	add(x.do == doReport, "%s", x.report)
	add(x.do == doDrop, "%s", x.drop)
	add(x.peer > 0, "peer=%d", x.peer)
	add(x.seq > 0, "seq=%d", x.seq)
	add(x.id != kvplane.TransferID{}, "tid=%d", x.id[0])
	add(x.status.State > 0, "%s", x.status.State)
	add(x.status.Reason > 0, "(%s)", x.status.Reason)
	add(x.reason > 0, "because=%s", x.reason)
	add(x.do == doReport, "%d/%d", x.k, x.n)
	for _, l := range x.beats {
		b = append(b, fmt.Sprintf("%d:%d", l.Seq, l.ID[0]))
		add(x.do == doBeatAck, "%s", l.Status.State)
		add(l.Status.Reason > 0, "(%s)", l.Status.Reason)
	}
	return strings.Join(b, " ")
}

// states prints what a side remembers.
func (s *stepper) states() string {
	var b []string
	if s.p != nil {
		for _, id := range sortedIDs(s.p.given) {
			b = append(b, fmt.Sprintf("tid %d %s", id[0], s.p.given[id].state))
		}
		for _, peer := range sortedKeys(s.p.sessions) {
			for _, seq := range sortedKeys(s.p.sessions[peer].regs) {
				b = append(b, fmt.Sprintf("peer %d seq %d %s", peer, seq, s.p.sessions[peer].regs[seq].state))
			}
		}
	} else {
		for _, id := range sortedIDs(s.c.receipts) {
			r := s.c.receipts[id]
			text := fmt.Sprintf("tid %d %s", id[0], r.state)
			for _, l := range r.links {
				text += fmt.Sprintf(" [%d %s]", l.session.peer, l.state)
			}
			b = append(b, text)
		}
		for _, peer := range sortedKeys(s.c.sessions) {
			b = append(b, fmt.Sprintf("peer %d floor %d", peer, s.c.sessions[peer].floor))
		}
	}
	if len(b) == 0 {
		return "= nothing"
	}
	return "= " + strings.Join(b, ", ")
}
