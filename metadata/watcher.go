package metadata

import "sync"

// watcher is what one stream has still to tell: per engine the latest event, or that anything may have changed.
type watcher struct {
	wake  chan struct{} // something is to be told
	ended chan struct{} // closed by end
	end   func()

	limit   int // engines
	mu      sync.Mutex
	sync    bool
	pending map[string]watchEvent
	order   []string // of pending's engines, oldest first
}

func newWatcher(limit int) *watcher {
	w := &watcher{wake: make(chan struct{}, 1), ended: make(chan struct{}), limit: limit, pending: map[string]watchEvent{}}
	w.end = sync.OnceFunc(func() { close(w.ended) })
	return w
}

// tell adds an event. Events of one engine become one: the latest, but a renewal never takes the place of a change.
// Where more engines wait than the limit allows, they become one «sync», and tell reports that.
func (w *watcher) tell(ev watchEvent) (slow bool) {
	w.mu.Lock()
	old, waits := w.pending[ev.inc.Engine]
	switch {
	case ev.kind == watchSync, !waits && len(w.pending) >= w.limit:
		slow = ev.kind != watchSync
		w.sync, w.order = true, nil
		clear(w.pending)
	case waits && ev.kind == watchRenew && old.inc == ev.inc: // the change says it too
	case waits:
		w.pending[ev.inc.Engine] = ev
	default:
		w.pending[ev.inc.Engine] = ev
		w.order = append(w.order, ev.inc.Engine)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return slow
}

// take returns what is to be told now, a «sync» first, in out's room.
func (w *watcher) take(out []watchEvent) []watchEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sync {
		out = append(out, watchEvent{kind: watchSync})
	}
	for _, engine := range w.order {
		out = append(out, w.pending[engine])
	}
	w.sync, w.order = false, w.order[:0]
	clear(w.pending)
	return out
}
