package migration

// State is where a move stands.
type State uint8

const (
	StNew       State = iota
	StExporting       // the source is asked to keep the KV for another engine
	StImporting       // the target is asked to read it
	StEnding          // the move is given up, and the source's answer is awaited: it says what the source keeps
	StDone            // no leg is open, or a job of package reclaim has it
)

func (s State) String() string {
	return [...]string{"new", "exporting", "importing", "ending", "done"}[s]
}

// EventKind is the kind of an event.
type EventKind uint8

const (
	EvStart           EventKind = iota
	EvExported                  // the source keeps the KV, and has said where
	EvExportUnusable            // it keeps the KV, but the target could not read it
	EvExportNone                // it has answered, and keeps nothing
	EvExportRefused             // nothing was begun
	EvExportBroken              // an error: it may have finished, and not said what it keeps
	EvExportLost                // the connection broke, or was closed: the engine ends a request without a client
	EvImported                  // the target has answered, so it has the KV
	EvImportUnstarted           // nothing was begun
	EvImportFailed              // it may have begun to read
	EvEnd                       // the time is over, or the gateway stops
	EventKinds                  // how many there are
)

func (k EventKind) String() string {
	return [...]string{
		"start", "exported", "export_unusable", "export_none", "export_refused", "export_broken", "export_lost", "imported", "import_unstarted",
		"import_failed", "end",
	}[k]
}

// Event is something that has happened. Why says how the move ends by it, if it does.
type Event struct {
	Kind EventKind
	Why  Result
}

// ActionKind is what is to be done.
type ActionKind uint8

const (
	DoExport       ActionKind = iota // ask the source
	DoImport                         // ask the target
	DoCancelExport                   // close the source's leg
	DoFreeExport                     // free what the source keeps: nobody was asked to read it
	DoFreeTaken                      // free what the source keeps: the target's leg is over, and may have read it
	DoFreeOpen                       // end the target's leg, which is open, and free what the source keeps
	DoCountLeak                      // the source may keep something, and has not said what
	DoDone                           // it is over, with this result
	DoDrop                           // the event is out of place
)

func (k ActionKind) String() string {
	return [...]string{
		"export", "import", "cancel_export", "free_export", "free_taken", "free_open", "count_leak", "done", "drop",
	}[k]
}

// Action is one thing to be done. Result is that of DoDone.
type Action struct {
	Do     ActionKind
	Result Result
}

// Move is one move of KV from an engine to another, as a state machine. The zero value is a move that has not begun. Between two steps either a
// leg is open or it is done, so whatever happens it comes to an end. What the source keeps for the target is read or freed once.
type Move struct {
	State State
	why   Result // while it ends
}

// Step applies one event, appends to out what is to be done next, in order, and returns it. It performs no I/O, reads no clock and allocates
// nothing.
func (m *Move) Step(e Event, out []Action) []Action {
	switch m.State {
	case StNew:
		switch e.Kind {
		case EvStart:
			m.State = StExporting
			return append(out, Action{Do: DoExport})
		case EvExported: // for any engine that wants it, before there was a move
			m.State = StImporting
			return append(out, Action{Do: DoImport})
		case EvEnd:
			return m.done(e.Why, out)
		}
	case StExporting:
		switch e.Kind {
		case EvExported:
			m.State = StImporting
			return append(out, Action{Do: DoImport})
		case EvEnd:
			m.State, m.why = StEnding, e.Why
			return append(out, Action{Do: DoCancelExport})
		}
		return m.notExported(e, e.Why, out)
	case StEnding:
		if e.Kind == EvExported {
			return m.done(m.why, append(out, Action{Do: DoFreeExport}))
		}
		return m.notExported(e, m.why, out)
	case StImporting:
		switch e.Kind {
		case EvImported:
			return m.done(Moved, out)
		case EvImportUnstarted:
			return m.done(e.Why, append(out, Action{Do: DoFreeExport}))
		case EvImportFailed:
			return m.done(e.Why, append(out, Action{Do: DoFreeTaken}))
		case EvEnd:
			return m.done(e.Why, append(out, Action{Do: DoFreeOpen}))
		}
	}
	return append(out, Action{Do: DoDrop})
}

// notExported ends a move whose source has ended its leg without a usable answer.
func (m *Move) notExported(e Event, why Result, out []Action) []Action {
	switch e.Kind {
	case EvExportUnusable:
		out = append(out, Action{Do: DoFreeExport})
	case EvExportBroken:
		out = append(out, Action{Do: DoCountLeak})
	case EvExportNone, EvExportRefused, EvExportLost:
	default:
		return append(out, Action{Do: DoDrop})
	}
	return m.done(why, out)
}

func (m *Move) done(why Result, out []Action) []Action {
	m.State = StDone
	return append(out, Action{Do: DoDone, Result: why})
}
