// Package shared is what gateways tell each other through Redis: small facts that each has a lease, such as which engine
// holds a response. Facts are for many keys that few ask for, a Board is for few that everybody knows. Neither is a lock or
// a record of truth: a fact may be lost with the Redis that had it, and known a moment later elsewhere than here. Package
// main gives them to the parts that declare what they need. Nothing here waits for Redis but Facts.Get and Facts.Await, for a
// bounded time. Whoever can write to Redis can have facts be lost; where there is a Signer, he cannot make any.
package shared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"pdrouter/internal/redisdb"
)

const (
	// mostFacts bounds the local copy, and mostWaiting what is to be written.
	mostFacts   = 1 << 16
	mostWaiting = 1 << 14
	// mostReads is how many reads may be out at once: whoever asks for keys that are not there must not fill the pool.
	mostReads = 64
	// readWithin bounds the wait for a key that is not known here.
	readWithin = 250 * time.Millisecond
	// awaitWithin bounds the wait of an answer for its fact to be written.
	awaitWithin = 250 * time.Millisecond
	// writeWithin bounds one round of writes, and batch is how many are in one.
	writeWithin = 2 * time.Second
	batch       = 256
	// longestWait is between two tries of a write that fails.
	longestWait = 5 * time.Second
)

// ErrUnknown is the error of a Get that could not ask the other gateways' facts.
var ErrUnknown = errors.New("shared: whether there is such a fact is not known")

// Facts are values under keys. They are safe for concurrent use.
type Facts struct {
	db     redisdb.Client // nil: facts are this process's own
	prefix string
	log    *slog.Logger
	seals  seals
	reads  chan struct{}
	wake   chan struct{} // has room for one: there is something to write

	mu      sync.Mutex
	copy    leased
	waiting map[string]fact          // to be written, the latest of each key
	awaited map[string]chan struct{} // of those: closed once it is written

	failures, dropped, late atomic.Uint64
	behind                  atomic.Bool
}

// FactsStats is what Facts have counted.
type FactsStats struct {
	Known    int    // in the local copy
	Waiting  int    // to be written
	Failures uint64 // reads and rounds of writes that failed
	Dropped  uint64 // facts that other gateways will not know: too many were waiting, or there is no key to sign them with
	Late     uint64 // answers that did not wait any longer for their fact to be written
	Refused  uint64 // facts that were ignored because no gateway had signed them so
	Behind   bool   // the last write failed
}

// NewFacts returns facts that are shared under keys that begin with prefix and name, while Run runs. With db nil they are
// this process's own, and Run does nothing. With a signer, which may be nil, what no gateway has signed is ignored.
func NewFacts(db redisdb.Client, prefix, name string, signer Signer, log *slog.Logger) *Facts {
	return newFacts(db, prefix+":"+name+":", signer, log, mostFacts)
}

func newFacts(db redisdb.Client, prefix string, signer Signer, log *slog.Logger, most int) *Facts {
	return &Facts{db: db, prefix: prefix, log: log, seals: seals{signer: signer, log: log}, reads: make(chan struct{}, mostReads),
		wake: make(chan struct{}, 1), copy: newLeased(most), waiting: map[string]fact{}, awaited: map[string]chan struct{}{}}
}

// Put enters a fact for as long as the lease. It is known here at once, and elsewhere a moment later. value is not copied.
func (f *Facts) Put(key string, value []byte, lease time.Duration) {
	now := time.Now()
	it := fact{value: value, until: now.Add(lease), at: now.UnixNano()}
	f.mu.Lock()
	f.copy.put(key, it)
	_, again := f.waiting[key]
	full := f.db != nil && !again && len(f.waiting) >= mostWaiting
	if f.db != nil && !full {
		f.waiting[key] = it
	}
	f.mu.Unlock()
	switch {
	case full:
		f.dropped.Add(1)
	case f.db != nil:
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// Await waits until what was last put under the key is with the other gateways, for no longer than a quarter of a second, and
// not at all while Redis takes nothing: then it is written later.
func (f *Facts) Await(key string) {
	f.mu.Lock()
	if _, ok := f.waiting[key]; !ok {
		f.mu.Unlock()
		return
	}
	written := f.awaited[key]
	if written == nil {
		written = make(chan struct{})
		f.awaited[key] = written
	}
	f.mu.Unlock()
	if f.behind.Load() {
		f.late.Add(1)
		return
	}
	late := time.NewTimer(awaitWithin)
	defer late.Stop()
	select {
	case <-written:
	case <-late.C:
		f.late.Add(1)
	}
}

// Get returns a fact: from the local copy, or, if it is not there, as the other gateways have it, for which it waits no
// longer than a quarter of a second. The value must not be changed. ErrUnknown is wrapped where nobody could be asked.
func (f *Facts) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	now := time.Now()
	f.mu.Lock()
	it, ok := f.copy.get(key, now)
	f.mu.Unlock()
	if ok || f.db == nil {
		return it.value, ok, nil
	}
	select {
	case f.reads <- struct{}{}:
		defer func() { <-f.reads }()
	default:
		return nil, false, fmt.Errorf("%w: %d others are being asked for", ErrUnknown, mostReads)
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	pipe := f.db.Pipeline()
	got, left := pipe.Get(ctx, f.prefix+key), pipe.PTTL(ctx, f.prefix+key)
	_, _ = pipe.Exec(ctx) // each command has its own error
	value, err = got.Bytes()
	switch lease := left.Val(); {
	case errors.Is(err, redis.Nil):
		return nil, false, nil
	case err != nil:
		f.failures.Add(1)
		return nil, false, fmt.Errorf("%w: %w", ErrUnknown, err)
	default:
		if it, err = f.seals.open(f.prefix+key, value, now, max(lease, 0)); err != nil {
			f.seals.refuse(f.prefix+key, err)
			return nil, false, nil
		}
	}
	f.mu.Lock()
	f.copy.put(key, it)
	f.mu.Unlock()
	return it.value, true, nil
}

// Run writes what was put until ctx ends, and then, for a moment, what is still to be written. What Redis does not take is
// written once it does, as long as it is not too much.
func (f *Facts) Run(ctx context.Context) error {
	if f.db == nil {
		<-ctx.Done()
		return nil
	}
	for wait := 50 * time.Millisecond; ; {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeWithin)
			defer cancel()
			_ = f.writeAll(last)
			return nil
		case <-f.wake:
		}
		err := f.writeAll(ctx)
		for err != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				wait = min(2*wait, longestWait)
				err = f.writeAll(ctx)
			}
		}
		wait = 50 * time.Millisecond
	}
}

// writeAll writes until nothing waits, or a round fails.
func (f *Facts) writeAll(ctx context.Context) error {
	for {
		round := f.take()
		if len(round) == 0 {
			return nil
		}
		failed := f.write(ctx, round)
		if failed == nil {
			if f.behind.Swap(false) {
				f.log.Info("facts are shared with the other gateways again")
			}
			continue
		}
		f.failures.Add(1)
		if !f.behind.Swap(true) {
			f.log.Warn("facts are not shared with the other gateways", "err", failed)
		}
		return failed
	}
}

// take returns facts that are to be written. They stay among those that wait until write has written them.
func (f *Facts) take() map[string]fact {
	f.mu.Lock()
	defer f.mu.Unlock()
	round := make(map[string]fact, min(len(f.waiting), batch))
	for key, it := range f.waiting {
		if len(round) == batch {
			break
		}
		round[key] = it
	}
	return round
}

func (f *Facts) write(ctx context.Context, round map[string]fact) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	now := time.Now()
	pipe := f.db.Pipeline()
	for key, it := range round {
		value, err := f.seals.close(f.prefix+key, it)
		if err != nil {
			f.dropped.Add(1)
			f.seals.refuse(f.prefix+key, err)
			continue
		}
		if lease := it.until.Sub(now); lease >= time.Millisecond {
			pipe.Set(ctx, f.prefix+key, value, lease)
		}
	}
	if pipe.Len() > 0 {
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("shared: redis: %w", err)
		}
	}
	f.mu.Lock()
	for key, it := range round {
		if f.waiting[key].until.Equal(it.until) { // else it was put again meanwhile
			delete(f.waiting, key)
			if written := f.awaited[key]; written != nil {
				close(written)
				delete(f.awaited, key)
			}
		}
	}
	f.mu.Unlock()
	return nil
}

// Stats returns what was counted.
func (f *Facts) Stats() FactsStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return FactsStats{Known: f.copy.len(), Waiting: len(f.waiting), Failures: f.failures.Load(), Dropped: f.dropped.Load(), Late: f.late.Load(),
		Refused: f.seals.refused.Load(), Behind: f.behind.Load()}
}
