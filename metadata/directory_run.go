package metadata

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Run follows the gateway until ctx ends, and returns ctx's error: it keeps the local copy true to what is told, and fetches in
// advance the records of every engine that want takes, so that no request waits for them. log hears when the gateway is lost.
func (d *Directory) Run(ctx context.Context, want func(engine string) bool, log *slog.Logger) error {
	a := &ahead{d: d, want: want, log: log, due: map[string]uint64{}, wake: make(chan struct{}, 1), slots: make(chan struct{}, d.client.cfg.Watch.Ahead)}
	var fetching sync.WaitGroup
	fetching.Go(func() { a.run(ctx) })
	defer fetching.Wait()
	defer d.doubt(false)
	var last string
	return d.client.watch(ctx, true, func(ev watchEvent) {
		last = ""
		d.told(ev)
		a.told(ev)
	}, func(err error) {
		d.doubt(false)
		if text := err.Error(); text != last { // once, not at every try
			last = text
			log.Warn("metadata: watch; trying again", "err", err)
		}
	})
}

// doubt says that what is known may have changed unheard, and whether what changes from here on is told.
func (d *Directory) doubt(following bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.following = following
	for _, p := range d.peers {
		p.sure = false
	}
	for engine, f := range d.flights {
		f.sure = false
		delete(d.flights, engine) // whoever asks from here on wants a newer answer
	}
}

// told brings the local copy up to what was told.
func (d *Directory) told(ev watchEvent) {
	if ev.kind == watchSync {
		d.doubt(true)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	engine := ev.inc.Engine
	p := d.peers[engine]
	if ev.kind == watchRenew {
		if p != nil && p.err == nil && p.generation == ev.inc.Generation && time.Now().Before(p.until) {
			p.until = leased(p.recs)
		}
		return
	}
	if f := d.flights[engine]; f != nil {
		f.sure = false
		delete(d.flights, engine)
	}
	switch {
	case p == nil || p.generation > ev.inc.Generation:
	case ev.kind == watchDelete:
		delete(d.peers, engine)
	default:
		p.sure = false
	}
}

// ahead fetches records before they are asked for.
type ahead struct {
	d     *Directory
	want  func(engine string) bool
	log   *slog.Logger
	slots chan struct{}
	wake  chan struct{}

	mu   sync.Mutex
	list bool              // all engines are to be looked through
	due  map[string]uint64 // engine → generation
}

// told notes what is to be fetched.
func (a *ahead) told(ev watchEvent) {
	a.mu.Lock()
	switch {
	case ev.kind == watchSync:
		a.list = true
	case ev.kind == watchPut && a.want(ev.inc.Engine):
		a.due[ev.inc.Engine] = ev.inc.Generation
	}
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run fetches until ctx ends.
func (a *ahead) run(ctx context.Context) {
	var fetching sync.WaitGroup
	defer fetching.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		a.mu.Lock()
		list, due := a.list, a.due
		a.list, a.due = false, map[string]uint64{}
		a.mu.Unlock()
		if list {
			a.all(ctx, due)
		}
		for engine, generation := range due {
			select {
			case <-ctx.Done():
				return
			case a.slots <- struct{}{}:
			}
			fetching.Go(func() {
				defer func() { <-a.slots }()
				a.fetch(ctx, Incarnation{Engine: engine, Generation: generation})
			})
		}
	}
}

// all adds to due every engine that there is.
func (a *ahead) all(ctx context.Context, due map[string]uint64) {
	cfg := a.d.client.cfg.Watch
	pause := cfg.Retry
	for range tries {
		listed, err := a.d.client.Engines(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			for _, l := range listed {
				if a.want(l.Engine) {
					due[l.Engine] = max(due[l.Engine], l.Generation)
				}
			}
			return
		}
		if !transient(err) {
			a.log.Warn("metadata: peers are fetched only when they are needed", "err", err)
			return
		}
		rest(ctx, pause)
		pause = min(2*pause, cfg.Longest)
	}
}

// tries is how often the gateway is asked for what is fetched in advance.
const tries = 5

// fetch asks for one engine, unless it is known. An engine whose ranks are not all there yet is asked for again when the next
// of them is told.
func (a *ahead) fetch(ctx context.Context, inc Incarnation) {
	cfg := a.d.client.cfg
	rest(ctx, rand.N(cfg.Watch.Spread+1))
	pause := cfg.Watch.Retry
	for range tries {
		if _, _, ok := a.d.held(inc, true); ok || ctx.Err() != nil {
			return
		}
		_, err := a.d.ask(ctx, inc)
		if err == nil || !transient(err) || errors.Is(err, ErrNotFound) {
			return
		}
		rest(ctx, pause)
		pause = min(2*pause, cfg.Watch.Longest)
	}
}
