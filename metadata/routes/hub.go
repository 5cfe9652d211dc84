package routes

import (
	"net/http"
	"sync"

	"pdrouter/internal/refusal"
	"pdrouter/metadata"
)

// watchHub tells all watchers what changes in the local copy. It tells them after the copy has changed, so they can read it there.
type watchHub struct {
	cfg    WatchConfig
	copy   Copy
	shapes *shapes
	stop   func() // following copy

	mu       sync.Mutex
	closed   bool
	whole    bool // the copy was whole once
	watchers map[*watcher]struct{}
	callers  map[string]int // streams of each
	seen     map[string]seen
	lost     uint64
	slow     uint64
}

// seen is what an engine was when watchers were last told of it, or could read it before they were told «sync». It decides
// who is told that the engine is gone.
type seen struct {
	inc   metadata.Incarnation
	shape *shape // nil: it was not there
}

func newWatchHub(cfg WatchConfig, local Copy, s *shapes) *watchHub {
	h := &watchHub{cfg: cfg, copy: local, shapes: s, watchers: map[*watcher]struct{}{}, callers: map[string]int{}, seen: map[string]seen{}}
	h.stop = local.Subscribe(h.changed)
	return h
}

// join adds a watcher for a caller; leave removes it.
func (h *watchHub) join(caller string) (*watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, &refusal.Error{Status: http.StatusServiceUnavailable, Reason: "closing", Msg: "this gateway is shutting down"}
	case len(h.watchers) >= h.cfg.Watchers:
		return nil, &refusal.Error{Status: http.StatusServiceUnavailable, Reason: "watchers", Msg: "too many watches"}
	case h.callers[caller] >= h.cfg.PerCaller:
		return nil, &refusal.Error{Status: http.StatusServiceUnavailable, Reason: "caller_watches", Msg: "too many watches of this caller"}
	}
	w := newWatcher(caller, h.cfg.Buffer)
	h.watchers[w] = struct{}{}
	h.callers[caller]++
	if h.whole {
		w.again()
	}
	return w, nil
}

func (h *watchHub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
	if h.callers[w.caller]--; h.callers[w.caller] == 0 {
		delete(h.callers, w.caller)
	}
}

func (h *watchHub) stats() WatchStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return WatchStats{Open: len(h.watchers), Lost: h.lost, Slow: h.slow}
}

// close ends every watch and refuses new ones.
func (h *watchHub) close() {
	h.stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		w.end()
	}
}

// changed notes that an engine is another one in the copy, or with "" that any may be.
func (h *watchHub) changed(engine string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if engine == "" {
		h.whole = true
		h.lost++
		clear(h.seen)
		for _, name := range h.copy.Engines() {
			h.lookLocked(name)
		}
		for w := range h.watchers {
			w.again()
		}
		return
	}
	before := h.seen[engine]
	if now := h.lookLocked(engine); !h.whole || before.shape == nil && now.shape == nil {
		return // no watcher knows of any engine yet, or of this one
	}
	for w := range h.watchers {
		if w.tell(engine, before) {
			h.slow++
		}
	}
}

// lookLocked brings what is seen of an engine up to date.
func (h *watchHub) lookLocked(engine string) seen {
	recs, ok := h.copy.Engine(engine)
	if !ok {
		delete(h.seen, engine)
		return seen{}
	}
	now := seen{inc: recs[0].Incarnation, shape: h.shapes.of(recs)}
	h.seen[engine] = now
	return now
}
