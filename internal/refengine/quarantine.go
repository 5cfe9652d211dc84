package refengine

import (
	"errors"
	"slices"
	"time"

	"pdrouter/kvplane/agent"
	"pdrouter/metadata"
)

// suspects sums up what is in quarantine, by peer, but for what no rebuild frees: its peer may run on this host, and
// only the proof of its death helps.
func (e *Engine) suspects() map[metadata.Incarnation]agent.HeldBlocks {
	out := map[metadata.Incarnation]agent.HeldBlocks{}
	for _, t := range e.transfers {
		if t.stopped.IsZero() || t.judged {
			continue
		}
		peer := t.seq.req.Handoff.Peer
		k := out[peer]
		k.Blocks += len(t.blocks)
		if k.Since.IsZero() || t.stopped.Before(k.Since) {
			k.Since = t.stopped
		}
		out[peer] = k
	}
	return out
}

// watch looks at the quarantine again and again while there is one.
func (e *Engine) watch() {
	if e.watching {
		return
	}
	e.watching = true
	time.AfterFunc(e.cfg.Plane.Quarantine.Every(), func() {
		e.post(func() {
			e.watching = false
			e.inspect()
		})
	})
}

// inspect asks for a rebuild where a peer keeps too much for too long.
func (e *Engine) inspect() {
	found := e.suspects()
	due := e.crowded.Due(e.cfg.Plane.Quarantine, time.Now(), e.cfg.Blocks, found)
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
			if !errors.Is(err, agent.ErrTooSoon) {
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
