package core

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
func parseEvent(t *testing.T, line string) Event {
	t.Helper()
	words := strings.Fields(line)
	e := Event{Inc: metadata.Incarnation{Engine: "far", Generation: 1}, Msg: &wire.Message{Wait: 5 * time.Second}, At: -1}
	for k, name := range eventNames {
		if name == words[0] {
			e.Kind = EventKind(k)
		}
	}
	if e.Kind == 0 {
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
			e.At = d
		case "peer":
			e.Peer = PeerID(number(value))
		case "seq":
			e.Seq = number(value)
		case "tid":
			e.ID = kvplane.TransferID{byte(number(value))}
		case "low":
			e.Msg.LowWater = number(value)
		case "body":
			e.Msg.Digest[0] = byte(number(value))
		case "inc":
			e.Inc.Engine = value
		case "proof":
			e.Proof = true
		case "fenced":
			e.Fenced = true
		case "empty":
			need = [2]int{8, 8}
		case "settled":
			e.Msg.Settled = append(e.Msg.Settled, number(value))
		case "ticket":
			e.Msg.Ticket[0] = byte(number(value))
			ticket[0] = e.Msg.Ticket[0]
		case "hash":
			e.Msg.Hash[0] = byte(number(value))
			hash[0] = e.Msg.Hash[0]
		case "lines": // of a beat: seq:tid[:state[:reason]], …
			for _, line := range strings.Split(value, ",") {
				part := strings.Split(line+"::", ":")
				e.Msg.Lines = append(e.Msg.Lines, wire.HeartbeatLine{
					Seq: number(part[0]), ID: kvplane.TransferID{byte(number(part[1]))},
					Status: wire.Status{State: stateNamed(part[2]), Reason: reasonNamed(part[3])},
				})
			}
		case "owed":
			for _, p := range strings.Split(value, ",") {
				if p != "" {
					e.Owed = append(e.Owed, PeerID(number(p)))
				}
			}
		case "down":
			e.Down = true
		case "from": // peers; one in brackets only notifies, one with a minus cannot be reached
			for _, p := range strings.Split(value, ",") {
				p, down := strings.CutSuffix(p, "-")
				bare := strings.Trim(p, "()")
				e.Links = append(e.Links, Link{Peer: PeerID(number(bare)), Writes: bare == p, Down: down})
			}
		case "state":
			e.Msg.Status.State = stateNamed(value)
		case "reason":
			e.Reason = reasonNamed(value)
			e.Msg.Status.Reason = e.Reason
		default:
			t.Fatalf("%q: unknown word %q", line, w)
		}
	}
	e.Offer, e.Expect = &kvplane.Offer{Peer: e.Inc, Ticket: ticket, Hash: hash}, &kvplane.Expectation{Need: need}
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
	p   *Producer
	c   *Consumer
	now time.Duration
}

func newStepper(side string) *stepper {
	s := &stepper{now: time.Millisecond}
	if side == "producer" {
		s.p = NewProducer(kvplane.Times{}.WithDefaults())
	} else {
		s.c = NewConsumer(kvplane.Times{}.WithDefaults())
	}
	return s
}

func (s *stepper) step(e Event) []string {
	if e.At < 0 {
		s.now += time.Microsecond
	} else {
		s.now = e.At
	}
	e.At = s.now
	var out []Effect
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

func effectText(x Effect) string {
	b := []string{x.Do.String()}
	add := func(ok bool, format string, args ...any) {
		if ok {
			b = append(b, fmt.Sprintf(format, args...))
		}
	}
	add(x.Do == DoReport, "%s", x.Report)
	add(x.Do == DoDrop, "%s", x.Drop)
	add(x.Peer > 0, "peer=%d", x.Peer)
	add(x.Seq > 0, "seq=%d", x.Seq)
	add(x.ID != kvplane.TransferID{}, "tid=%d", x.ID[0])
	add(x.Status.State > 0, "%s", x.Status.State)
	add(x.Status.Reason > 0, "(%s)", x.Status.Reason)
	add(x.Reason > 0, "because=%s", x.Reason)
	add(x.Do == DoReport, "%d/%d", x.K, x.N)
	for _, l := range x.Lines {
		b = append(b, fmt.Sprintf("%d:%d", l.Seq, l.ID[0]))
		add(x.Do == DoHeartbeatAck, "%s", l.Status.State)
		add(l.Status.Reason > 0, "(%s)", l.Status.Reason)
	}
	return strings.Join(b, " ")
}

// states prints what a side remembers.
func (s *stepper) states() string {
	var b []string
	if s.p != nil {
		for _, id := range sortedIDs(s.p.Outgoing) {
			b = append(b, fmt.Sprintf("tid %d %s", id[0], s.p.Outgoing[id].State))
		}
		for _, peer := range sortedKeys(s.p.Sessions) {
			for _, seq := range sortedKeys(s.p.Sessions[peer].Requests) {
				b = append(b, fmt.Sprintf("peer %d seq %d %s", peer, seq, s.p.Sessions[peer].Requests[seq].State))
			}
		}
	} else {
		for _, id := range sortedIDs(s.c.Incoming) {
			r := s.c.Incoming[id]
			text := fmt.Sprintf("tid %d %s", id[0], r.State)
			for _, l := range r.Producers {
				text += fmt.Sprintf(" [%d %s]", l.Session.Peer, l.Phase)
			}
			b = append(b, text)
		}
		for _, peer := range sortedKeys(s.c.Sessions) {
			b = append(b, fmt.Sprintf("peer %d low-water %d", peer, s.c.Sessions[peer].LowWater))
		}
	}
	if len(b) == 0 {
		return "= nothing"
	}
	return "= " + strings.Join(b, ", ")
}
