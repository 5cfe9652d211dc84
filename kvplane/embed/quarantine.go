package embed

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"pdrouter/kvplane"
)

// Quarantine says how much of the cache a silent peer may keep in quarantine, and for how long. Beyond that the rank is
// rebuilt, and nothing lands through its old agent any more. Nothing is freed on time alone.
type Quarantine struct {
	Share float64       `yaml:"share"` // of the blocks, for one peer; default 0.05
	Grace time.Duration `yaml:"grace"` // how long that much may be in quarantine; default 5s
	Age   time.Duration `yaml:"age"`   // how long any block may be; default 60s
}

func (q Quarantine) withDefaults() Quarantine {
	if q.Share == 0 {
		q.Share = 0.05
	}
	if q.Grace == 0 {
		q.Grace = 5 * time.Second
	}
	if q.Age == 0 {
		q.Age = time.Minute
	}
	return q
}

func (q Quarantine) validate() error {
	var errs []error
	if q.Share < 0 || q.Share > 1 {
		errs = append(errs, fmt.Errorf("quarantine.share is %v; want 0 to 1", q.Share))
	}
	if q.Grace < 0 || q.Age < 0 {
		errs = append(errs, fmt.Errorf("quarantine.grace is %v and age %v; want 0 or more", q.Grace, q.Age))
	}
	return errors.Join(errs...)
}

// due says whether a peer that keeps so much has had its time. crowded is how long it has kept more than its share, below
// 0 for not at all. What no rebuild frees does not count.
func (q Quarantine) due(kept kvplane.Quarantine, crowded time.Duration) bool {
	return kept.Blocks > kept.Near && (crowded >= q.Grace || kept.Seconds >= q.Age.Seconds())
}

// watch looks at the quarantine while there is one.
func (r *Rank) watch() {
	q := r.cfg.Quarantine
	tick := time.NewTicker(max(min(q.Grace, q.Age)/4, 10*time.Millisecond))
	defer tick.Stop()
	since := map[string]time.Time{} // peers that keep more than their share
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		agent := r.agent
		r.mu.Unlock()
		kept := agent.Status().Quarantined
		maps.DeleteFunc(since, func(peer string, _ time.Time) bool { return kept[peer].Blocks == 0 })
		rebuild := false
		for peer, k := range kept {
			crowded := time.Duration(-1)
			if float64(k.Blocks) > q.Share*float64(r.blocks()) {
				if since[peer].IsZero() {
					since[peer] = time.Now()
				}
				crowded = time.Since(since[peer])
			} else {
				delete(since, peer)
			}
			rebuild = rebuild || q.due(k, crowded)
		}
		if rebuild {
			r.rebuild()
		}
		r.mu.Lock()
		if len(kept) == 0 {
			r.watching = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
	}
}

// blocks returns how many logical blocks the cache has.
func (r *Rank) blocks() int {
	n := 0
	for _, m := range r.regions {
		n = max(n, m.Blocks/r.cfg.Cache.Physical)
	}
	return n
}

// rebuild gives the rank a new transport and publishes its new record.
func (r *Rank) rebuild() {
	t := r.transport.make()
	rec, err := r.agent.Rebuild(t)
	if err != nil {
		if !errors.Is(err, kvplane.ErrTooSoon) && !errors.Is(err, kvplane.ErrClosed) {
			r.log.Error("rebuild", "err", err)
		}
		if err := t.Close(); err != nil {
			r.log.Warn("transport that a rebuild did not take", "err", err)
		}
		return
	}
	if err := r.publisher.Replace(rec); err != nil {
		r.log.Error("record of the rebuilt rank", "err", err)
	}
	r.mu.Lock()
	r.rebuilds++
	r.mu.Unlock()
	r.tell(Result{Kind: Rebuilt, Text: "as " + rec.Agent})
}
