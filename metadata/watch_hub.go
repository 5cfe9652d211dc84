package metadata

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// watchHub follows the store once for all watchers, and only while there are any. A change is told after the hub has read it
// back, so whoever is told can read it too.
type watchHub struct {
	cfg   HandlerConfig
	store Store
	log   *slog.Logger

	mu       sync.Mutex
	closed   bool
	watchers map[*watcher]struct{}
	follower *follower // nil while nobody watches
	lost     uint64
	slow     uint64
}

func newWatchHub(cfg HandlerConfig, store Store, log *slog.Logger) *watchHub {
	return &watchHub{cfg: cfg, store: store, log: log, watchers: map[*watcher]struct{}{}}
}

// join adds a watcher; leave removes it.
func (h *watchHub) join() (*watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, &refusal{Status: http.StatusServiceUnavailable, Reason: "closing", Msg: "this gateway is shutting down"}
	case len(h.watchers) >= h.cfg.Watch.Watchers:
		return nil, &refusal{Status: http.StatusServiceUnavailable, Reason: "watchers", Msg: "too many watches"}
	}
	w := newWatcher(h.cfg.Watch.Buffer)
	h.watchers[w] = struct{}{}
	if h.follower == nil {
		ctx, stop := context.WithCancel(context.Background())
		h.follower = &follower{hub: h, stop: stop, known: map[string]known{}, dirty: map[string]Change{}, wake: make(chan struct{}, 1)}
		go h.follower.run(ctx)
	} else if h.follower.synced {
		w.tell(watchEvent{kind: watchSync})
	}
	return w, nil
}

func (h *watchHub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
	if len(h.watchers) == 0 && h.follower != nil {
		h.follower.stop()
		h.follower = nil
	}
}

func (h *watchHub) stats() WatchStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return WatchStats{Open: len(h.watchers), Lost: h.lost, Slow: h.slow}
}

// close ends every watch and refuses new ones.
func (h *watchHub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		w.end()
	}
}

// follower is one stretch of time in which somebody watches.
type follower struct {
	hub    *watchHub
	stop   context.CancelFunc
	wake   chan struct{}
	synced bool // guarded by hub.mu

	mu    sync.Mutex
	dirty map[string]Change // by engine; "" means everything
	// known is what watchers were told of, or could read before they were told «sync». Only run's goroutine writes it.
	known map[string]known
}

// known is what one engine's records were when they were last read.
type known struct {
	digest [sha256.Size]byte
	until  time.Time // end of the earliest lease
	recs   []Record  // without what is bulky
	judge  []Record  // recs, or what they were before ranks were withdrawn: they decide who is told
}

// run follows the store until ctx ends.
func (f *follower) run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	cfg := f.hub.cfg.Watch
	watching.Go(func() {
		for ctx.Err() == nil {
			if err := f.hub.store.Watch(ctx, f.note); err != nil && ctx.Err() == nil {
				f.hub.log.Warn("metadata: watch: store; trying again", "err", err, "pause", cfg.Retry)
				rest(ctx, cfg.Retry)
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		rest(ctx, cfg.Settle)
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			f.hub.log.Warn("metadata: watch: read; trying again", "err", err, "pause", cfg.Retry)
			rest(ctx, cfg.Retry)
			f.note(Change{})
		}
	}
}

// note remembers the latest change of an engine.
func (f *follower) note(c Change) {
	f.mu.Lock()
	if old, ok := f.dirty[c.Engine]; !ok || c.Generation >= old.Generation {
		f.dirty[c.Engine] = c
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// follow reads what was noted and tells it. Where anything may have changed, all is read before «sync» is told: a change
// that is read later differs from what is known then, and is told.
func (f *follower) follow(ctx context.Context) error {
	f.mu.Lock()
	dirty := f.dirty
	f.dirty = map[string]Change{}
	f.mu.Unlock()
	if _, all := dirty[""]; all {
		delete(dirty, "")
		if err := f.readAll(ctx); err != nil {
			return err
		}
		f.tell(ctx, watchEvent{kind: watchSync})
	}
	for _, name := range slices.Sorted(maps.Keys(dirty)) {
		if err := f.read(ctx, dirty[name]); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) readAll(ctx context.Context) error {
	listing, cancel := context.WithTimeout(ctx, f.hub.cfg.Store)
	names, err := f.hub.store.List(listing)
	cancel()
	if err != nil {
		return err
	}
	all := make(map[string]known, len(names))
	for _, name := range names {
		now, err := f.current(ctx, name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err == nil {
			all[name] = now
		}
	}
	f.mu.Lock()
	f.known = all
	f.mu.Unlock()
	return nil
}

// read reads the engine that has changed and tells what that means.
func (f *follower) read(ctx context.Context, c Change) error {
	before, had := f.known[c.Engine]
	now, err := f.current(ctx, c.Engine)
	gone := errors.Is(err, ErrNotFound)
	switch {
	case err != nil && !gone:
		return err
	case gone && !had:
		return nil // nobody was told of it
	}
	ev := watchEvent{kind: watchPut, inc: c.Incarnation, rank: c.Rank}
	switch {
	case gone || c.Deleted:
		ev.kind = watchDelete
		if had {
			now.judge = before.judge
		}
	case had && now.digest == before.digest && time.Now().Before(before.until):
		ev.kind = watchRenew
	}
	ev.recs = now.judge
	f.mu.Lock()
	if gone {
		delete(f.known, c.Engine)
	} else {
		f.known[c.Engine] = now
	}
	f.mu.Unlock()
	f.tell(ctx, ev)
	return nil
}

// current reads one engine.
func (f *follower) current(ctx context.Context, engine string) (known, error) {
	ctx, cancel := context.WithTimeout(ctx, f.hub.cfg.Store)
	defer cancel()
	recs, err := f.hub.store.Engine(ctx, engine)
	if err != nil {
		return known{}, err
	}
	now := known{recs: slices.Clone(recs)}
	sum := sha256.New()
	for i, r := range recs {
		until := time.Now().Add(r.Lifetime())
		if i == 0 || until.Before(now.until) {
			now.until = until
		}
		r.Published, r.Expires, r.Binding, r.Encoded = time.Time{}, time.Time{}, nil, nil // these change at every renewal
		b, err := r.payload()
		if err != nil {
			return known{}, err
		}
		sum.Write(b)
		light := &now.recs[i]
		light.Blob, light.Signature, light.Binding, light.Encoded = nil, nil, nil, nil
	}
	now.judge = now.recs
	sum.Sum(now.digest[:0])
	return now, nil
}

// Engine returns what is known of an engine without asking the store, if it is known.
func (h *watchHub) Engine(name string) ([]Record, bool) {
	h.mu.Lock()
	f := h.follower
	h.mu.Unlock()
	if f == nil {
		return nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.known[name]
	return k.recs, ok
}

// tell hands an event to every watcher, unless the last one has left meanwhile.
func (f *follower) tell(ctx context.Context, ev watchEvent) {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	if ctx.Err() != nil || f.hub.follower != f {
		return
	}
	if ev.kind == watchSync {
		f.synced = true
		f.hub.lost++
	}
	for w := range f.hub.watchers {
		if w.tell(ev) {
			f.hub.slow++
		}
	}
}
