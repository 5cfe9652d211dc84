package refengine

import (
	"errors"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// Quarantine says how much of the cache a silent peer may keep in quarantine, and for how long. Beyond that the ranks
// that wait for it are rebuilt, which nothing lands through any more. Nothing is freed on time alone.
type Quarantine struct {
	Share float64       // of the blocks, for one peer; default 0.05
	Grace time.Duration // how long that much may be in quarantine; default 5 s
	Age   time.Duration // how long any block may be; default 60 s
}

func (q Quarantine) withDefaults() Quarantine {
	if q.Share <= 0 {
		q.Share = 0.05
	}
	if q.Grace <= 0 {
		q.Grace = 5 * time.Second
	}
	if q.Age <= 0 {
		q.Age = time.Minute
	}
	return q
}

// suspect is a peer for which blocks are in quarantine.
type suspect struct {
	blocks int
	oldest time.Time
}

// suspects sums up what is in quarantine, by peer, but for what no rebuild frees: its peer may run on this host, and
// only the proof of its death helps.
func (e *Engine) suspects() map[metadata.Incarnation]suspect {
	out := map[metadata.Incarnation]suspect{}
	for _, t := range e.transfers {
		if t.stopped.IsZero() || t.judged {
			continue
		}
		peer := t.seq.req.Handoff.Peer
		s := out[peer]
		s.blocks += len(t.blocks)
		if s.oldest.IsZero() || t.stopped.Before(s.oldest) {
			s.oldest = t.stopped
		}
		out[peer] = s
	}
	return out
}

// watch looks at the quarantine again and again while there is one.
func (e *Engine) watch() {
	if e.watching {
		return
	}
	e.watching = true
	q := e.cfg.Plane.Quarantine
	time.AfterFunc(min(q.Grace, q.Age)/4, func() {
		e.post(func() {
			e.watching = false
			e.inspect()
		})
	})
}

// inspect asks for a rebuild where a peer keeps too much for too long.
func (e *Engine) inspect() {
	q, now := e.cfg.Plane.Quarantine, time.Now()
	found := e.suspects()
	for peer := range e.crowded {
		if float64(found[peer].blocks) <= q.Share*float64(e.cfg.Blocks) {
			delete(e.crowded, peer)
		}
	}
	var due []metadata.Incarnation
	for peer, s := range found {
		if _, is := e.crowded[peer]; !is && float64(s.blocks) > q.Share*float64(e.cfg.Blocks) {
			e.crowded[peer] = now
		}
		since, is := e.crowded[peer]
		if is && now.Sub(since) >= q.Grace || now.Sub(s.oldest) >= q.Age {
			due = append(due, peer)
		}
	}
	if len(due) > 0 && !e.rebuilding {
		e.relieve(due)
	}
	if len(found) > 0 {
		e.watch()
	}
}

// relieve has the ranks rebuilt that wait for one of the peers. What has failed because of these by now is judged then;
// what fails on a rank meanwhile, or because of another peer, may need another rebuild.
func (e *Engine) relieve(peers []metadata.Incarnation) {
	e.tell() // that these transfers have failed, to every rank, before it is asked
	var failed []*transfer
	for _, t := range e.transfers {
		if !t.stopped.IsZero() && slices.Contains(peers, t.seq.req.Handoff.Peer) {
			failed = append(failed, t)
		}
	}
	e.rebuilding = true
	e.tasks.Go(func() {
		n, all := e.rebuild(peers)
		e.post(func() {
			e.rebuilding = false
			e.counts.rebuilds += uint64(n)
			if !all {
				return
			}
			for _, t := range failed {
				t.judged = true
			}
		})
	})
}

// rebuild gives every rank that waits for one of the peers, and that this helps, a new transport and publishes its new
// record. It returns how many there were, and whether these were all.
func (e *Engine) rebuild(peers []metadata.Incarnation) (n int, all bool) {
	all = true
	for i, a := range e.plane.agents {
		waiting := 0
		quarantined := a.Status().Quarantined
		for _, p := range peers {
			waiting += quarantined[p.ID()].Blocks - quarantined[p.ID()].Near
		}
		if waiting == 0 {
			continue
		}
		rank := a.Record().Rank.String()
		t, err := e.cfg.Plane.Transport(i)
		if err != nil {
			e.cfg.Log.Error("transport for a rebuild", "rank", rank, "err", err)
			all = false
			continue
		}
		rec, err := a.Rebuild(t)
		if err != nil {
			all = false
			if !errors.Is(err, kvplane.ErrTooSoon) {
				e.cfg.Log.Error("rebuild", "rank", rank, "err", err)
			}
			if err := t.Close(); err != nil {
				e.cfg.Log.Warn("transport that a rebuild did not take", "rank", rank, "err", err)
			}
			continue
		}
		n++
		e.cfg.Log.Warn("rank rebuilt: silent peers kept blocks in quarantine", "rank", rank, "blocks", waiting)
		if e.cfg.Plane.Republish != nil {
			e.cfg.Plane.Republish(rec)
		}
	}
	return n, all
}
