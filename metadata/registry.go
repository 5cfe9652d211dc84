package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// The errors of Pairs.Wait that callers branch on.
var (
	// ErrForgotten says that the engine restarted or was removed while its handshake ran.
	ErrForgotten = errors.New("forgotten")
	// ErrBusy says that too many handshakes are queued already.
	ErrBusy = errors.New("too many handshakes")
	// ErrClosed says that the registry was closed.
	ErrClosed = errors.New("closed")
)

// Pair names one run of a prefill engine and one run of a decode engine.
type Pair struct {
	Prefill, Decode Incarnation
}

// String returns both engine ids.
func (p Pair) String() string { return p.Prefill.ID() + "→" + p.Decode.ID() }

// Handshake makes one pair usable. It is called off every request's path, at most once at a time per pair, and must
// return soon after ctx ends.
type Handshake func(ctx context.Context, pair Pair) error

// PairsConfig bounds the handshakes of a registry.
type PairsConfig struct {
	Timeout     time.Duration `yaml:"timeout"`     // of one handshake; default 30s
	Concurrency int           `yaml:"concurrency"` // handshakes in flight at once; default 16
	Queue       int           `yaml:"queue"`       // handshakes waiting for their turn; default 4096
}

func (c PairsConfig) withDefaults() PairsConfig {
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Concurrency == 0 {
		c.Concurrency = 16
	}
	if c.Queue == 0 {
		c.Queue = 4096
	}
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c PairsConfig) Validate() error {
	var errs []error
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout is %v; want more than 0", c.Timeout))
	}
	if c.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("concurrency is %d; want more than 0", c.Concurrency))
	}
	if c.Queue < 0 {
		errs = append(errs, fmt.Errorf("queue is %d; want more than 0", c.Queue))
	}
	return errors.Join(errs...)
}

// PairsStats counts what a registry does and did.
type PairsStats struct {
	Ready    int    // pairs that are usable now
	Waiting  int    // callers of Wait that are parked now
	Queued   int    // handshakes that wait for their turn now
	InFlight int    // handshakes running now
	Done     uint64 // handshakes that succeeded
	Failed   uint64 // handshakes that failed, timed out or were forgotten
}

// Pairs remembers which pairs of engines have shaken hands, and shakes hands for the others: one background job per
// pair however many callers wait for it. A failed handshake is told to all that wait and forgotten, so that the
// next caller starts afresh. It is safe for concurrent use.
type Pairs struct {
	cfg   PairsConfig
	shake Handshake
	ready atomic.Pointer[map[Pair]struct{}] // replaced whole, so that Ready takes no lock

	running sync.WaitGroup
	mu      sync.Mutex
	closed  bool
	jobs    map[Pair]*job // queued and in flight
	queue   []*job        // waiting for their turn, oldest first
	stats   PairsStats
	turn    uint64 // grows by one per released waiter
}

type job struct {
	pair    Pair
	cancel  context.CancelFunc // nil while queued
	waiters []*waiter          // in the order they came
}

type waiter struct {
	done chan error // one value
	turn uint64     // when it was released; written before done
}

// NewPairs returns an empty registry. Close ends it.
func NewPairs(cfg PairsConfig, shake Handshake) (*Pairs, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("metadata: pairs: %w", err)
	}
	if shake == nil {
		return nil, errors.New("metadata: pairs: no handshake function")
	}
	p := &Pairs{cfg: cfg.withDefaults(), shake: shake, jobs: map[Pair]*job{}}
	p.ready.Store(&map[Pair]struct{}{})
	return p, nil
}

// Ready reports whether the pair has shaken hands. It takes no lock and allocates nothing.
func (p *Pairs) Ready(pair Pair) bool {
	_, ok := (*p.ready.Load())[pair]
	return ok
}

// Wait returns nil as soon as the pair has shaken hands, starting a handshake if none is under way. It returns the
// handshake's error if that fails, and ctx's error if ctx ends first: the handshake then goes on for others.
// Callers parked for one pair are released in the order they came.
func (p *Pairs) Wait(ctx context.Context, pair Pair) error {
	if p.Ready(pair) {
		return nil
	}
	w := &waiter{done: make(chan error, 1)}
	if err := p.park(pair, w); err != nil {
		return err
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		p.leave(pair, w)
		return fmt.Errorf("metadata: pair %v: %w", pair, ctx.Err())
	}
}

// Start begins a handshake for the pair unless it is ready or under way, and does not wait for it.
func (p *Pairs) Start(pair Pair) error {
	if p.Ready(pair) {
		return nil
	}
	return p.park(pair, nil)
}

// park adds w, if any, to the pair's job, which it makes if need be.
func (p *Pairs) park(pair Pair, w *waiter) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("metadata: pair %v: %w", pair, ErrClosed)
	}
	if p.Ready(pair) { // it became ready since the caller looked
		if w != nil {
			w.done <- nil
		}
		return nil
	}
	j := p.jobs[pair]
	if j == nil {
		if len(p.queue) >= p.cfg.Queue {
			return fmt.Errorf("metadata: pair %v: %w", pair, ErrBusy)
		}
		j = &job{pair: pair}
		p.jobs[pair] = j
		p.queue = append(p.queue, j)
		p.beginLocked()
	}
	if w != nil {
		j.waiters = append(j.waiters, w)
		p.stats.Waiting++
	}
	return nil
}

// leave takes a waiter whose context has ended off its job.
func (p *Pairs) leave(pair Pair, w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[pair]
	if j == nil {
		return
	}
	for i := range j.waiters {
		if j.waiters[i] == w {
			j.waiters = append(j.waiters[:i], j.waiters[i+1:]...)
			p.stats.Waiting--
			return
		}
	}
}

// beginLocked starts queued jobs while there is room.
func (p *Pairs) beginLocked() {
	for len(p.queue) > 0 && p.stats.InFlight < p.cfg.Concurrency {
		j := p.queue[0]
		p.queue = p.queue[1:]
		p.stats.InFlight++
		ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Timeout)
		j.cancel = cancel
		p.running.Go(func() { p.run(ctx, j) })
	}
}

func (p *Pairs) run(ctx context.Context, j *job) {
	err := p.shake(ctx, j.pair)
	if err != nil {
		err = fmt.Errorf("metadata: pair %v: handshake: %w", j.pair, err)
	}
	j.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.InFlight--
	if p.jobs[j.pair] == j { // else forgotten meanwhile, and already counted and told
		p.endLocked(j, err)
	}
	p.beginLocked()
}

// endLocked takes the job out of the books and tells all that wait for it.
func (p *Pairs) endLocked(j *job, err error) {
	delete(p.jobs, j.pair)
	if err == nil {
		p.stats.Done++
		p.swapLocked(func(ready map[Pair]struct{}) { ready[j.pair] = struct{}{} })
	} else {
		p.stats.Failed++
	}
	for _, w := range j.waiters {
		p.turn++
		w.turn = p.turn
		w.done <- err // never blocks: one value, room for one
	}
	p.stats.Waiting -= len(j.waiters)
	j.waiters = nil
}

// swapLocked replaces the set of ready pairs by an edited copy.
func (p *Pairs) swapLocked(edit func(map[Pair]struct{})) {
	old := *p.ready.Load()
	ready := make(map[Pair]struct{}, len(old)+1)
	for k := range old {
		ready[k] = struct{}{}
	}
	edit(ready)
	p.ready.Store(&ready)
}

// Forget drops all that is known of an engine, on either side of a pair. Handshakes with it end, and their waiters
// get ErrForgotten.
func (p *Pairs) Forget(engine string) {
	p.forget(func(pair Pair) bool { return pair.Prefill.Engine == engine || pair.Decode.Engine == engine })
}

// Retire drops all that is known of other runs of an engine, on either side of a pair, as Forget does.
func (p *Pairs) Retire(run Incarnation) {
	old := func(i Incarnation) bool { return i.Engine == run.Engine && i != run }
	p.forget(func(pair Pair) bool { return old(pair.Prefill) || old(pair.Decode) })
}

// ForgetPair drops one pair, as after a transfer that failed on what the handshake had set up.
func (p *Pairs) ForgetPair(pair Pair) {
	p.forget(func(other Pair) bool { return other == pair })
}

func (p *Pairs) forget(match func(Pair) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(match, ErrForgotten)
	p.beginLocked()
}

func (p *Pairs) dropLocked(match func(Pair) bool, why error) {
	p.swapLocked(func(ready map[Pair]struct{}) {
		for pair := range ready {
			if match(pair) {
				delete(ready, pair)
			}
		}
	})
	queue := p.queue[:0]
	for _, j := range p.queue {
		if !match(j.pair) {
			queue = append(queue, j)
		}
	}
	clear(p.queue[len(queue):])
	p.queue = queue
	for pair, j := range p.jobs {
		if match(pair) {
			if j.cancel != nil {
				j.cancel()
			}
			p.endLocked(j, fmt.Errorf("metadata: pair %v: %w", pair, why))
		}
	}
}

// Stats returns what the registry does and did.
func (p *Pairs) Stats() PairsStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Ready, s.Queued = len(*p.ready.Load()), len(p.queue)
	return s
}

// Close ends all handshakes, tells all that wait ErrClosed, and returns when every handshake function has returned.
// It is safe to call twice.
func (p *Pairs) Close() {
	p.mu.Lock()
	p.closed = true
	p.dropLocked(func(Pair) bool { return true }, ErrClosed)
	p.mu.Unlock()
	p.running.Wait()
}
