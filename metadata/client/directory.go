package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"pdrouter/metadata"
)

// Directory looks up the ranks of one run of an engine through a Client. It has the method that the plane's agents
// need. While Run follows the gateway, it answers from a local copy, without an exchange, for every engine whose records it has
// and that nothing was told of since. It is safe for concurrent use.
//
// A copy holds as long as the gateway is heard: it tells when a lease ends, and is lost when nothing came for
// WatchConfig.Silence. From then on a copy holds for the lifetime of its records, counted from the last moment at which
// the gateway was heard, and is used only where the gateway does not answer.
type Directory struct {
	client *Client

	mu        sync.Mutex
	following bool                 // a watch stands: what changes is told
	heard     time.Time            // when something came on that watch
	peers     map[string]*heldPeer // by engine
	refused   map[string]refusedPeer
	flights   map[string]*flight // by engine
}

// heldPeer is what is known of one engine.
type heldPeer struct {
	generation uint64
	recs       []metadata.Record // of all ranks that the client may read
	lifetime   time.Duration     // the shortest of these records
	until      time.Time         // the end of lifetime; where sure is true, the gateway tells the end
	sure       bool              // nothing may have changed since: a watch stands that would have told
}

// refusedPeer is an engine that the gateway refuses to tell of, whatever its generation.
type refusedPeer struct {
	err   error
	until time.Time
}

// flight is one exchange about one engine, for all who wait for its answer.
type flight struct {
	cancel  context.CancelFunc
	done    chan struct{} // closed when recs and err are set
	recs    []metadata.Record
	some    bool // these are not all that the engine has published
	err     error
	waiters int  // guarded by Directory.mu
	sure    bool // guarded by Directory.mu: the watch that stood at its beginning has told nothing since
}

// Directory returns the client as a directory of incarnations, whose local copy is empty.
func (c *Client) Directory() *Directory {
	return &Directory{client: c, peers: map[string]*heldPeer{}, refused: map[string]refusedPeer{}, flights: map[string]*flight{}}
}

// Engine returns the records of all ranks of the incarnation that the client may read. While some are not published yet, or the
// gateway is not reachable, it tries again until ctx ends or the client's timeout is over. It then returns the last known records if
// their lease has not ended. It returns ErrStale if the engine has a newer generation. The records are shared: callers must not
// change them.
func (d *Directory) Engine(ctx context.Context, inc metadata.Incarnation) ([]metadata.Record, error) {
	if recs, err, ok := d.held(inc, true); ok {
		return recs, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.client.cfg.Timeout)
	defer cancel()
	pause := d.client.cfg.Retry
	for {
		recs, err := d.ask(ctx, inc)
		if err == nil || !transient(err) {
			return recs, err
		}
		select {
		case <-ctx.Done():
			if old, oldErr, ok := d.held(inc, false); ok && !errors.Is(err, metadata.ErrNotFound) {
				return old, oldErr
			}
			return nil, err
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		}
	}
}

// held answers from the local copy, if there is one of this generation or a newer one, or a refusal; sure asks for one that must
// be right.
func (d *Directory) held(inc metadata.Incarnation, sure bool) ([]metadata.Record, error, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if no, ok := d.refused[inc.Engine]; ok && d.following && time.Now().Before(no.until) {
		return nil, no.err, true
	}
	p := d.peers[inc.Engine]
	switch {
	case p == nil, p.generation < inc.Generation, !p.sure && (sure || !time.Now().Before(p.until)):
		return nil, nil, false
	case p.generation > inc.Generation:
		return nil, newer(inc, p.generation), true
	}
	return p.recs, nil, true
}

func newer(inc metadata.Incarnation, known uint64) error {
	return fmt.Errorf("metadata: engine %s: generation is %x; asked for %x: %w", inc.Engine, known, inc.Generation, metadata.ErrStale)
}

// ask makes one exchange about the engine, or waits for the one that is under way.
func (d *Directory) ask(ctx context.Context, inc metadata.Incarnation) ([]metadata.Record, error) {
	d.mu.Lock()
	f := d.flights[inc.Engine]
	if f == nil {
		flying, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.client.cfg.Timeout)
		f = &flight{cancel: cancel, done: make(chan struct{}), sure: d.following}
		d.flights[inc.Engine] = f
		go func() {
			defer cancel()
			recs, some, err := d.client.engine(flying, inc.Engine)
			d.landed(f, inc.Engine, recs, some, err)
		}()
	}
	f.waiters++
	d.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		d.mu.Lock()
		defer d.mu.Unlock()
		if f.waiters--; f.waiters == 0 {
			d.dropLocked(inc.Engine, f)
			f.cancel()
		}
		return nil, ctx.Err()
	}
	if f.err != nil {
		return nil, f.err
	}
	return of(f.recs, f.some, inc)
}

// of returns the records if they are of the incarnation, and the whole of it or some, as the gateway says of a token that
// names ranks: those that map onto these.
func of(recs []metadata.Record, some bool, inc metadata.Incarnation) ([]metadata.Record, error) {
	first, err := whole(recs, some)
	switch {
	case len(recs) > 0 && recs[0].Generation > inc.Generation:
		return nil, newer(inc, recs[0].Generation)
	case err != nil:
		return nil, fmt.Errorf("metadata: engine %s: %w: %w", inc.Engine, err, metadata.ErrNotFound)
	case first.Generation < inc.Generation:
		return nil, fmt.Errorf("metadata: engine %s: generation is %x; asked for %x: %w", inc.Engine, first.Generation, inc.Generation, metadata.ErrNotFound)
	}
	return recs, nil
}

// whole is metadata.Complete. If the answer has only some of the ranks, the gateway has checked that none is missing.
func whole(recs []metadata.Record, some bool) (metadata.Record, error) {
	first, err := metadata.Complete(recs)
	var why *metadata.Unpairable
	if some && errors.As(err, &why) && why.Reason == metadata.IncompleteRanks && len(recs) > 0 {
		return recs[0], nil
	}
	return first, err
}

// landed keeps an answer and hands it to all that wait for it.
func (d *Directory) landed(f *flight, engine string, recs []metadata.Record, some bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f.recs, f.some, f.err = recs, some, err
	close(f.done)
	sure := f.sure && d.flights[engine] == f
	d.dropLocked(engine, f)
	if p := d.peers[engine]; p != nil && p.sure && !sure {
		return // what is known was asked for later
	}
	var status *StatusError
	switch {
	case errors.As(err, &status) && status.Status == http.StatusForbidden:
		delete(d.peers, engine)
		if sure && len(d.refused) < d.client.cfg.Watch.Engines {
			d.refused[engine] = refusedPeer{err: err, until: time.Now().Add(refusedFor)}
		}
	case errors.Is(err, metadata.ErrNotFound) && sure:
		delete(d.peers, engine)
	case err == nil:
		if first, err := whole(recs, some); err == nil {
			d.keepLocked(engine, newHeldPeer(first.Generation, recs, sure))
		}
	}
}

// refusedFor is how long an engine that the gateway refuses is not asked for again, unless news of it comes. It is short: a gateway permits what its
// configuration names, and of several gateways one may learn of a new engine later than another.
const refusedFor = 2 * time.Second

func newHeldPeer(generation uint64, recs []metadata.Record, sure bool) *heldPeer {
	p := &heldPeer{generation: generation, recs: recs, lifetime: recs[0].Lifetime(), sure: sure}
	for _, r := range recs {
		p.lifetime = min(p.lifetime, r.Lifetime())
	}
	p.until = time.Now().Add(p.lifetime) // from now: clocks may differ
	return p
}

func (d *Directory) dropLocked(engine string, f *flight) {
	if d.flights[engine] == f {
		delete(d.flights, engine)
	}
}

// keepLocked keeps what is known of an engine. A full copy lets go of what has ended, and takes in nothing more if nothing has.
func (d *Directory) keepLocked(engine string, p *heldPeer) {
	if old := d.peers[engine]; old != nil && old.generation > p.generation {
		return
	}
	delete(d.refused, engine)
	if d.peers[engine] == nil && len(d.peers) >= d.client.cfg.Watch.Engines {
		now := time.Now()
		for name, old := range d.peers {
			if !old.sure && !now.Before(old.until) {
				delete(d.peers, name)
			}
		}
		if len(d.peers) >= d.client.cfg.Watch.Engines {
			return
		}
	}
	d.peers[engine] = p
}

// transient reports whether a later try may succeed.
func transient(err error) bool {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Status >= 500 || status.Status == http.StatusTooManyRequests
	}
	return !errors.Is(err, metadata.ErrStale)
}
