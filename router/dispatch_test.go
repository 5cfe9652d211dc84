package router

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/reason"
)

var update = flag.Bool("update", false, "rewrite testdata/dispatch")

// TestDispatchScripts runs testdata/dispatch/*.txt. A file has scripts, each a comment, the connector, the number of
// attempts and the events; then ----, the actions of every event, and an empty line.
func TestDispatchScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/dispatch/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			got, want := runScripts(t, file)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-want +got; -update rewrites the file\n%s", diff)
			}
		})
	}
}

func runScripts(t *testing.T, file string) (got, want []byte) {
	t.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i, script := range strings.Split(strings.TrimRight(string(want), "\n"), "\n\n") {
		input, _, _ := strings.Cut(script, "\n----")
		if i > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "%s\n----\n", input)
		var d dispatch
		for _, line := range strings.Split(input, "\n") {
			switch words := strings.Fields(line); {
			case len(words) == 0 || words[0] == "#":
			case words[0] == "connector":
				n, err := strconv.Atoi(words[3])
				if err != nil {
					t.Fatalf("%s: %q: %v", file, line, err)
				}
				d = newDispatch(connectorNamed(words[1]), n)
			default:
				fmt.Fprintf(&out, "%s:", line)
				for _, a := range d.Step(parseEvent(t, words), nil) {
					out.WriteString(" " + describe(a))
				}
				fmt.Fprintf(&out, " [%s]\n", d.state)
			}
		}
	}
	return out.Bytes(), want
}

func describe(a action) string {
	s := a.do.String()
	if a.outcome != outNone {
		s += "=" + a.outcome.String()
	}
	if a.why != reason.None {
		s += "(" + a.why.String() + ")"
	}
	return s
}

func parseEvent(t *testing.T, words []string) event {
	t.Helper()
	for k := range kinds {
		if k.String() != words[0] {
			continue
		}
		e := event{kind: k}
		if len(words) == 1 {
			return e
		}
		for r := range reason.Reason(reason.Count) {
			if r.String() == words[1] {
				e.why = r
				return e
			}
		}
	}
	t.Fatalf("no event %q", words)
	return event{}
}

// book checks what must hold of any sequence of events, by following the actions as a plain reader would.
type book struct {
	t        *testing.T
	seed     uint64
	conn     connector
	prefill  int // prefill legs that are open
	decode   int // decode legs that are open
	gates    int
	outcomes int
	attempts int
	onward   int  // engines that were to go on with the stream
	asked    bool // decode was asked in this attempt
	chosen   bool // an engine is to be, or was, found to go on, and has not been asked
	goesOn   bool // one was asked to, and has not said anything
	gaveUp   bool // nobody goes on
	ended    bool // the end was sent in the place of the engine
	lingers  bool // the legs were left to themselves
	trace    []string
}

func (b *book) fail(format string, args ...any) {
	b.t.Helper()
	b.t.Fatalf("seed %d, %s: %s\n%s", b.seed, b.conn.traits().name, fmt.Sprintf(format, args...), strings.Join(b.trace, "\n"))
}

// happened closes a leg that its own event has ended.
func (b *book) happened(e event) {
	switch {
	case e.kind.ofPrefill():
		b.prefill--
	case e.kind.ofDecode() && e.kind != evDecodeFirst:
		b.decode--
		b.goesOn = false
	case e.kind == evStreamWhole && !b.ended:
		b.decode--
	}
}

func (b *book) did(a action) {
	switch a.do {
	case doDisownDecode: // whoever sees to its blocks ends it
		b.decode--
		if b.conn.traits().name != ConnectorPush {
			b.fail("a leg is disowned that nobody sees to")
		}
	case doPlan, doPlanAlone:
		b.attempts++
		b.asked = false
		if b.prefill != 0 || b.decode != 0 {
			b.fail("attempt %d begins with %d prefill and %d decode legs open", b.attempts, b.prefill, b.decode)
		}
	case doWait:
		b.attempts-- // the plan that waits is none yet
	case doAskBoth:
		b.prefill++
		b.decode++
	case doAskPrefill:
		b.prefill++
	case doAskDecode:
		b.decode++
		if b.asked {
			b.fail("decode asked twice in one attempt")
		}
		b.asked = true
	case doPlanOnward:
		b.onward++
		if b.prefill != 0 || b.decode != 0 || b.gates != 1 || b.ended || b.chosen || b.goesOn {
			b.fail("engine %d is to go on behind %d gates, with %d prefill and %d decode legs open", b.onward, b.gates, b.prefill, b.decode)
		}
		b.chosen = true
	case doAskOnward:
		if b.decode++; !b.chosen {
			b.fail("an engine is to go on that was not chosen")
		}
		b.chosen, b.goesOn = false, true
	case doGoOn:
		if b.decode != 1 || !b.goesOn {
			b.fail("the stream goes on from %d engines", b.decode)
		}
		b.goesOn = false
	case doGiveUp:
		b.gaveUp = true
	case doSendEnd:
		if b.ended = true; b.prefill != 0 || b.decode != 0 || b.gates != 1 {
			b.fail("the end is sent behind %d gates, with %d prefill and %d decode legs open", b.gates, b.prefill, b.decode)
		}
	case doClosePrefill, doFinishPrefill:
		b.prefill--
	case doCloseDecode:
		b.decode--
	case doLinger:
		b.lingers = true
	case doSendStream, doSendWhole:
		b.gates++
	case doSendError, doSendPrefill, doSendDecode:
		if b.gates > 0 {
			b.fail("an error answer behind the gate")
		}
	case doCut:
		if b.gates != 1 {
			b.fail("a cut before the gate")
		}
	case doDone:
		b.outcomes++
		if (b.prefill != 0 || b.decode != 0) && !b.lingers {
			b.fail("done with %d prefill and %d decode legs open", b.prefill, b.decode)
		}
		if a.outcome == outCompleted && b.gates != 1 {
			b.fail("completed with %d answers", b.gates)
		}
		if a.outcome == outCompleted && (b.chosen || b.goesOn || b.gaveUp) || b.gaveUp && a.outcome != outFailedAfter {
			b.fail("%s while the stream was to go on", a.outcome)
		}
	}
}

// TestDispatchRandomWalk drives every connector with events that can happen in its state, and some that cannot.
func TestDispatchRandomWalk(t *testing.T) {
	reached := map[string]int{}
	for _, c := range connectors() {
		name := c.traits().name
		for seed := range uint64(5000) {
			walk(t, name, seed, reached)
		}
	}
	for _, want := range []string{
		"finish_prefill", "linger", "repeat_prefill", "drain_decode", "cancel", "strand", "drop", "cut",
		"plan_onward", "ask_onward", "go_on", "give_up", "send_end", "completed", "client_left", "failed_before", "failed_after",
	} {
		if reached[want] == 0 {
			t.Errorf("the walk never reached %s", want)
		}
	}
}

func walk(t *testing.T, name string, seed uint64, reached map[string]int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	conn := connectorNamed(name)
	d := newDispatch(conn, 1+rng.IntN(3))
	b := &book{t: t, seed: seed, conn: conn}
	var out []action
	for range 64 {
		e := event{kind: kind(rng.IntN(int(kinds)))}
		if rng.IntN(4) > 0 {
			e = likely(rng, &d)
		}
		// An event of a leg happens only while the leg is open: the exchange drops what belongs to no attempt.
		if e.kind.ofPrefill() && b.prefill == 0 || (e.kind.ofDecode() || e.kind == evStreamWhole && !b.ended || e.kind.breaks()) && b.decode == 0 {
			continue
		}
		b.trace = append(b.trace, d.state.String()+" "+e.kind.String())
		before, tries := d.state, b.onward
		out = d.Step(e, out[:0])
		if len(out) == 0 || out[0].do != doDrop {
			b.happened(e)
		}
		for _, a := range out {
			b.trace = append(b.trace, "  "+describe(a))
			reached[a.do.String()]++
			reached[a.outcome.String()]++
			b.did(a)
		}
		// Whatever the walk did, as many engines go on with a stream as may be tried: not one more, and not one fewer.
		breaks := before == stRelaying && e.kind == evStreamLost ||
			before == stContinuing && out[0].do != doDrop && e.kind.ofDecode() && e.kind != evDecodeFirst && e.kind != evDecodeTooLarge
		if breaks && b.gaveUp != (tries >= d.max-1) || b.onward > d.max-1 {
			b.fail("%d engines were to go on, %d attempts are allowed, given up: %v", b.onward, d.max, b.gaveUp)
		}
		if before == stDone && (len(out) != 1 || out[0].do != doDrop) {
			b.fail("%s after the end does %d actions", e.kind, len(out))
		}
	}
	for d.state != stDone { // the second time ends legs that linger
		out = d.Step(event{kind: evDeadline}, out[:0])
		for _, a := range out {
			b.did(a)
		}
	}
	if b.prefill != 0 || b.decode != 0 {
		b.fail("at the end %d prefill and %d decode legs are open", b.prefill, b.decode)
	}
	if b.outcomes != 1 {
		b.fail("%d outcomes", b.outcomes)
	}
	if b.gates > 1 {
		b.fail("decode was released %d times", b.gates)
	}
	if b.attempts > d.max {
		b.fail("%d attempts of %d", b.attempts, d.max)
	}
}

// likely picks an event that fits the state.
func likely(rng *rand.Rand, d *dispatch) event {
	pick := func(kinds ...kind) event { return event{kind: kinds[rng.IntN(len(kinds))]} }
	switch d.state {
	case stNew:
		return pick(evStart)
	case stPlanning:
		if d.conn.traits().mode == alone {
			return pick(evPlannedAlone, evPlannedLater)
		}
		return pick(evPlannedPair, evPlannedPair, evPlannedAlone, evPlannedLater)
	case stWaiting:
		return pick(evWaited, evWaited, evClientLeft)
	case stPairing:
		return pick(evPaired)
	case stAwaiting:
		k := evPrefillUsable + kind(rng.IntN(int(evDecodeTooLarge-evPrefillUsable)+1))
		return pick(k, evPrefillUsable, evDecodeFirst)
	case stLingering:
		k := evPrefillUsable + kind(rng.IntN(int(evDecodeTooLarge-evPrefillUsable)+1))
		return pick(k, evPrefillUsable, evDecodeFirst)
	case stRelaying:
		return pick(evStreamWhole, evStreamUnended, evStreamCut, evStreamLost, evStreamLost, evPrefillUsable, evPrefillLost)
	case stContinuing:
		if d.decode == legIdle {
			return pick(evPlannedAlone, evPlannedAlone, evPlannedAlone, evPlannedNone)
		}
		k := evDecodeFirst + kind(rng.IntN(int(evDecodeTooLarge-evDecodeFirst)+1))
		return pick(k, evDecodeFirst, evClientLeft)
	}
	return pick(evClientLeft)
}

// TestDispatchEveryStateEnds proves that client, deadline, shutdown and panic end a request in every state.
func TestDispatchEveryStateEnds(t *testing.T) {
	for _, c := range connectors() {
		name := c.traits().name
		ways := map[state][]kind{
			stNew:        {},
			stPlanning:   {evStart},
			stWaiting:    {evStart, evPlannedAlone, evDecodeRefused, evPlannedLater},
			stPairing:    {evStart, evPlannedPair},
			stAwaiting:   {evStart, evPlannedPair, evPaired},
			stRelaying:   {evStart, evPlannedAlone, evDecodeFirst},
			stContinuing: {evStart, evPlannedAlone, evDecodeFirst, evStreamLost, evPlannedAlone},
		}
		if name == ConnectorNone {
			delete(ways, stPairing)
			ways[stAwaiting] = []kind{evStart, evPlannedAlone}
		}
		for st, way := range ways {
			for _, end := range []kind{evClientLeft, evClientSlow, evDeadline, evShutdown, evPanic} {
				d := newDispatch(connectorNamed(name), 3)
				for _, k := range way {
					d.Step(event{kind: k}, nil)
				}
				if d.state != st {
					t.Fatalf("%s: %v leads to %s; want %s", name, way, d.state, st)
				}
				out := d.Step(event{kind: end}, nil)
				if d.state == stLingering {
					d.Step(event{kind: evDeadline}, nil)
				}
				if d.state != stDone || out[len(out)-1].do != doDone {
					t.Errorf("%s: %s in state %s leaves %s", name, end, st, d.state)
				}
			}
		}
	}
}

// TestDispatchAllocates nothing in the course of a request.
func TestDispatchAllocates(t *testing.T) {
	out := make([]action, 0, 16)
	var d dispatch
	conn := connectorNamed(ConnectorPush)
	n := testing.AllocsPerRun(100, func() {
		d = newDispatch(conn, 3)
		for _, k := range []kind{evStart, evPlannedPair, evPaired, evPrefillUsable, evDecodeFirst, evStreamLost, evPlannedAlone,
			evDecodeLost, evPlannedAlone, evDecodeFirst, evStreamWhole} {
			out = d.Step(event{kind: k}, out[:0])
		}
	})
	if n != 0 || d.state != stDone {
		t.Errorf("%v allocations, state %s; want 0, done", n, d.state)
	}
}

func TestWordsHaveNames(t *testing.T) {
	for k := range kinds {
		if k.String() == "" {
			t.Errorf("event %d has no name", k)
		}
	}
	for d := range doDrop + 1 {
		if d.String() == "" {
			t.Errorf("action %d has no name", d)
		}
	}
}
