package reclaim

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// Leaks counts KV that ended requests have leaked: what is still held, by which engine and why, and what was freed. It is safe for
// concurrent use; the zero value is empty.
type Leaks struct {
	mu       sync.Mutex
	held     map[heldBy]int // blocks
	freed    map[Freed]uint64
	barriers map[barrierKey]*barrier

	Requests atomic.Uint64 // requests that have leaked KV
}

// heldBy is whose blocks are held, why, and until when.
type heldBy struct {
	engine     *fleet.Engine
	generation uint64 // of that run: with the next one its blocks are free
	why        Cause
	until      int64 // Unix seconds at which the engine's own lease ends; 0: never
}

// Cause says why KV stays held.
type Cause uint8

const (
	CauseNone        Cause = iota
	CauseNoAgent           // the gateway has no agent of its own
	CauseNames             // decode draws ids of its own for requests: request_id_randomization_disabled is not set
	CauseChannel           // decode's side channel is not configured, or has not answered
	CauseUnproven          // prefill cannot be asked again, and whether its run is over is not shown
	CauseNoBarrier         // decode completed no later request in time
	CauseReading           // decode may be reading
	CauseNoAnswer          // prefill may have finished, but has not said what it holds
	CauseNotNotified       // the engine could not be notified
	CauseBusy              // too many jobs run in the background already
	CauseUnbegun           // it is not known whether decode had begun with the request, and only then may it be notified
	CausePossible          // it may be held; nothing shows it
	causes
)

func (s Cause) String() string {
	return [...]string{
		"", "no_agent", "random_request_ids", "no_side_channel", "prefill_unproven", "unfenced", "may_read",
		"no_answer", "not_told", "too_many", "not_begun", "may_hold",
	}[s]
}

// For how long stock engines hold KV by themselves: their defaults.
const (
	forever      = 0
	prefillLease = 30 * time.Second       // that no decode engine takes
	pinnedFor    = config.PinnedByDefault // of an answer, for the next turn
)

// Add counts blocks that stay held, for as long as the engine's own lease is.
func (l *Leaks) Add(e *fleet.Engine, why Cause, blocks int, lease time.Duration, now time.Time) {
	l.add(e, why, blocks, lease, now)
}

func (l *Leaks) add(e *fleet.Engine, why Cause, blocks int, lease time.Duration, now time.Time) heldBy {
	key := heldBy{engine: e, generation: e.Generation.Load(), why: why}
	if lease != forever {
		key.until = now.Add(lease).Unix()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pruneLocked(now)
	if l.held == nil {
		l.held = make(map[heldBy]int)
	}
	l.held[key] += blocks
	return key
}

// holds reports whether blocks that were added are still held.
func (l *Leaks) holds(key heldBy, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pruneLocked(now)
	return l.held[key] > 0
}

// remove notes that so many blocks that were added are free.
func (l *Leaks) remove(key heldBy, blocks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[key] -= blocks; l.held[key] <= 0 {
		delete(l.held, key)
	}
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

// reclaimed counts KV that was freed.
func (l *Leaks) reclaimed(ending, by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.freed == nil {
		l.freed = make(map[Freed]uint64)
	}
	l.freed[Freed{Ending: ending, By: by}]++
}

// Blocked returns how many blocks an engine surely holds for ended requests, by cause; nil if there are none.
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

// Possible returns how many blocks an engine may hold for ended requests, which nothing has shown yet.
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

// Blocks returns how many blocks an engine holds, or may hold, for ended requests.
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

// AtMost notes that an engine holds no more than so many blocks, for any request, unless what it is said to hold has become more than
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

// Freed counts leaked KV that was freed: how the hand-off ended, and what freed it.
type Freed struct {
	Ending string // prefill_lost, prefill_restarted, prefill_waits, not_taken, nothing_handed_off, answered
	By     string // asked_again, notify_prefill, notify_decode, decode_leg, restart
	Count  uint64
}

// Freed returns what was freed since the start, in order.
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

// CountLeak counts KV that an engine keeps for a request that is over, until a lease ends or for good.
func (r *Reclaimer) CountLeak(ctx context.Context, m *Job, holder *fleet.Engine, why Cause) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	r.addLeak(m, holder, why, blockTokens(ctx, m, holder))
}

// leakIf counts what prefill holds, or may hold.
func (r *Reclaimer) leakIf(ctx context.Context, m *Job, why Cause, d Certainty) {
	switch d {
	case Certain:
		r.CountLeak(ctx, m, m.Prefill, why)
	case Possible:
		r.CountLeak(ctx, m, m.Prefill, CausePossible)
	}
}

// addLeak counts the KV that one request has leaked. block is the tokens of one block.
func (r *Reclaimer) addLeak(m *Job, holder *fleet.Engine, why Cause, block int) {
	blocks := (max(m.Tokens, 1) + block - 1) / block
	lease := time.Duration(forever)
	switch {
	case holder == m.Prefill && m.Pinned:
		lease = pinnedFor
	case holder == m.Prefill:
		lease = prefillLease
	}
	r.Leaks.Add(holder, why, blocks, lease, time.Now())
	event, level := "blocks stay held", slog.LevelWarn
	if why == CausePossible {
		event, level = "blocks may stay held", slog.LevelInfo
	} else if !m.counted {
		m.counted = true
		r.Leaks.Requests.Add(1)
	}
	r.log.Log(context.Background(), level, event, "engine", holder.Name, "blocks", blocks, "why", why.String(), "leased", lease != forever,
		"transfer_id", m.Handoff.Transfer, "prefill", m.Prefill.Name, "decode", m.Decode.Name)
}

// defaultBlock is the tokens of one block of an engine that does not report it: stock vLLM's default.
const defaultBlock = 16

// blockTokens returns the tokens of one block of the engine.
func blockTokens(ctx context.Context, m *Job, e *fleet.Engine) int {
	recs := m.Snapshot.Fleet.Records(e)
	if len(recs) == 0 {
		recs = m.Snapshot.Fleet.Records(m.Prefill)
	}
	if n := recordedBlock(recs...); n > 0 {
		return n
	}
	if at, ok := e.SideChannel(nil); ok && m.Snapshot.Stock != nil {
		if rec, err := m.Snapshot.Stock.First(ctx, at); err == nil {
			return cmp.Or(recordedBlock(rec), defaultBlock)
		}
	}
	return defaultBlock
}

// recordedBlock returns the tokens of one block by the engine's metadata; 0 if that does not say.
func recordedBlock(recs ...metadata.Record) int {
	if len(recs) == 0 {
		return 0
	}
	return recs[0].Layout.BlockTokens
}
