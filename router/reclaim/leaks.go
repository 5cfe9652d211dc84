package reclaim

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/router/fleet"
)

// Leaks is what endings have left behind: what stays held, with whom and why, and what became of the rest. It is safe for
// concurrent use; the zero value is empty.
type Leaks struct {
	mu       sync.Mutex
	held     map[heldBy]int // blocks
	freed    map[Freed]uint64
	barriers map[barrierKey]*barrier

	Requests atomic.Uint64 // how many requests may have left KV behind
}

// heldBy is whose blocks are held, why, and until when.
type heldBy struct {
	engine     *fleet.Engine
	generation uint64 // of that run: with the next one its blocks are free
	why        Cause
	until      int64 // Unix seconds at which the engine's own lease ends; 0: never
}

// prefillLease is how long stock prefill engines hold what nobody takes: their default.
const prefillLease = 30 * time.Second

// Add enters blocks that stay held. leased says that the engine gives them up by itself.
func (l *Leaks) Add(e *fleet.Engine, why Cause, blocks int, leased bool, now time.Time) {
	key := heldBy{engine: e, generation: e.Generation.Load(), why: why}
	if leased {
		key.until = now.Add(prefillLease).Unix()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pruneLocked(now)
	if l.held == nil {
		l.held = make(map[heldBy]int)
	}
	l.held[key] += blocks
}

// pruneLocked drops what is over: leases that have ended, and runs.
func (l *Leaks) pruneLocked(now time.Time) {
	for k := range l.held {
		if k.until != 0 && k.until <= now.Unix() || k.generation != k.engine.Generation.Load() {
			delete(l.held, k)
		}
	}
}

// Restarted notes that an engine may be another run now, which holds nothing.
func (l *Leaks) Restarted(e *fleet.Engine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked(e)
}

func (l *Leaks) forgetLocked(e *fleet.Engine) {
	for k := range l.held {
		if k.engine == e {
			delete(l.held, k)
		}
	}
}

// reclaimed counts what came free.
func (l *Leaks) reclaimed(ending, by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.freed == nil {
		l.freed = make(map[Freed]uint64)
	}
	l.freed[Freed{Ending: ending, By: by}]++
}

// Blocked returns how many blocks an engine is known to hold for nobody, by why; nil if there are none.
func (l *Leaks) Blocked(e *fleet.Engine, now time.Time) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pruneLocked(now)
	var out map[string]int
	for k, n := range l.held {
		if k.engine == e && k.why != CausePossible {
			if out == nil {
				out = make(map[string]int)
			}
			out[k.why.String()] += n
		}
	}
	return out
}

// Possible returns how many blocks an engine may hold for nobody, which nothing has shown yet.
func (l *Leaks) Possible(e *fleet.Engine, now time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pruneLocked(now)
	for k, some := range l.held {
		if k.engine == e && k.why == CausePossible {
			n += some
		}
	}
	return n
}

// Blocks returns how many blocks an engine holds for nobody, or may hold.
func (l *Leaks) Blocks(e *fleet.Engine, now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocksLocked(e, now)
}

func (l *Leaks) blocksLocked(e *fleet.Engine, now time.Time) (n int) {
	l.pruneLocked(now)
	for k, some := range l.held {
		if k.engine == e {
			n += some
		}
	}
	return n
}

// AtMost notes that an engine holds no more than so many blocks, whoever has them, unless what it is said to hold has become more than
// said: if there are none nothing is held, and else no more may be held than there are. It returns how many it is said no more to hold.
func (l *Leaks) AtMost(e *fleet.Engine, said, blocks int, now time.Time) (freed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocksLocked(e, now) > said {
		return 0
	}
	rest := blocks
	for k, n := range l.held {
		if k.engine != e || k.why != CausePossible && blocks > 0 {
			continue
		}
		keep := min(n, rest)
		rest -= keep
		freed += n - keep
		if l.held[k] = keep; keep == 0 {
			delete(l.held, k)
		}
	}
	return freed
}

// Freed counts KV that an ending had left behind and that came free: how it ended, and what freed it.
type Freed struct {
	Ending string // prefill_lost, prefill_restarted, prefill_waits, not_taken, nothing_handed_off
	By     string // asked_again, notify_prefill, notify_decode, decode_leg, restart
	Count  uint64
}

// Freed returns what came free by now, in order.
func (l *Leaks) Freed() []Freed {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Freed, 0, len(l.freed))
	for k, n := range l.freed {
		k.Count = n
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Freed) int {
		return cmp.Or(strings.Compare(a.Ending, b.Ending), strings.Compare(a.By, b.By))
	})
	return out
}

// Drop forgets an engine that is of no configuration any more.
func (l *Leaks) Drop(e *fleet.Engine) {
	l.Restarted(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	for of := range l.barriers {
		if of.at == e || of.prefill == e {
			delete(l.barriers, of)
		}
	}
}

// barrier returns the barrier of that name.
func (l *Leaks) barrier(of barrierKey) *barrier {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.barriers == nil {
		l.barriers = make(map[barrierKey]*barrier)
	}
	f := l.barriers[of]
	if f == nil {
		f = new(barrier)
		l.barriers[of] = f
	}
	return f
}
