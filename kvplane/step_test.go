package kvplane

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
)

var update = flag.Bool("update", false, "rewrite testdata/step")

// parseEvent reads "kind key=value …". Peers are numbers; the peer engine is "far" unless inc says otherwise.
func parseEvent(t *testing.T, line string) event {
	t.Helper()
	words := strings.Fields(line)
	e := event{inc: metadata.Incarnation{Engine: "far", Generation: 1}, msg: &message{wait: 5 * time.Second}, at: -1}
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
			e.id = TransferID{byte(number(value))}
		case "floor":
			e.msg.floor = number(value)
		case "body":
			e.msg.digest[0] = byte(number(value))
		case "inc":
			e.inc.Engine = value
		case "proof":
			e.proof = true
		case "fenced":
			e.fenced = true
		case "empty":
			need = [2]int{8, 8}
		case "settled":
			e.msg.settled = append(e.msg.settled, number(value))
		case "owed":
			for _, p := range strings.Split(value, ",") {
				if p != "" {
					e.owed = append(e.owed, peerID(number(p)))
				}
			}
		case "from": // peers; one in brackets only notifies
			for _, p := range strings.Split(value, ",") {
				bare := strings.Trim(p, "()")
				e.links = append(e.links, linkTo{peer: peerID(number(bare)), writes: bare == p})
			}
		case "state":
			for s := statusWaiting; s <= statusFailed; s++ {
				if s.String() == value {
					e.msg.status.state = s
				}
			}
		case "reason":
			for r, name := range reasonNames {
				if name == value {
					e.msg.status.reason, e.reason = Reason(r), Reason(r)
				}
			}
		default:
			t.Fatalf("%q: unknown word %q", line, w)
		}
	}
	e.offer, e.expect = &Offer{Peer: e.inc}, &Expectation{Need: need}
	return e
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
		s.p = newProducer(Times{}.withDefaults())
	} else {
		s.c = newConsumer(Times{}.withDefaults())
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
	add(x.id != TransferID{}, "tid=%d", x.id[0])
	add(x.status.state > 0, "%s", x.status.state)
	add(x.status.reason > 0, "(%s)", x.status.reason)
	add(x.reason > 0, "because=%s", x.reason)
	add(x.do == doReport || x.do == doCount, "%d/%d", x.k, x.n)
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

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, string(want)); diff != "" {
		t.Errorf("%s differs (-got +want):\n%s", path, diff)
	}
}

// TestStepScripts plays testdata/step/*.txt: a first line naming the side, then events, each followed by ----, its
// effects and what is remembered after it.
func TestStepScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/step/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			var s *stepper
			skip := false
			for line := range strings.Lines(string(raw)) {
				line = strings.TrimSuffix(line, "\n")
				switch {
				case line == "producer" || line == "consumer":
					s = newStepper(line)
				case line == "----":
					skip = true
					continue
				case line == "":
					skip = false
				case strings.HasPrefix(line, "#"):
				case skip:
					continue
				default:
					fmt.Fprintf(&out, "%s\n----\n", line)
					for _, x := range s.step(parseEvent(t, line)) {
						fmt.Fprintln(&out, x)
					}
					fmt.Fprintln(&out, s.states())
					continue
				}
				fmt.Fprintln(&out, line)
			}
			golden(t, path, out.String())
		})
	}
}

// TestStepMatrix meets every state with every event. A pair without a row in docs/kvplane.md shows a drop, or nothing,
// and the state as it was.
func TestStepMatrix(t *testing.T) {
	for _, m := range []struct {
		file   string
		side   string
		states [][2]string // name, events that lead there separated by ;
		events []string
	}{
		{"producer.matrix", "producer", [][2]string{
			{"none", ""},
			{"early waiting", "register peer=1 seq=1 tid=1 floor=1"},
			{"early cancelled", "cancel peer=1 seq=1 tid=1 floor=1"},
			{"held nobody came", "offer tid=1; consumers tid=1 owed=1,2"},
			{"held owed unknown", "register peer=1 seq=1 tid=1 floor=1; offer tid=1"},
			{"held pairing", "register peer=1 seq=1 tid=1 floor=1; down peer=1; offer tid=1; consumers tid=1 owed=1,2"},
			{"held writing", "register peer=1 seq=1 tid=1 floor=1; offer tid=1; consumers tid=1 owed=1,2"},
			{"held one done", "register peer=1 seq=1 tid=1 floor=1; offer tid=1; consumers tid=1 owed=1,2; written peer=1 seq=1 tid=1"},
			{"draining", "register peer=1 seq=1 tid=1 floor=1; offer tid=1; consumers tid=1 owed=1,2; cancel peer=2 seq=1 tid=1 floor=1"},
			{"spent sent", "register peer=1 seq=1 tid=1 floor=1; offer tid=1; consumers tid=1 owed=1; written peer=1 seq=1 tid=1"},
			{"spent dead", "register peer=1 seq=1 tid=1 floor=1; abandon tid=1"},
		}, []string{
			"register peer=1 seq=1 tid=1 floor=1", "register peer=1 seq=1 tid=1 floor=1 body=9", "register peer=1 seq=2 tid=1 floor=1",
			"register peer=1 seq=1 tid=1 floor=2", "register peer=2 seq=1 tid=1 floor=1", "register peer=3 seq=1 tid=1 floor=1 inc=other",
			"cancel peer=1 seq=1 tid=1 floor=1", "cancel peer=2 seq=1 tid=1 floor=1", "floor peer=1 floor=2", "floor peer=1 floor=1 settled=1",
			"offer tid=1", "consumers tid=1 owed=1,2", "consumers tid=1 owed=", "unpaired tid=1 reason=handshake", "abandon tid=1",
			"refused peer=1 seq=1 tid=1 reason=short", "nothing peer=1 seq=1 tid=1", "written peer=1 seq=1 tid=1", "broken peer=1 seq=1 tid=1",
			"up peer=1", "down peer=1", "unreachable peer=1", "gone inc=far", "gone inc=other", "tick", "tick at=30ms", "tick at=6s", "tick at=31s", "tick at=200s",
			"expect tid=1", "status peer=1 seq=1 state=done",
		}},
		{"consumer.matrix", "consumer", [][2]string{
			{"none", ""},
			{"given up before", "abandon tid=1"},
			{"pairing", "expect tid=1"},
			{"collect sent", "expect tid=1; producers tid=1 from=1,2"},
			{"collect acked", "expect tid=1; producers tid=1 from=1,2; status peer=1 seq=1 state=waiting"},
			{"collect one done", "expect tid=1; producers tid=1 from=1,2; status peer=1 seq=1 state=done"},
			{"collect lost", "expect tid=1; producers tid=1 from=1,2; down peer=1"},
			{"ready", "expect tid=1; producers tid=1 from=1; status peer=1 seq=1 state=done"},
			{"ready, one only notifies", "expect tid=1; producers tid=1 from=1,(2); status peer=1 seq=1 state=done"},
			{"ready, nothing needed", "expect tid=1 empty; producers tid=1 from=1,2"},
			{"stop cancelled", "expect tid=1; producers tid=1 from=1,2; abandon tid=1"},
			{"stop one failed", "expect tid=1; producers tid=1 from=1,2; status peer=1 seq=1 state=failed reason=write_failed"},
			{"stop lost", "expect tid=1; producers tid=1 from=1,2; abandon tid=1; down peer=1"},
			{"stop, one void", "expect tid=1; producers tid=1 from=1; gone inc=far"},
			{"collect, barred", "expect tid=1; producers tid=1 from=1; abandon tid=1; fenced peer=1; expect tid=2; producers tid=2 from=1,2"},
			{"collect, barred and lost", "expect tid=1; producers tid=1 from=1; down peer=1; abandon tid=1; fenced peer=1; expect tid=2; producers tid=2 from=1,2"},
			{"stop, one fenced", "expect tid=1; producers tid=1 from=1,2; abandon tid=1; fenced peer=1"},
			{"safe, all fenced", "expect tid=1; producers tid=1 from=1; abandon tid=1; fenced peer=1"},
			{"safe, fenced and lost", "expect tid=1; producers tid=1 from=1; abandon tid=1; fenced peer=1; down peer=1"},
			{"safe", "expect tid=1; producers tid=1 from=1; abandon tid=1; status peer=1 seq=1 state=not_begun reason=cancelled"},
		}, []string{
			"expect tid=1", "producers tid=1 from=1,2", "unpaired tid=1 reason=handshake", "abandon tid=1",
			"status peer=1 seq=1 state=waiting", "status peer=1 seq=1 state=writing", "status peer=1 seq=1 state=done",
			"status peer=1 seq=1 state=not_begun reason=short", "status peer=1 seq=1 state=failed reason=write_failed",
			"status peer=2 seq=1 state=done", "status peer=2 seq=1 state=not_begun reason=cancelled",
			"status peer=1 seq=7 state=done", "status peer=9 seq=1 state=done",
			"drained peer=1 seq=1 tid=1", "drained peer=2 seq=1 tid=1", "up peer=1", "down peer=1", "unreachable peer=1",
			"fenced peer=1", "fenced peer=9", "gone inc=far", "gone inc=far proof", "gone inc=far fenced", "gone inc=other", "tick", "tick at=30ms", "tick at=2s", "tick at=31s", "tick at=200s",
			"offer tid=1", "register peer=1 seq=1 tid=1",
		}},
	} {
		t.Run(m.side, func(t *testing.T) {
			var out strings.Builder
			for _, st := range m.states {
				lead := func() *stepper {
					s := newStepper(m.side)
					for _, e := range strings.Split(st[1], ";") {
						if e = strings.TrimSpace(e); e != "" {
							s.step(parseEvent(t, e))
						}
					}
					return s
				}
				fmt.Fprintf(&out, "## %s\n%s\n", st[0], lead().states())
				for _, e := range m.events {
					s := lead()
					before := s.states()
					effects := s.step(parseEvent(t, e))
					fmt.Fprintf(&out, "%s\n", e)
					for _, x := range effects {
						fmt.Fprintf(&out, "    %s\n", x)
					}
					if after := s.states(); after != before {
						fmt.Fprintf(&out, "    %s\n", after)
					}
				}
			}
			golden(t, filepath.Join("testdata/step", m.file), out.String())
		})
	}
}
