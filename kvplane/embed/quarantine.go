package embed

import (
	"errors"
	"time"

	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/transport"
)

// watch looks at the quarantine while there is one.
func (r *Rank) watch() {
	q := r.cfg.Quarantine
	tick := time.NewTicker(q.Every())
	defer tick.Stop()
	var suspects agent.RebuildCandidates[string]
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
		if len(suspects.Due(q, time.Now(), r.blocks(), keptBy(kept))) > 0 {
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

// keptBy is what peers keep that a rebuild would free.
func keptBy(quarantined map[string]agent.Quarantine) map[string]agent.HeldBlocks {
	out := map[string]agent.HeldBlocks{}
	for peer, q := range quarantined {
		if q.Blocks > q.Near {
			out[peer] = agent.HeldBlocks{Blocks: q.Blocks - q.Near, Since: time.Now().Add(-time.Duration(q.Seconds * float64(time.Second)))}
		}
	}
	return out
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
	t := r.transport.New()
	rec, err := r.agent.Rebuild(t)
	if err != nil {
		if !errors.Is(err, agent.ErrTooSoon) && !errors.Is(err, transport.ErrClosed) {
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
