package core

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/internal/golden"
)

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
			golden.Equal(t, path, out.String())
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
			{"early waiting", "write-request peer=1 seq=1 tid=1 low=1"},
			{"early cancelled", "cancel peer=1 seq=1 tid=1 low=1"},
			{"held nobody came", "offer tid=1; consumers tid=1 owed=1,2"},
			{"held owed unknown", "write-request peer=1 seq=1 tid=1 low=1; offer tid=1"},
			{"held pairing", "write-request peer=1 seq=1 tid=1 low=1; down peer=1; offer tid=1; consumers tid=1 owed=1,2"},
			{"held writing", "write-request peer=1 seq=1 tid=1 low=1; offer tid=1; consumers tid=1 owed=1,2"},
			{"held one done", "write-request peer=1 seq=1 tid=1 low=1; offer tid=1; consumers tid=1 owed=1,2; written peer=1 seq=1 tid=1"},
			{"draining", "write-request peer=1 seq=1 tid=1 low=1; offer tid=1; consumers tid=1 owed=1,2; cancel peer=2 seq=1 tid=1 low=1"},
			{"tombstone sent", "write-request peer=1 seq=1 tid=1 low=1; offer tid=1; consumers tid=1 owed=1; written peer=1 seq=1 tid=1"},
			{"tombstone dead", "write-request peer=1 seq=1 tid=1 low=1; abandon tid=1"},
			{"tombstone, the lease is over", "offer tid=1; consumers tid=1 owed=1,2; tick at=31s"},
			{"closing, one is written", "write-request peer=1 seq=1 tid=1 low=1; offer tid=1; consumers tid=1 owed=1,2; close"},
		}, []string{
			"write-request peer=1 seq=1 tid=1 low=1", "write-request peer=1 seq=1 tid=1 low=1 body=9", "write-request peer=1 seq=2 tid=1 low=1",
			"write-request peer=1 seq=1 tid=1 low=2", "write-request peer=2 seq=1 tid=1 low=1", "write-request peer=3 seq=1 tid=1 low=1 inc=other",
			"cancel peer=1 seq=1 tid=1 low=1", "cancel peer=2 seq=1 tid=1 low=1", "ack peer=1 low=2", "ack peer=1 low=1 settled=1",
			"offer tid=1", "consumers tid=1 owed=1,2", "consumers tid=1 owed=", "unpaired tid=1 reason=handshake", "abandon tid=1",
			"refused peer=1 seq=1 tid=1 reason=short", "nothing peer=1 seq=1 tid=1", "written peer=1 seq=1 tid=1", "broken peer=1 seq=1 tid=1",
			"up peer=1", "down peer=1", "unreachable peer=1", "gone inc=far", "gone inc=other", "tick", "tick at=30ms", "tick at=6s", "tick at=31s", "tick at=200s",
			"expect tid=1", "status peer=1 seq=1 state=done",
			"heartbeat peer=1 low=1 lines=1:1", "heartbeat peer=1 low=1 lines=1:2", "heartbeat peer=1 low=1 lines=7:1", "heartbeat peer=1 low=2 lines=1:1",
			"heartbeat peer=1 low=1 lines=0:1", "heartbeat peer=9 low=1 lines=0:1,0:2 inc=other", "heartbeat peer=1 low=1", "close", "queue tid=1", "heartbeat-ack peer=1", "bye peer=1",
			"write-request peer=1 seq=1 tid=1 low=1 ticket=3 hash=4", "offer tid=1 ticket=5 hash=6",
		}},
		{"consumer.matrix", "consumer", [][2]string{
			{"none", ""},
			{"given up before", "abandon tid=1"},
			{"queued", "queue tid=1"},
			{"queued, producers known", "queue tid=1; producers tid=1 from=1,2"},
			{"queued and given up", "queue tid=1; producers tid=1 from=1,2; abandon tid=1"},
			{"queued and expired", "queue tid=1; producers tid=1 from=1,2; heartbeat-ack peer=1 lines=0:1:not_begun:lease_over"},
			{"pairing", "expect tid=1"},
			{"pairing and given up", "expect tid=1; abandon tid=1"},
			{"receiving, never sent", "queue tid=9; producers tid=9 from=1; down peer=1; expect tid=1; producers tid=1 from=1,2"},
			{"receiving writing", "expect tid=1; producers tid=1 from=1,2; status peer=1 seq=1 state=writing"},
			{"closing", "expect tid=1; producers tid=1 from=1,2; close"},
			{"receiving sent", "expect tid=1; producers tid=1 from=1,2"},
			{"receiving acked", "expect tid=1; producers tid=1 from=1,2; status peer=1 seq=1 state=waiting"},
			{"receiving one done", "expect tid=1; producers tid=1 from=1,2; status peer=1 seq=1 state=done"},
			{"receiving lost", "expect tid=1; producers tid=1 from=1,2; down peer=1"},
			{"ready", "expect tid=1; producers tid=1 from=1; status peer=1 seq=1 state=done"},
			{"ready, one only notifies", "expect tid=1; producers tid=1 from=1,(2); status peer=1 seq=1 state=done"},
			{"ready, nothing needed", "expect tid=1 empty; producers tid=1 from=1,2"},
			{"failed cancelled", "expect tid=1; producers tid=1 from=1,2; abandon tid=1"},
			{"failed one failed", "expect tid=1; producers tid=1 from=1,2; status peer=1 seq=1 state=failed reason=write_failed"},
			{"failed lost", "expect tid=1; producers tid=1 from=1,2; abandon tid=1; down peer=1"},
			{"failed, one void", "expect tid=1; producers tid=1 from=1; gone inc=far"},
			{"receiving, fenced", "expect tid=1; producers tid=1 from=1; abandon tid=1; fenced peer=1; expect tid=2; producers tid=2 from=1,2"},
			{"receiving, fenced and lost", "expect tid=1; producers tid=1 from=1; down peer=1; abandon tid=1; fenced peer=1; expect tid=2; producers tid=2 from=1,2"},
			{"failed, one fenced", "expect tid=1; producers tid=1 from=1,2; abandon tid=1; fenced peer=1"},
			{"reusable, all fenced", "expect tid=1; producers tid=1 from=1; abandon tid=1; fenced peer=1"},
			{"reusable, fenced and lost", "expect tid=1; producers tid=1 from=1; abandon tid=1; fenced peer=1; down peer=1"},
			{"reusable", "expect tid=1; producers tid=1 from=1; abandon tid=1; status peer=1 seq=1 state=not_begun reason=cancelled"},
		}, []string{
			"expect tid=1", "producers tid=1 from=1,2", "unpaired tid=1 reason=handshake", "abandon tid=1",
			"status peer=1 seq=1 state=waiting", "status peer=1 seq=1 state=writing", "status peer=1 seq=1 state=done",
			"status peer=1 seq=1 state=not_begun reason=short", "status peer=1 seq=1 state=failed reason=write_failed",
			"status peer=2 seq=1 state=done", "status peer=2 seq=1 state=not_begun reason=cancelled",
			"status peer=1 seq=7 state=done", "status peer=9 seq=1 state=done",
			"flushed peer=1 seq=1 tid=1", "flushed peer=2 seq=1 tid=1", "up peer=1", "down peer=1", "unreachable peer=1",
			"fenced peer=1", "fenced peer=9", "gone inc=far", "gone inc=far proof", "gone inc=far fenced", "gone inc=other", "tick", "tick at=30ms", "tick at=2s", "tick at=31s", "tick at=200s",
			"offer tid=1", "write-request peer=1 seq=1 tid=1",
			"queue tid=1", "queue tid=2", "producers tid=1 from=1", "tick at=5s", "tick at=301s", "close", "heartbeat peer=1 lines=1:1", "bye peer=1", "bye peer=9",
			"heartbeat-ack peer=1", "heartbeat-ack peer=1 lines=1:1", "heartbeat-ack peer=1 lines=1:1:writing", "heartbeat-ack peer=1 lines=1:1:done", "heartbeat-ack peer=1 lines=1:1:failed:write_failed",
			"heartbeat-ack peer=1 lines=0:1:not_begun:lease_over", "heartbeat-ack peer=2 lines=7:1:done", "heartbeat-ack peer=9 lines=1:1:done",
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
			golden.Equal(t, filepath.Join("testdata/step", m.file), out.String())
		})
	}
}
