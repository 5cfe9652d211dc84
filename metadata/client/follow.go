package client

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
)

// Run follows the gateway until ctx ends, and returns ctx's error: it keeps the local copy true to what is told, and fetches in
// advance the records of every engine that want takes, so that no request waits for them. log hears when the gateway is lost.
func (d *Directory) Run(ctx context.Context, want func(engine string) bool, log *slog.Logger) error {
	a := &ahead{d: d, want: want, log: log, due: map[string]uint64{}, wake: make(chan struct{}, 1), relist: make(chan struct{}, 1), slots: make(chan struct{}, d.client.cfg.Watch.Ahead)}
	var fetching sync.WaitGroup
	fetching.Go(func() { a.run(ctx) })
	defer fetching.Wait()
	defer d.doubt(false)
	var last string
	return d.client.watch(ctx, func(ev metadata.WatchEvent) {
		last = ""
		a.told(ev, d.told(ev))
	}, func(err error) {
		d.doubt(false)
		if text := err.Error(); text != last { // once, not at every try
			last = text
			log.Warn("metadata: watch; trying again", "err", err)
		}
	})
}

// doubt says that what is known may have changed unheard, and whether what changes from here on is told. It returns how many
// engines are known.
func (d *Directory) doubt(following bool) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.peers {
		if until := d.heard.Add(p.lifetime); p.sure && until.After(p.until) {
			p.until = until
		}
		p.sure = false
	}
	d.following = following
	clear(d.refused)
	for engine, f := range d.flights {
		f.sure = false
		delete(d.flights, engine) // later callers want a newer answer
	}
	return len(d.peers)
}

// told brings the local copy up to what was told. It returns how many engines were known before.
func (d *Directory) told(ev metadata.WatchEvent) int {
	d.mu.Lock()
	d.heard = time.Now()
	d.mu.Unlock()
	if ev.Kind == metadata.WatchSync {
		return d.doubt(true)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if ev.Kind == "" {
		return len(d.peers)
	}
	clear(d.refused) // what has changed may be the client's own engine, as whose agent it was refused
	engine := ev.Engine
	if f := d.flights[engine]; f != nil {
		f.sure = false
		delete(d.flights, engine)
	}
	p := d.peers[engine]
	switch {
	case p == nil || p.generation > ev.Generation:
	case ev.Kind == metadata.WatchDelete:
		delete(d.peers, engine)
	default:
		p.sure = false
	}
	return len(d.peers)
}

// ahead fetches records before they are asked for.
type ahead struct {
	d      *Directory
	want   func(engine string) bool
	log    *slog.Logger
	slots  chan struct{}
	wake   chan struct{} // something is due
	relist chan struct{} // list all engines

	mu    sync.Mutex
	known int               // engines, when a list was last wanted
	due   map[string]uint64 // engine → generation
}

// told notes what to fetch. known is how many engines the directory knows.
func (a *ahead) told(ev metadata.WatchEvent, known int) {
	switch {
	case ev.Kind == metadata.WatchSync:
		a.mu.Lock()
		a.known = max(known, a.known)
		a.mu.Unlock()
		background.Notify(a.relist)
	case ev.Kind == metadata.WatchPut && a.want(ev.Engine):
		a.mu.Lock()
		a.due[ev.Engine] = ev.Generation
		a.mu.Unlock()
		background.Notify(a.wake)
	}
}

// run fetches until ctx ends.
func (a *ahead) run(ctx context.Context) {
	var fetching sync.WaitGroup
	defer fetching.Wait()
	fetching.Go(func() { a.lists(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		a.mu.Lock()
		due := a.due
		a.due = map[string]uint64{}
		a.mu.Unlock()
		for engine, generation := range due {
			select {
			case <-ctx.Done():
				return
			case a.slots <- struct{}{}:
			}
			fetching.Go(func() {
				defer func() { <-a.slots }()
				a.fetch(ctx, metadata.Incarnation{Engine: engine, Generation: generation})
			})
		}
	}
}

// lists adds to due every engine that there is, whenever that is wanted, until ctx ends. Where a fleet comes back to a gateway at
// once, each waits a while, at random, the longer the larger the fleet is.
func (a *ahead) lists(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.relist:
		}
		a.mu.Lock()
		known := a.known
		a.mu.Unlock()
		background.Sleep(ctx, rand.N(min(a.d.client.cfg.Watch.Spread/10*time.Duration(known), longestSpread)+1))
		a.again(ctx, "all engines", func() error {
			listed, err := a.d.client.Engines(ctx)
			if err != nil {
				return err
			}
			a.mu.Lock()
			a.known = len(listed)
			for _, l := range listed {
				if a.want(l.Engine) {
					a.due[l.Engine] = max(a.due[l.Engine], l.Generation)
				}
			}
			a.mu.Unlock()
			background.Notify(a.wake)
			return nil
		})
	}
}

// longestSpread is how long a list waits at most.
const longestSpread = 5 * time.Second

// fetch asks for one engine, unless it is known. One whose ranks are not all there yet is asked for again when it is told of
// again.
func (a *ahead) fetch(ctx context.Context, inc metadata.Incarnation) {
	background.Sleep(ctx, rand.N(a.d.client.cfg.Watch.Spread+1))
	a.again(ctx, inc.Engine, func() error {
		if _, _, ok := a.d.held(inc, true); ok {
			return nil
		}
		_, err := a.d.ask(ctx, inc)
		var status *StatusError
		if errors.Is(err, metadata.ErrNotFound) || errors.Is(err, metadata.ErrStale) || errors.As(err, &status) && status.Status == http.StatusForbidden {
			return nil // what is told next may change that
		}
		return err
	})
}

// again tries until it works or ctx ends, ever more seldom. The first failure is in the log, and what came of it.
func (a *ahead) again(ctx context.Context, what string, try func() error) {
	cfg := a.d.client.cfg.Watch
	pause := cfg.Retry
	for failures := 0; ; failures++ {
		err := try()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && failures > 0:
			a.log.Info("metadata: fetched in advance after all", "what", what, "failures", failures)
			return
		case err == nil:
			return
		case failures == 0:
			a.log.Warn("metadata: fetch in advance; trying again", "what", what, "err", err)
		}
		background.Sleep(ctx, pause-rand.N(pause/2+1))
		pause = min(2*pause, cfg.Longest)
	}
}
