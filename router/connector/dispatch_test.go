package connector

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pdrouter/internal/golden"
	"pdrouter/router/dispatch"
	"pdrouter/router/reason"
)

// TestDispatchScripts runs testdata/dispatch/*.txt. A file has scripts, each a comment, the connector, the number of
// attempts and the events; then ----, the actions of every event, and an empty line. -update writes what follows each ---- anew.
func TestDispatchScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/dispatch/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			runScripts(t, file)
		})
	}
}

func runScripts(t *testing.T, file string) {
	t.Helper()
	golden.Scripts(t, file, func() func([]string) string {
		var d dispatch.Dispatch
		return func(words []string) (did string) {
			if words[0] == "connector" {
				n, err := strconv.Atoi(words[3])
				if err != nil {
					t.Fatalf("%s: %q: %v", file, words, err)
				}
				d = NewDispatch(Named(words[1]), n)
				return ""
			}
			for _, a := range d.Step(parseEvent(t, words), nil) {
				did += " " + describe(a)
			}
			return did + " [" + d.State.String() + "]"
		}
	})
}

func describe(a dispatch.Action) string {
	s := a.Do.String()
	if a.Outcome != dispatch.NoOutcome {
		s += "=" + a.Outcome.String()
	}
	if a.Why != reason.None {
		s += "(" + a.Why.String() + ")"
	}
	return s
}

func parseEvent(t *testing.T, words []string) dispatch.Event {
	t.Helper()
	for k := range dispatch.EventKinds {
		if k.String() != words[0] {
			continue
		}
		e := dispatch.Event{Kind: k}
		if len(words) == 1 {
			return e
		}
		for r := range reason.Reason(reason.Count) {
			if r.String() == words[1] {
				e.Why = r
				return e
			}
		}
	}
	t.Fatalf("no event %q", words)
	return dispatch.Event{}
}

// book checks what must hold of any sequence of events, by following the actions as a plain reader would.
type book struct {
	t             *testing.T
	seed          uint64
	conn          Connector
	prefill       int // prefill legs that are open
	decode        int // decode legs that are open
	gates         int
	outcomes      int
	attempts      int
	withoutTokens int  // plans for an engine that has refused token ids
	continuations int  // of the stream that were tried
	asked         bool // decode was asked in this attempt
	chosen        bool // an engine is to be, or was, found to go on, and has not been asked
	goesOn        bool // one was asked to, and has not said anything
	joins         bool // decode was asked for what comes after prefill's token, and has not said anything
	gaveUp        bool // nobody goes on
	ended         bool // the end was sent in the place of the engine
	drains        bool // the legs were left to themselves
	trace         []string
}

func (b *book) fail(format string, args ...any) {
	b.t.Helper()
	b.t.Fatalf("seed %d, %s: %s\n%s", b.seed, b.conn.Traits().Name, fmt.Sprintf(format, args...), strings.Join(b.trace, "\n"))
}

// happened closes a leg that its own event has ended.
func (b *book) happened(e dispatch.Event) {
	switch {
	case e.Kind.OfPrefill():
		b.prefill--
	case e.Kind.OfDecode() && e.Kind != dispatch.EvDecodeFirst:
		b.decode--
		b.goesOn = false
	case e.Kind == dispatch.EvStreamWhole && !b.ended:
		b.decode--
	}
}

func (b *book) did(a dispatch.Action) {
	switch a.Do {
	case dispatch.DoDisownDecode: // whoever sees to its blocks ends it
		b.decode--
		if b.conn.Traits().Name != NamePush {
			b.fail("a leg is disowned that nobody sees to")
		}
	case dispatch.DoPlan, dispatch.DoPlanAlone, dispatch.DoPlanWithoutTokens:
		if a.Do == dispatch.DoPlanWithoutTokens {
			if b.withoutTokens++; b.withoutTokens > 1 {
				b.fail("planned without tokens twice")
			}
		} else {
			b.attempts++
		}
		b.asked = false
		if b.prefill != 0 || b.decode != 0 {
			b.fail("attempt %d begins with %d prefill and %d decode legs open", b.attempts, b.prefill, b.decode)
		}
	case dispatch.DoWait:
		b.attempts-- // the plan that waits is none yet
	case dispatch.DoAskBoth:
		b.prefill++
		b.decode++
	case dispatch.DoAskPrefill:
		b.prefill++
	case dispatch.DoJoin:
		if b.decode != 1 || !b.joins || b.gates != 1 {
			b.fail("%d engines join a stream behind %d gates", b.decode, b.gates)
		}
		b.joins = false
	case dispatch.DoBreak:
		if b.decode != 0 || !b.joins {
			b.fail("a stream breaks that %d engines were to join", b.decode)
		}
		b.joins = false
	case dispatch.DoAskDecode, dispatch.DoAskRest:
		if b.decode++; a.Do == dispatch.DoAskRest {
			if b.joins = true; b.gates != 1 {
				b.fail("decode is asked for the rest of what no client has")
			}
		}
		if b.asked {
			b.fail("decode asked twice in one attempt")
		}
		b.asked = true
	case dispatch.DoPlanContinuation:
		b.continuations++
		if b.prefill != 0 || b.decode != 0 || b.gates != 1 || b.ended || b.chosen || b.goesOn {
			b.fail("engine %d is to go on behind %d gates, with %d prefill and %d decode legs open", b.continuations, b.gates, b.prefill, b.decode)
		}
		b.chosen = true
	case dispatch.DoAskContinuation:
		if b.decode++; !b.chosen {
			b.fail("an engine is to go on that was not chosen")
		}
		b.chosen, b.goesOn = false, true
	case dispatch.DoGoOn:
		if b.decode != 1 || !b.goesOn {
			b.fail("the stream goes on from %d engines", b.decode)
		}
		b.goesOn = false
	case dispatch.DoGiveUp:
		b.gaveUp = true
	case dispatch.DoAppendEnd:
		if b.ended = true; b.prefill != 0 || b.decode != 0 || b.gates != 1 {
			b.fail("the end is sent behind %d gates, with %d prefill and %d decode legs open", b.gates, b.prefill, b.decode)
		}
	case dispatch.DoClosePrefill, dispatch.DoFinishPrefill:
		b.prefill--
	case dispatch.DoCloseDecode:
		b.decode--
	case dispatch.DoDrain:
		b.drains = true
	case dispatch.DoReplyStream, dispatch.DoReplyWhole:
		b.gates++
	case dispatch.DoReplyError, dispatch.DoReplyPrefill, dispatch.DoReplyDecode:
		if b.gates > 0 {
			b.fail("an error answer behind the gate")
		}
	case dispatch.DoCut:
		if b.gates != 1 {
			b.fail("a cut before the gate")
		}
	case dispatch.DoDone:
		b.outcomes++
		if (b.prefill != 0 || b.decode != 0) && !b.drains {
			b.fail("done with %d prefill and %d decode legs open", b.prefill, b.decode)
		}
		if a.Outcome == dispatch.Completed && b.gates != 1 {
			b.fail("completed with %d answers", b.gates)
		}
		if a.Outcome == dispatch.Completed && (b.chosen || b.goesOn || b.joins || b.gaveUp) || b.gaveUp && a.Outcome != dispatch.FailedAfter {
			b.fail("%s while the stream was to go on", a.Outcome)
		}
	}
}

// TestDispatchRandomWalk drives every connector with events that can happen in its state, and some that cannot.
func TestDispatchRandomWalk(t *testing.T) {
	reached := map[string]int{}
	for _, c := range All() {
		name := c.Traits().Name
		for seed := range uint64(5000) {
			walk(t, name, seed, reached)
		}
	}
	for _, want := range []string{
		"plan_without_tokens", "finish_prefill", "drain", "watch_transfer", "check_decode", "free_decode", "free_prefill", "cancel", "count_leak", "drop", "cut",
		"plan_continuation", "ask_continuation", "go_on", "give_up", "ask_rest", "join", "break", "append_end", "completed", "client_left", "failed_before", "failed_after",
	} {
		if reached[want] == 0 {
			t.Errorf("the walk never reached %s", want)
		}
	}
}

func walk(t *testing.T, name string, seed uint64, reached map[string]int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	conn := Named(name)
	attempts := 1 + rng.IntN(3)
	d := NewDispatch(conn, attempts)
	b := &book{t: t, seed: seed, conn: conn}
	var out []dispatch.Action
	for range 64 {
		e := dispatch.Event{Kind: dispatch.EventKind(rng.IntN(int(dispatch.EventKinds)))}
		if rng.IntN(4) > 0 {
			e = likely(rng, conn.Traits().Mode, &d)
		}
		// An event of a leg happens only while the leg is open: the exchange drops what belongs to no attempt.
		if e.Kind.OfPrefill() && b.prefill == 0 || (e.Kind.OfDecode() || e.Kind == dispatch.EvStreamWhole && !b.ended || e.Kind.Breaks()) && b.decode == 0 {
			continue
		}
		b.trace = append(b.trace, d.State.String()+" "+e.Kind.String())
		before, tries := d.State, b.continuations
		out = d.Step(e, out[:0])
		if len(out) == 0 || out[0].Do != dispatch.DoDrop {
			b.happened(e)
		}
		for _, a := range out {
			b.trace = append(b.trace, "  "+describe(a))
			reached[a.Do.String()]++
			reached[a.Outcome.String()]++
			b.did(a)
		}
		// Whatever the walk did, as many engines go on with a stream as may be tried: not one more, and not one fewer.
		breaks := before == dispatch.StRelaying && e.Kind == dispatch.EvStreamLost ||
			before == dispatch.StContinuing && out[0].Do != dispatch.DoDrop && e.Kind.OfDecode() && e.Kind != dispatch.EvDecodeFirst && e.Kind != dispatch.EvDecodeTooLarge
		if breaks && b.gaveUp != (tries >= attempts-1) || b.continuations > attempts-1 {
			b.fail("%d engines were to go on, %d attempts are allowed, given up: %v", b.continuations, attempts, b.gaveUp)
		}
		if before == dispatch.StDone && (len(out) != 1 || out[0].Do != dispatch.DoDrop) {
			b.fail("%s after the end does %d actions", e.Kind, len(out))
		}
	}
	for d.State != dispatch.StDone { // the second time ends legs that drain
		out = d.Step(dispatch.Event{Kind: dispatch.EvDeadline}, out[:0])
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
	if b.attempts > attempts {
		b.fail("%d attempts of %d", b.attempts, attempts)
	}
}

// likely picks an event that fits the state.
func likely(rng *rand.Rand, split dispatch.Mode, d *dispatch.Dispatch) dispatch.Event {
	pick := func(kinds ...dispatch.EventKind) dispatch.Event {
		return dispatch.Event{Kind: kinds[rng.IntN(len(kinds))]}
	}
	switch d.State {
	case dispatch.StNew:
		return pick(dispatch.EvStart)
	case dispatch.StPlanning:
		if split == dispatch.Alone {
			return pick(dispatch.EvPlannedAlone, dispatch.EvPlannedLater)
		}
		return pick(dispatch.EvPlannedPair, dispatch.EvPlannedPair, dispatch.EvPlannedAlone, dispatch.EvPlannedLater)
	case dispatch.StWaiting:
		return pick(dispatch.EvWaited, dispatch.EvWaited, dispatch.EvClientLeft)
	case dispatch.StPairing:
		return pick(dispatch.EvPaired)
	case dispatch.StAwaiting:
		k := dispatch.EvPrefillUsable + dispatch.EventKind(rng.IntN(int(dispatch.EvDecodeTooLarge-dispatch.EvPrefillUsable)+1))
		return pick(k, dispatch.EvPrefillUsable, dispatch.EvDecodeFirst)
	case dispatch.StDraining:
		k := dispatch.EvPrefillUsable + dispatch.EventKind(rng.IntN(int(dispatch.EvDecodeTooLarge-dispatch.EvPrefillUsable)+1))
		return pick(k, dispatch.EvPrefillUsable, dispatch.EvDecodeFirst)
	case dispatch.StJoining:
		k := dispatch.EvDecodeFirst + dispatch.EventKind(rng.IntN(int(dispatch.EvDecodeTooLarge-dispatch.EvDecodeFirst)+1))
		return pick(k, dispatch.EvDecodeFirst, dispatch.EvClientLeft)
	case dispatch.StRelaying:
		return pick(dispatch.EvStreamWhole, dispatch.EvStreamUnended, dispatch.EvStreamCut, dispatch.EvStreamLost, dispatch.EvStreamLost, dispatch.EvPrefillUsable, dispatch.EvPrefillLost)
	case dispatch.StContinuing:
		if d.Decode == dispatch.LegIdle {
			return pick(dispatch.EvPlannedAlone, dispatch.EvPlannedAlone, dispatch.EvPlannedAlone, dispatch.EvPlannedNone)
		}
		k := dispatch.EvDecodeFirst + dispatch.EventKind(rng.IntN(int(dispatch.EvDecodeTooLarge-dispatch.EvDecodeFirst)+1))
		return pick(k, dispatch.EvDecodeFirst, dispatch.EvClientLeft)
	}
	return pick(dispatch.EvClientLeft)
}

// TestDispatchEveryStateEnds proves that client, deadline, shutdown and panic end a request in every state.
func TestDispatchEveryStateEnds(t *testing.T) {
	for _, c := range All() {
		name := c.Traits().Name
		ways := map[dispatch.State][]dispatch.EventKind{
			dispatch.StNew:        {},
			dispatch.StPlanning:   {dispatch.EvStart},
			dispatch.StWaiting:    {dispatch.EvStart, dispatch.EvPlannedAlone, dispatch.EvDecodeRefused, dispatch.EvPlannedLater},
			dispatch.StPairing:    {dispatch.EvStart, dispatch.EvPlannedPair},
			dispatch.StAwaiting:   {dispatch.EvStart, dispatch.EvPlannedPair, dispatch.EvPaired},
			dispatch.StJoining:    {dispatch.EvStart, dispatch.EvPlannedPair, dispatch.EvPaired, dispatch.EvPrefillFirst},
			dispatch.StRelaying:   {dispatch.EvStart, dispatch.EvPlannedAlone, dispatch.EvDecodeFirst},
			dispatch.StContinuing: {dispatch.EvStart, dispatch.EvPlannedAlone, dispatch.EvDecodeFirst, dispatch.EvStreamLost, dispatch.EvPlannedAlone},
		}
		if c.Traits().Mode != dispatch.InTurn {
			delete(ways, dispatch.StJoining)
		}
		if name == NameNone {
			delete(ways, dispatch.StPairing)
			ways[dispatch.StAwaiting] = []dispatch.EventKind{dispatch.EvStart, dispatch.EvPlannedAlone}
		}
		for st, way := range ways {
			for _, end := range []dispatch.EventKind{dispatch.EvClientLeft, dispatch.EvClientSlow, dispatch.EvCanceled, dispatch.EvDeadline, dispatch.EvShutdown, dispatch.EvPanic} {
				d := NewDispatch(Named(name), 3)
				for _, k := range way {
					d.Step(dispatch.Event{Kind: k}, nil)
				}
				if d.State != st {
					t.Fatalf("%s: %v leads to %s; want %s", name, way, d.State, st)
				}
				out := d.Step(dispatch.Event{Kind: end}, nil)
				if d.State == dispatch.StDraining {
					d.Step(dispatch.Event{Kind: dispatch.EvDeadline}, nil)
				}
				if d.State != dispatch.StDone || out[len(out)-1].Do != dispatch.DoDone {
					t.Errorf("%s: %s in state %s leaves %s", name, end, st, d.State)
				}
			}
		}
	}
}

// TestDispatchAllocates nothing in the course of a request.
func TestDispatchAllocates(t *testing.T) {
	out := make([]dispatch.Action, 0, 16)
	var d dispatch.Dispatch
	conn := Named(NamePush)
	n := testing.AllocsPerRun(100, func() {
		d = NewDispatch(conn, 3)
		for _, k := range []dispatch.EventKind{dispatch.EvStart, dispatch.EvPlannedPair, dispatch.EvPaired, dispatch.EvPrefillUsable, dispatch.EvDecodeFirst, dispatch.EvStreamLost, dispatch.EvPlannedAlone,
			dispatch.EvDecodeLost, dispatch.EvPlannedAlone, dispatch.EvDecodeFirst, dispatch.EvStreamWhole} {
			out = d.Step(dispatch.Event{Kind: k}, out[:0])
		}
	})
	if n != 0 || d.State != dispatch.StDone {
		t.Errorf("%v allocations, state %s; want 0, done", n, d.State)
	}
}

func TestWordsHaveNames(t *testing.T) {
	for k := range dispatch.EventKinds {
		if k.String() == "" {
			t.Errorf("event %d has no name", k)
		}
	}
	for d := range dispatch.DoDrop + 1 {
		if d.String() == "" {
			t.Errorf("action %d has no name", d)
		}
	}
}
