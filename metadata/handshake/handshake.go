// Package handshake owns which pairs of engines have shaken hands. A Registry runs one background handshake per pair,
// however many requests wait for it, within bounds of how many run at once.
//
// It does not know what a handshake is: the caller gives it a Func (package router/handshake has one). An exchange
// asks it (fleet.Handshakes) before each request that uses two engines.
package handshake

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"pdrouter/metadata"
)

// The errors of Registry.Wait that callers branch on, and those that a Func wraps to say why it failed.
var (
	// ErrForgotten says that the engine restarted or was removed while its handshake ran.
	ErrForgotten = errors.New("forgotten")
	// ErrBusy says that too many handshakes are queued already.
	ErrBusy = errors.New("too many handshakes")
	// ErrClosed says that the registry was closed.
	ErrClosed = errors.New("closed")
	// ErrUnreachable says that an engine took no connection, or broke it.
	ErrUnreachable = errors.New("unreachable")
	// ErrRefused says that an engine answered a handshake with an error.
	ErrRefused = errors.New("refused")
)

// Func makes one pair usable. It is called off every request's path, at most once at a time per pair, and must
// return soon after ctx ends.
type Func func(ctx context.Context, pair metadata.Pair) error

// Config bounds the handshakes of a registry. Of either bound on what is in flight a quarter, at least one where
// there is more than one, is kept for pairs that callers wait for.
type Config struct {
	Timeout     time.Duration `yaml:"timeout"`     // of one handshake; default 30s
	Concurrency int           `yaml:"concurrency"` // handshakes in flight at once; default 16
	PerEngine   int           `yaml:"per_engine"`  // handshakes in flight at once with one engine; default 4
	Queue       int           `yaml:"queue"`       // handshakes waiting for their turn; default 65536
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.Concurrency = cmp.Or(c.Concurrency, 16)
	c.PerEngine = cmp.Or(c.PerEngine, 4)
	c.Queue = cmp.Or(c.Queue, 65536)
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c Config) Validate() error {
	var errs []error
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout is %v; want more than 0", c.Timeout))
	}
	if c.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("concurrency is %d; want more than 0", c.Concurrency))
	}
	if c.PerEngine < 0 {
		errs = append(errs, fmt.Errorf("per_engine is %d; want more than 0", c.PerEngine))
	}
	if c.Queue < 0 {
		errs = append(errs, fmt.Errorf("queue is %d; want more than 0", c.Queue))
	}
	return errors.Join(errs...)
}

// Registry remembers which pairs of engines have shaken hands, and shakes hands for the others: one background job per
// pair however many callers wait for it. A bounded number run at a time, in all and with each engine: first those that
// most callers wait for, then the heaviest, then the oldest. A failed handshake is told to all that wait and forgotten,
// so that the next caller starts afresh. It is safe for concurrent use.
type Registry struct {
	cfg   Config
	shake Func
	ready *readySet

	running sync.WaitGroup
	mu      sync.Mutex
	closed  bool
	jobs    map[metadata.Pair]*job // queued, held back and in flight
	ending  map[metadata.Pair]*job // forgotten, and not yet returned
	held    int                    // of jobs: held back until one of ending has returned
	queue   shakeQueue
	stats   Stats
	seq     uint64 // grows by one per job
	turn    uint64 // grows by one per released waiter
}

type waiter struct {
	done chan error // one value
	turn uint64     // when it was released; written before done
	job  *job       // that it waits for; nil if it never had to
	at   *list.Element
}

// New returns an empty registry. Close ends it.
func New(cfg Config, shake Func) (*Registry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("metadata: pairs: %w", err)
	}
	if shake == nil {
		return nil, errors.New("metadata: pairs: no handshake function")
	}
	cfg = cfg.withDefaults()
	return &Registry{
		cfg: cfg, shake: shake, ready: newReadySet(), jobs: map[metadata.Pair]*job{}, ending: map[metadata.Pair]*job{},
		queue: shakeQueue{total: cfg.Concurrency, perEngine: cfg.PerEngine, lines: map[string]*line{}},
	}, nil
}

// Ready reports whether the pair has shaken hands. It takes no lock and allocates nothing.
func (p *Registry) Ready(pair metadata.Pair) bool { return p.ready.has(pair) }

// Wait returns nil as soon as the pair has shaken hands, starting a handshake if none is under way. It returns the
// handshake's error if that fails, and ctx's error if ctx ends first: the handshake then goes on for others.
// Callers parked for one pair are released in the order they came.
func (p *Registry) Wait(ctx context.Context, pair metadata.Pair) error {
	if p.Ready(pair) {
		return nil
	}
	w := &waiter{done: make(chan error, 1)}
	if err := p.park(pair, w, 0); err != nil {
		return err
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	if p.leave(w) {
		return fmt.Errorf("metadata: pair %v: %w", pair, ctx.Err())
	}
	return <-w.done // it was told meanwhile
}

// Start begins a handshake for the pair unless it is ready or in flight, and does not wait for it. One that is queued
// gets the new weight: of those that nobody waits for the heaviest begins first. It returns ErrBusy if too many are
// queued.
func (p *Registry) Start(pair metadata.Pair, weight int) error {
	if p.Ready(pair) {
		return nil
	}
	return p.park(pair, nil, weight)
}

// park adds w, if any, to the pair's job, which it makes if need be.
func (p *Registry) park(pair metadata.Pair, w *waiter, weight int) error {
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
		if p.queue.n >= p.cfg.Queue && !p.displaceLocked(w) {
			if w != nil {
				p.stats.Failed[FailedBusy]++
			}
			return fmt.Errorf("metadata: pair %v: %w", pair, ErrBusy)
		}
		j = p.newJobLocked(pair, weight)
	}
	switch {
	case w != nil:
		p.queue.change(j, func() { w.job, w.at = j, j.waiters.PushBack(w) })
		p.stats.Waiting++
	case j.weight != weight:
		p.queue.change(j, func() { j.weight = weight })
	}
	p.beginLocked()
	return nil
}

// newJobLocked queues a handshake, or holds it back if one of the same pair has yet to return.
func (p *Registry) newJobLocked(pair metadata.Pair, weight int) *job {
	p.seq++
	j := &job{pair: pair, weight: weight, seq: p.seq}
	p.jobs[pair] = j
	p.queue.join(j)
	if old := p.ending[pair]; old != nil {
		old.then = j
		p.held++
		return j
	}
	p.queue.push(j)
	return j
}

// displaceLocked makes room in the queue for a waiter by dropping the last of those that nobody waits for.
func (p *Registry) displaceLocked(w *waiter) bool {
	if w == nil {
		return false
	}
	last := p.queue.last()
	if last == nil {
		return false
	}
	p.queue.remove(last)
	p.queue.leave(last)
	delete(p.jobs, last.pair)
	return true
}

// leave takes a waiter whose context has ended off its job. It reports false if it was told already.
func (p *Registry) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := w.job
	if j == nil || p.jobs[j.pair] != j {
		return false
	}
	p.queue.change(j, func() { j.waiters.Remove(w.at) })
	p.stats.Waiting--
	return true
}

// beginLocked starts queued jobs while there is room.
func (p *Registry) beginLocked() {
	for j := p.queue.next(); j != nil; j = p.queue.next() {
		var ctx context.Context
		ctx, j.cancel = context.WithTimeout(context.Background(), p.cfg.Timeout)
		j.begun = time.Now()
		p.running.Go(func() { p.run(ctx, j) })
	}
}

func (p *Registry) run(ctx context.Context, j *job) {
	err := p.shake(ctx, j.pair)
	if err != nil {
		if late := ctx.Err(); errors.Is(late, context.DeadlineExceeded) && !errors.Is(err, late) {
			err = fmt.Errorf("%w: %w", late, err)
		}
		err = fmt.Errorf("metadata: pair %v: handshake: %w", j.pair, err)
	}
	j.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Took.note(time.Since(j.begun))
	p.queue.done(j)
	p.queue.leave(j)
	if p.jobs[j.pair] == j {
		p.endLocked(j, err)
	} else { // forgotten meanwhile, and already counted and told
		delete(p.ending, j.pair)
		if j.then != nil {
			p.held--
			p.queue.push(j.then)
		}
	}
	p.beginLocked()
}

// endLocked takes the job out of the books and tells all that wait for it.
func (p *Registry) endLocked(j *job, err error) {
	delete(p.jobs, j.pair)
	if err == nil {
		p.stats.Done++
		p.ready.addLocked(j.pair)
	} else {
		p.stats.Failed[failureOf(err)]++
	}
	for at := j.waiters.Front(); at != nil; at = at.Next() {
		w := at.Value.(*waiter)
		p.turn++
		w.turn = p.turn
		w.done <- err // never blocks: one value, room for one
	}
	p.stats.Waiting -= j.waiters.Len()
}

// Forget drops all that is known of an engine, on either side of a pair. Handshakes with it end, and their waiters
// get ErrForgotten.
func (p *Registry) Forget(engine string) {
	p.forget(func(pair metadata.Pair) bool { return pair.Prefill.Engine == engine || pair.Decode.Engine == engine })
}

// Retire drops all that is known of other runs of an engine, on either side of a pair, as Forget does.
func (p *Registry) Retire(run metadata.Incarnation) {
	old := func(i metadata.Incarnation) bool { return i.Engine == run.Engine && i != run }
	p.forget(func(pair metadata.Pair) bool { return old(pair.Prefill) || old(pair.Decode) })
}

// ForgetPair drops one pair, as after a transfer that failed on what the handshake had set up.
func (p *Registry) ForgetPair(pair metadata.Pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready.removeLocked(pair)
	if j := p.jobs[pair]; j != nil {
		p.dropJobLocked(j, ErrForgotten)
	}
	p.beginLocked()
}

func (p *Registry) forget(match func(metadata.Pair) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(match, ErrForgotten)
	p.beginLocked()
}

func (p *Registry) dropLocked(match func(metadata.Pair) bool, why error) {
	p.ready.dropLocked(match)
	for pair, j := range p.jobs {
		if match(pair) {
			p.dropJobLocked(j, why)
		}
	}
}

// dropJobLocked ends a job before its time. What runs is told to return, and until it has, no other handshake of the
// pair begins.
func (p *Registry) dropJobLocked(j *job, why error) {
	switch {
	case j.cancel != nil:
		j.cancel()
		p.ending[j.pair] = j
	case j.in != nil:
		p.queue.remove(j)
		p.queue.leave(j)
	default:
		p.ending[j.pair].then = nil
		p.held--
		p.queue.leave(j)
	}
	p.endLocked(j, fmt.Errorf("metadata: pair %v: %w", j.pair, why))
}

// Stats returns what the registry does and did.
func (p *Registry) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Ready, s.Queued, s.InFlight = p.ready.n, p.queue.n+p.held, p.queue.inFlight
	return s
}

// Close ends all handshakes, tells all that wait ErrClosed, and returns when every handshake function has returned.
// It is safe to call twice.
func (p *Registry) Close() {
	p.mu.Lock()
	p.closed = true
	p.dropLocked(func(metadata.Pair) bool { return true }, ErrClosed)
	p.mu.Unlock()
	p.running.Wait()
}
