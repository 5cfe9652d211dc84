package routes

import (
	"sync"

	"pdrouter/internal/background"
)

// watcher is what one stream has still to tell: which engines have changed, or that anything may have.
type watcher struct {
	caller string
	wake   chan struct{} // there is something to tell
	ended  chan struct{} // closed by end
	end    func()

	limit   int // engines
	mu      sync.Mutex
	sync    bool
	pending map[string]seen // what each was before the first change that is not told yet
	order   []string        // of pending's engines, oldest first
}

func newWatcher(caller string, limit int) *watcher {
	w := &watcher{caller: caller, wake: make(chan struct{}, 1), ended: make(chan struct{}), limit: limit, pending: map[string]seen{}}
	w.end = sync.OnceFunc(func() { close(w.ended) })
	return w
}

// tell adds a change of an engine that was what before says. Changes of one engine become one. Where more engines wait than
// the limit allows, they become one «sync», and tell reports that.
func (w *watcher) tell(engine string, before seen) (slow bool) {
	w.mu.Lock()
	_, waits := w.pending[engine]
	switch {
	case waits:
	case len(w.pending) >= w.limit:
		slow = true
		w.againLocked()
	default:
		w.pending[engine] = before
		w.order = append(w.order, engine)
	}
	w.mu.Unlock()
	background.Notify(w.wake)
	return slow
}

// again has «sync» told in place of all that waits.
func (w *watcher) again() {
	w.mu.Lock()
	w.againLocked()
	w.mu.Unlock()
	background.Notify(w.wake)
}

func (w *watcher) againLocked() {
	w.sync, w.order = true, nil
	clear(w.pending)
}

// take returns what to tell now: whether «sync» comes first, and then which engines, oldest first.
func (w *watcher) take() (all bool, order []string, before map[string]seen) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all, order, before = w.sync, w.order, w.pending
	w.sync, w.order, w.pending = false, nil, map[string]seen{}
	return all, order, before
}
