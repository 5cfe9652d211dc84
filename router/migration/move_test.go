package migration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pdrouter/internal/golden"
)

// TestMoveScripts runs testdata/moves.txt: scripts of events, after which the actions of each are written. -update writes those anew.
func TestMoveScripts(t *testing.T) {
	golden.Scripts(t, "testdata/moves.txt", func() func([]string) string {
		var m Move
		return func(words []string) (did string) {
			for _, a := range m.Step(eventOf(t, words), nil) {
				did += " " + a.Do.String()
				if a.Do == DoDone {
					did += "(" + a.Result.String() + ")"
				}
			}
			return did + " [" + m.State.String() + "]"
		}
	})
}

func eventOf(t *testing.T, words []string) (e Event) {
	t.Helper()
	for e.Kind = range EventKinds {
		if e.Kind.String() != words[0] {
			continue
		}
		if len(words) == 1 {
			return e
		}
		for e.Why = range Results {
			if e.Why.String() == words[1] {
				return e
			}
		}
	}
	t.Fatalf("no event %q", words)
	return e
}

// TestMoveWalks gives moves any events in any order, and follows the actions as a plain reader would: what the source keeps is read or freed
// once, the target is asked only for what was exported, and every leg has ended, or is left to a job, when the move is over.
func TestMoveWalks(t *testing.T) {
	for seed := range uint64(20_000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var m Move
		var trace []string
		exporting, importing, cancelled := false, false, false
		kept, done := 0, 0
		fail := func(why string) { t.Fatalf("seed %d: %s:\n%s", seed, why, strings.Join(trace, "\n")) }
		for range 12 {
			e := Event{Kind: EventKind(rng.IntN(int(EventKinds))), Why: Result(1 + rng.IntN(int(Results)-1))}
			ofExport, ofImport := e.Kind >= EvExported && e.Kind <= EvExportLost, e.Kind >= EvImported && e.Kind <= EvImportFailed
			if rng.IntN(4) > 0 && (ofExport && !exporting || ofImport && !importing) { // now and then one comes that no leg can have sent
				continue
			}
			pinned := m.State == StNew && e.Kind == EvExported
			acts := m.Step(e, nil)
			trace = append(trace, fmt.Sprint(e.Kind, " ", acts, " ", m.State))
			dropped := len(acts) == 1 && acts[0].Do == DoDrop
			if !dropped && !pinned && (ofExport && !exporting || ofImport && !importing) {
				fail("an event of a leg that was not asked counts")
			}
			if !dropped && ofExport {
				exporting = false
				if e.Kind == EvExported || e.Kind == EvExportUnusable {
					kept++
				}
			}
			if !dropped && ofImport {
				importing = false
				if e.Kind == EvImported {
					kept--
				}
			}
			for _, a := range acts {
				switch a.Do {
				case DoExport:
					exporting = true
				case DoImport:
					importing = true
					if kept != 1 || exporting {
						fail("the target is asked for what is not kept")
					}
				case DoCancelExport:
					cancelled = true
					if !exporting {
						fail("a leg that is over is closed")
					}
				case DoFreeExport, DoFreeTaken:
					kept--
					if importing {
						fail("what the target may be reading is freed")
					}
				case DoFreeOpen:
					kept--
					if !importing {
						fail("no leg is open")
					}
					importing = false
				case DoDone:
					done++
					if a.Result == Moved && (e.Kind != EvImported || cancelled) {
						fail("it is moved by another event")
					}
				}
			}
			if kept < 0 {
				fail("what is not kept is freed")
			}
			if over := m.State == StDone; over != (done == 1) || over && (kept != 0 || exporting || importing) || done > 1 {
				fail("it ends with something left")
			}
		}
	}
}
