package limits

import (
	"context"
	"errors"
	"time"

	"pdrouter/internal/outage"
)

const (
	// period is how often gateways exchange what they have counted.
	period = 100 * time.Millisecond
	// beat is how often a gateway repeats how many requests it has under way, and keep how long others believe it: one that
	// has died is forgotten then.
	beat = time.Second
	keep = 3 * time.Second
	// patience bounds one exchange, and longestWait the time between two while they fail.
	patience    = 500 * time.Millisecond
	longestWait = 2 * time.Second
	// outageAfter is how long exchanges fail until gateways no longer add up what they have counted alone.
	outageAfter = time.Second
	// batch is how many tenants are told of in one exchange.
	batch = 512
)

// exchange brings together what gateways have counted.
type exchange interface {
	// swap tells what each report says and fills in what all gateways have counted by then, and known. A report that it could
	// not tell, or of which it does not know whether it did, stays unknown: it may be told again, and counts once.
	swap(ctx context.Context, reports []report) error
}

// report is what one gateway says of one tenant, and what it is answered.
type report struct {
	t    *tenant
	key  string
	from string

	sum, taken [buckets]time.Duration
	seen       [buckets]time.Duration // the gateway's own owed
	mine       load
	// lost says that there was an outage. What was counted alone is not added then: all gateways admitted a whole limit each,
	// and adding that up would lock the tenant out for as long as the outage has lasted. The largest count holds.
	lost bool

	known  bool
	owed   [buckets]time.Duration
	others load
}

// Run exchanges counts with other gateways until ctx ends, and then once more, so that nothing is lost with this gateway. It
// also forgets tenants of which there is nothing to remember. It returns nil.
func (l *Limiter) Run(ctx context.Context) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	var wait time.Duration // more than the period, while exchanges fail
	var next, swept time.Time
	var out outage.Outage
	for {
		select {
		case <-ctx.Done():
			_, _ = l.swapAll(context.WithoutCancel(ctx)) // counted, and nobody is left to try again
			return nil
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(swept) >= beat {
			swept = now
			l.sweep(now)
		}
		if l.shared == nil || now.Before(next) {
			continue
		}
		told, err := l.swapAll(ctx)
		switch {
		case err == nil:
			wait = 0
			if told > 0 { // nothing to tell says nothing of the exchange
				l.behind.Store(false)
				out.Over(l.log, "limits: gateways count together again")
			}
		case ctx.Err() == nil:
			if wait = min(max(2*wait, period), longestWait); told > 0 { // a part of a cluster is down: the rest goes on
				wait = 0
			}
			next = time.Now().Add(wait)
			l.behind.Store(true)
			out.Failed(l.log, "limits: usage is not exchanged; requests go on, and each gateway counts alone", err)
		}
	}
}

// swapAll tells of all tenants that have changed, and returns of how many it could.
func (l *Limiter) swapAll(ctx context.Context) (told int, failed error) {
	reports := l.collect()
	unreachable := false
	for len(reports) > 0 {
		now := reports[:min(batch, len(reports))]
		reports = reports[len(now):]
		if !unreachable { // it is no use to wait for each batch in vain
			limited, cancel := context.WithTimeout(ctx, patience)
			err := l.shared.swap(limited, now)
			cancel()
			known := count(now)
			told += known
			if err != nil {
				l.failures.Add(1)
				failed = errors.Join(failed, err)
				var refusal interface{ RedisError() } // it answers, so the next batch may fare better
				unreachable = known == 0 && !errors.As(err, &refusal)
			}
		}
		l.apply(now)
	}
	return told, failed
}

func count(reports []report) (known int) {
	for i := range reports {
		if reports[i].known {
			known++
		}
	}
	return known
}

// collect empties the lists of what has changed.
func (l *Limiter) collect() []report {
	var out []report
	now := time.Since(l.began)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for _, t := range s.dirty {
			t.dirty, t.told = false, now
			if l.shared == nil {
				continue
			}
			t.refillLocked(now)
			out = append(out, report{
				t: t, key: t.key, from: t.from, sum: t.sum, taken: t.taken,
				seen: [buckets]time.Duration{t.all[requests].owed, t.all[tokens].owed},
				mine: load{t.inFlight, t.all[tokens].reserved},
				lost: t.lost > 0 && now-t.lost > outageAfter,
			})
		}
		clear(s.dirty)
		s.dirty = s.dirty[:0]
		s.mu.Unlock()
	}
	return out
}

// apply takes in what the exchange has answered.
func (l *Limiter) apply(reports []report) {
	now := time.Since(l.began)
	for i := range reports {
		r := &reports[i]
		t := r.t
		t.shard.mu.Lock()
		if r.known {
			t.taken, t.lost = r.sum, 0
			t.refillLocked(now)
			for b := range t.all {
				t.all[b].owed = r.owed[b] + t.sum[b] - r.sum[b] // with what was charged since it was told
			}
			t.others, t.othersUntil = r.others, now+keep
		} else {
			if t.lost == 0 {
				t.lost = now
			}
			t.touchLocked()
		}
		t.shard.mu.Unlock()
	}
}

// sweep forgets drained tenants, and has those told of again whose requests under way others would forget.
func (l *Limiter) sweep(at time.Time) {
	now := at.Sub(l.began)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for name, t := range s.tenants {
			t.refillLocked(now)
			switch {
			case t.drainedLocked(now) && (!t.dirty || t.lost > 0):
				s.forgetLocked(name, t)
			case t.inFlight > 0 && now-t.told >= beat:
				t.touchLocked()
			}
		}
		if l.shared == nil {
			for _, t := range s.dirty {
				t.dirty = false
			}
			clear(s.dirty)
			s.dirty = s.dirty[:0]
		}
		s.mu.Unlock()
	}
}

// forgetLocked drops a tenant.
func (s *shard) forgetLocked(name string, t *tenant) {
	delete(s.tenants, name)
	if t.dirty {
		for i, other := range s.dirty {
			if other == t {
				last := len(s.dirty) - 1
				s.dirty[i], s.dirty[last] = s.dirty[last], nil
				s.dirty = s.dirty[:last]
				return
			}
		}
	}
}
