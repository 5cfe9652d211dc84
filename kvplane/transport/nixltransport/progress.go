package nixltransport

import (
	"errors"

	"pdrouter/kvplane/nixl"
)

// writesInProgress are the writes in progress, the oldest first, and whose turn it is.
type writesInProgress struct {
	first, last *writeInProgress
	turn        *writeInProgress
	n           int
}

func (l *writesInProgress) add(w *writeInProgress) {
	if w.before = l.last; w.before == nil {
		l.first = w
	} else {
		w.before.after = w
	}
	l.last = w
	l.n++
}

func (l *writesInProgress) remove(w *writeInProgress) {
	if l.turn == w {
		l.turn = w.after
	}
	if w.before == nil {
		l.first = w.after
	} else {
		w.before.after = w.after
	}
	if w.after == nil {
		l.last = w.before
	} else {
		w.after.before = w.before
	}
	w.before, w.after = nil, nil
	l.n--
}

// NIXL must be asked about every write by itself, at 0.4 µs each, and nothing says which has ended. One poll asks about
// so many that have not: the oldest, which mostly end first, the newest, which may be to another peer than one that has
// stopped, and between them each in its turn. With few writes in progress that is all of them.
const (
	askOldest = 16
	askNewest = 16
	askTurn   = 32
	// endsPerPoll is how many writes end in one poll at most: the owner has messages to take in too.
	endsPerPoll = 256
)

// round asks about writes in progress, and drops those that have ended.
func (l *writesInProgress) round(ended func(*writeInProgress) bool) {
	forward := func(w *writeInProgress) *writeInProgress { return w.after }
	backward := func(w *writeInProgress) *writeInProgress { return w.before }
	ends := endsPerPoll
	if l.n <= askOldest+askNewest+askTurn {
		l.ask(l.first, forward, l.n, &ends, ended)
		return
	}
	l.ask(l.first, forward, askOldest, &ends, ended)
	l.ask(l.last, backward, askNewest, &ends, ended)
	if l.turn == nil {
		l.turn = l.first
	}
	l.turn = l.ask(l.turn, forward, askTurn, &ends, ended)
}

// ask asks about a write and its neighbours until so many were in progress still, or no more may end. It returns the
// write whose turn is next.
func (l *writesInProgress) ask(w *writeInProgress, next func(*writeInProgress) *writeInProgress, vain int, ends *int, ended func(*writeInProgress) bool) *writeInProgress {
	for w != nil && vain > 0 && *ends > 0 {
		asked := w
		w = next(w)
		if ended(asked) {
			*ends--
			l.remove(asked)
		} else {
			vain--
		}
	}
	return w
}

// progress ends those of the writes in progress that have left it.
func (t *Transport) progress() {
	t.writing.round(func(w *writeInProgress) bool {
		status, err := w.handle.Status()
		if status == nixl.InProgress {
			return false
		}
		t.end(w, errors.Join(w.failed, err))
		return true
	})
}

// Writes is how many writes are in progress.
func (t *Transport) Writes() int { return t.writing.n }
