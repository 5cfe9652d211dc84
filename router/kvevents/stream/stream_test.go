package stream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/golden"
)

// scripts are courses of events: c(onnected), d(isconnected), p(ublished) and r(eplayed) batches as number.run, e(nd) and f(ailure) of a
// replay, +seconds.
var scripts = []struct{ name, events string }{
	{"a gateway that is there first", "c e p0.1 p1.1 p2.1"},
	{"a gateway that starts late: old batches are replayed, the live one is known", "c r0.1 r1.1 r2.1 e p2.1 p3.1"},
	{"a gateway that starts so late that the first batches are lost", "c r700.1 r701.1 e p702.1"},
	{"nothing is replayed yet when the subscription begins", "c e p1.1 r0.1 r1.1 e p1.1 p2.1"},
	{"a gap that a replay fills", "c e p0.1 p1.1 p5.1 r1.1 r2.1 r3.1 r4.1 r5.1 r6.1 e p5.1 p6.1 p7.1"},
	{"a gap that the buffer does not reach back to", "c e p0.1 p1.1 p50.1 r40.1 r40.1 r41.1 r42.1 e p50.1 p51.1"},
	{"a second gap within the cool-down, one after it", "c e p0.1 p5.1 r0.1 r1.1 r2.1 r3.1 r4.1 r5.1 e p5.1 +10 p9.1 p10.1 +30 p12.1 r10.1 r11.1 r12.1 e p12.1"},
	{"the engine drops batches of the replay", "c r0.1 r1.1 r4.1 r5.1 e r1.1 r2.1 r3.1 r4.1 r5.1 e p6.1"},
	{"a replay that fails at the start", "c f p7.1 f p7.1 p8.1"},
	{"a replay that fails in a gap", "c e p0.1 p3.1 r0.1 r1.1 f p3.1 p4.1"},
	{"a restart, with fewer batches", "c e p0.1 p1.1 p2.1 d c e r0.2 e p1.2"},
	{"a restart, with the same number under other bytes", "c e p0.1 p1.1 d c r1.2 r0.2 r1.2 r2.2 e p3.2"},
	{"a restart that the replay does not show, as it fails", "c e p0.1 p1.1 d c f p2.2 f p2.2 p3.2"},
	{"a broken connection to the same run", "c e p0.1 p1.1 d c r1.1 r2.1 e p3.1"},
	{"a restart that the connection outlives", "c e p0.1 p1.1 p2.1 p0.2 r0.2 r1.2 e p0.2 p1.2 p2.2"},
	{"a replay that is another engine's", "c r0.2 r1.2 e p0.1 p1.1 p2.1"},
	{"late answers, and batches of no connection", "r0.1 e p0.1 c e r0.1 f p0.1"},
	{"no replays: a start, a gap, a restart, a connection that breaks", "- c p7.1 p8.1 p11.1 p0.2 p1.2 d c p2.2"},
}

// run applies the events of a script and writes what it asks for.
func run(w *strings.Builder, events string) {
	s := State{Replays: true}
	at := time.Unix(1_000_000, 0)
	for _, word := range strings.Fields(events) {
		e := Event{At: at}
		switch word[0] {
		case '-':
			s.Replays = false
			continue
		case '+':
			var seconds int
			_, _ = fmt.Sscanf(word, "+%d", &seconds)
			at = at.Add(time.Duration(seconds) * time.Second)
			continue
		case 'c':
			e.Kind = Connected
		case 'd':
			e.Kind = Disconnected
		case 'e':
			e.Kind = ReplayEnded
		case 'f':
			e.Kind = ReplayFailed
		case 'p', 'r':
			e.Kind = Published
			if word[0] == 'r' {
				e.Kind = Replayed
			}
			var run uint64
			_, _ = fmt.Sscanf(word[1:], "%d.%d", &e.Seq, &run)
			e.Sum = run<<32 | e.Seq
		}
		fmt.Fprintf(w, "  %-6s", word)
		for _, a := range s.Step(e, nil) {
			fmt.Fprint(w, " ", a)
			if a == Replay {
				fmt.Fprint(w, " from ", s.From())
			}
		}
		if s.Live() {
			w.WriteString(" (live)")
		}
		w.WriteByte('\n')
	}
	fmt.Fprintf(w, "  %d gaps, %d resets, %d replays\n", s.Gaps, s.Resets, s.Asked)
}

// TestScripts plays every course.
func TestScripts(t *testing.T) {
	var got strings.Builder
	for _, script := range scripts {
		got.WriteString(script.name + "\n")
		run(&got, script.events)
	}
	golden.Equal(t, "testdata/scripts.txt", got.String())
}

// TestHoleThatStays has every replay lack the same batch: once the stream asks no more, what was entered before the hole is forgotten, as the
// lost batch may have removed it.
func TestHoleThatStays(t *testing.T) {
	s := State{Replays: true}
	actions := s.Step(Event{Kind: Connected}, nil)
	for asked := 0; !s.Live(); asked++ {
		if asked > 2*maxRounds {
			t.Fatalf("%d replays, and no end", asked)
		}
		for _, e := range []Event{{Kind: Replayed, Seq: 0}, {Kind: Replayed, Seq: 2}, {Kind: ReplayEnded}} {
			actions = append(actions, s.Step(e, nil)...)
		}
	}
	entered := false
	for _, a := range actions {
		entered = a == Enter || entered && a != Forget
	}
	if entered || s.Resets != 1 {
		t.Errorf("live with a batch before the hole: %v, %d resets; want none and 1", entered, s.Resets)
	}
}

// TestGone has an engine that is gone keep what is known of it for a while, and only if a replay can prove that it holds: the index is bounded, and
// has no room for others' blocks meanwhile.
func TestGone(t *testing.T) {
	for _, tt := range []struct {
		replays bool
		down    time.Duration
		want    bool // its batches are known still
	}{{true, 0, true}, {true, Kept - time.Second, true}, {true, Kept, false}, {false, 0, false}} {
		s, at := State{Replays: tt.replays}, time.Unix(1_000_000, 0)
		actions := s.Step(Event{Kind: Connected, At: at}, nil)
		if tt.replays {
			actions = s.Step(Event{Kind: ReplayEnded, At: at}, actions)
		}
		actions = s.Step(Event{Kind: Published, At: at}, actions)
		at = at.Add(time.Hour)
		for _, down := range []time.Duration{0, tt.down / 2, tt.down} { // each attempt to connect again tells it
			actions = s.Step(Event{Kind: Disconnected, At: at.Add(down)}, actions)
		}
		if known := actions[len(actions)-1] == Enter; known != tt.want || s.Live() {
			t.Errorf("replays %v, down for %v: known %v, live %v; want known %v", tt.replays, tt.down, known, s.Live(), tt.want)
		}
	}
}

// engine is a publisher with a buffer, as the walk has it.
type engine struct {
	run  uint64
	seq  uint64   // of the next batch
	kept []uint64 // numbers
}

func (n *engine) publish() uint64 {
	n.kept = append(n.kept, n.seq)
	n.kept = n.kept[max(0, len(n.kept)-20):]
	n.seq++
	return n.seq - 1
}

// TestRandomWalk has an engine publish, drop, restart and answer replays badly. Whenever the stream is live, what was entered since the last
// Forget is a run of numbers without a hole, all of the engine's present run, and nothing is kept back of what came.
func TestRandomWalk(t *testing.T) {
	restarts, fills := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		n, s := &engine{run: 1}, State{Replays: seed%4 > 0}
		at := time.Unix(1_000_000, 0)
		var known []uint64 // sums
		var step func(e Event)
		replay := func() {
			for ask := true; ask; {
				ask = false
				pass := func(e Event) {
					e.At = at
					for _, a := range s.Step(e, nil) {
						switch a {
						case Enter:
							known = append(known, e.Sum)
						case Forget:
							known = nil
						case Replay:
							ask = true
						}
					}
				}
				for _, seq := range slices.Clone(n.kept) {
					if seq >= s.From() && rng.IntN(20) > 0 && !ask {
						pass(Event{Kind: Replayed, Seq: seq, Sum: n.run<<32 | seq})
					}
				}
				if !ask {
					kind := ReplayEnded
					if rng.IntN(10) == 0 {
						kind = ReplayFailed
					}
					pass(Event{Kind: kind})
				}
			}
		}
		step = func(e Event) {
			e.At = at
			for _, a := range s.Step(e, nil) {
				switch a {
				case Enter:
					known = append(known, e.Sum)
				case Forget:
					known = nil
				case Replay:
					was := s.Gaps
					replay()
					if e.Kind == Published {
						step(e)
					}
					if s.Gaps == was && len(known) > 1 {
						fills++
					}
				}
			}
		}
		connected := false
		for i := range 300 {
			at = at.Add(time.Duration(rng.IntN(5000)) * time.Millisecond)
			switch op := rng.IntN(20); {
			case op == 0:
				if n.seq > 0 {
					restarts++
				}
				*n = engine{run: n.run + 1}
				if connected {
					step(Event{Kind: Disconnected})
				}
				connected = false
			case op == 1 && connected:
				step(Event{Kind: Disconnected})
				connected = false
			case op < 5 && !connected:
				connected = true
				step(Event{Kind: Connected})
			default:
				seq := n.publish()
				if connected && rng.IntN(8) > 0 {
					step(Event{Kind: Published, Seq: seq, Sum: n.run<<32 | seq})
				}
			}
			if !s.Live() {
				if connected {
					t.Fatalf("seed %d, event %d: not live, and nothing is under way", seed, i)
				}
				continue
			}
			for k, sum := range known {
				if sum>>32 != n.run || k > 0 && sum != known[k-1]+1 {
					t.Fatalf("seed %d, event %d: entered %x in run %d", seed, i, known, n.run)
				}
			}
		}
	}
	if restarts < 100 || fills < 100 {
		t.Errorf("%d restarts, %d replays that brought something: the walk shows little", restarts, fills)
	}
}
