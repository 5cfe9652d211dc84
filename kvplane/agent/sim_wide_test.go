package agent

import (
	"math/rand/v2"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// widen draws what worlds have beside the plain ones, from a stream of its own: small tables, transports that are told
// of places, layouts that fit nobody, and the faults that have come later.
func (s *sim) widen() {
	r := rand.New(rand.NewPCG(s.opts.seed, 0x31de))
	s.wide = r
	for f := faultAges; f < simFaults; f++ {
		s.dice[f] = rand.New(rand.NewPCG(s.opts.seed, uint64(f)+1))
	}
	if s.opts.plain {
		return
	}
	if small := r.IntN(4) == 0; small || s.opts.tables {
		s.caps = core.Bounds{Early: 2 + r.IntN(7), Requests: 2 + r.IntN(7), Outgoing: 2 + r.IntN(7)}
	}
	s.prepares = r.IntN(2) == 0
	if r.IntN(8) == 0 {
		s.odd = r.IntN(4)
	}
	for f := faultAges; f < faultStep; f++ {
		if r.IntN(4) == 0 {
			s.weight[f] = [...]int{20, 60, 150}[r.IntN(3)]
		}
	}
	if s.caps != (core.Bounds{}) && r.IntN(2) == 0 { // what was refused comes again
		s.weight[faultDouble] = max(s.weight[faultDouble], 300)
		s.weight[faultDelay] = max(s.weight[faultDelay], 200)
	}
	if s.weight[faultBurst] > 0 {
		s.weight[faultBurst] = 500
	}
	if s.opts.direct {
		return
	}
	if r.IntN(3) == 0 {
		s.weight[faultStep] = [...]int{20, 60, 200, 500}[r.IntN(4)]
		s.hasty = r.IntN(2) == 0
	}
	if r.IntN(8) == 0 {
		s.weight[faultMiss] = [...]int{5, 20, 60}[r.IntN(3)]
	}
}

// hurry lets queued transfers lapse, and be forgotten, within a slow step: before the scheduler hears of it, it has
// ordered that they are expected.
func (s *sim) hurry() {
	if !s.hasty {
		return
	}
	s.times = kvplane.Times{Lease: 6 * time.Second, Wait: 1500 * time.Millisecond, Deadline: 3 * time.Second, Queue: 1500 * time.Millisecond}
	if !s.opts.without[faultQueue] {
		s.weight[faultQueue] = max(s.weight[faultQueue], 500)
	}
}

// bursts plans moments in which decode is sent more than it has room for, and announces it, while prefill may be slow.
func (s *sim) bursts() {
	if !s.strike(faultBurst) {
		return
	}
	s.at(s.extent(faultBurst, 8*time.Second), func() {
		d := s.dice[faultBurst]
		var p, to *simEngine
		for _, e := range s.engines {
			if e.role == metadata.Prefill && (p == nil || d.IntN(2) == 0) {
				p = e
			} else if e.role == metadata.Decode && (to == nil || d.IntN(2) == 0) {
				to = e
			}
		}
		slow := d.IntN(2) == 0
		for _, n := range p.current().nodes {
			if slow {
				n.halt(s.extent(faultBurst, 3*time.Second))
			}
		}
		for range 4 + d.IntN(9) {
			s.after(s.extent(faultBurst, 400*time.Millisecond), func() {
				if !s.calm {
					q := s.drawRequest()
					q.burst, q.pair = true, [2]*simEngine{p, to}
					s.send(q)
				}
			})
		}
	})
}

// checkPaired: between engines whose layouts do not fit nothing is registered or posted.
func (n *simNode) checkPaired(out []core.Effect) {
	for i := range out {
		x := &out[i]
		if x.Do != core.DoWriteRequest && x.Do != core.DoPost {
			continue
		}
		if p := n.owner.peers[x.Peer]; p != nil && n.s.agents[p.record.Agent].run.engine.shape.odd != n.run.engine.shape.odd {
			n.s.fail("S10", "%s: %s to %s, though the layouts do not fit", n.record.Agent, x.Do, p.record.Agent)
		}
	}
	if !n.run.engine.isPrefill() {
		return
	}
	for i := range out {
		x := &out[i]
		if x.Do == core.DoStatus && x.Status.State == wire.NotBegun && x.Status.Reason == kvplane.Full {
			n.s.counts.reach("number refused as full")
		}
		if x.Do == core.DoDrop && x.Drop == core.DropSettled || x.Do == core.DoStatus && x.Status.Reason == kvplane.Spent && x.Status.State >= wire.NotBegun {
			n.s.counts.reach("repeat of a refused number")
		}
	}
}

func (e *simEngine) isPrefill() bool { return e.role == metadata.Prefill }

// checkRefused is what becomes of a request to a pair that does not fit: it fails, and why is said each time.
func (s *sim) checkRefused(q *simRequest, what string) {
	s.counts.reach("an unfit pair was refused")
	if what != "failed" {
		s.fail("L4", "the unfit pair %s and %s has answered %s", q.pair[0].name, q.pair[1].name, what)
	}
	for _, a := range q.attempts {
		if a.decode == nil || a.decode.reason != kvplane.Unplannable {
			s.fail("L4", "the unfit pair %s and %s: attempt %d has ended with %s", q.pair[0].name, q.pair[1].name, a.number, a.why)
		}
	}
}

// simGrids are the places that a link was told of.
type simGrids struct {
	local, remote []transfer.StridedRegion
	ready         int // which pass of its owner finds them ready
}

// simPreparer is a simTransport that can be told of places.
type simPreparer struct{ *simTransport }

// simPreparingFencer can do both.
type simPreparingFencer struct {
	*simFencer
	transport.Preparer
}

// Prepare implements Preparer.
func (t *simPreparer) Prepare(agent string, local, remote []transfer.StridedRegion) bool {
	l := t.peers[agent]
	if l == nil || l.leaving {
		return false
	}
	if l.grids == nil {
		l.grids = &simGrids{local: local, remote: remote, ready: t.passes + t.s.wide.IntN(12)}
		if t.s.wide.IntN(8) == 0 {
			l.grids.ready = 1 << 40
		}
	}
	if l.grids.ready > t.passes {
		t.s.counts.reach("prepared too late")
		return false
	}
	return true
}

// WritePrepared implements Preparer.
func (t *simPreparer) WritePrepared(agent string, id uint64, local, remote []int32, notify []byte) error {
	s := t.s
	return t.post(agent, id, func(l *simLink) []kvplane.Range {
		if l.grids == nil || l.grids.ready > t.passes || len(local) != len(remote) || len(local) == 0 {
			s.fail("S2", "%s writes %d places to %d, which are not ready", t.name, len(local), len(remote))
		}
		s.counts.reach("posted by places")
		ranges := make([]kvplane.Range, len(local))
		for i := range local {
			from, n := simPlace(l.grids.local, int(local[i]))
			to, m := simPlace(l.grids.remote, int(remote[i]))
			if n == 0 || n != m {
				s.fail("S2", "%s copies place %d of %d bytes to place %d of %d", t.name, local[i], n, remote[i], m)
			}
			ranges[i] = kvplane.Range{Local: from, Remote: to, Length: n}
		}
		return ranges
	}, notify)
}

// simPlace finds a place of some grids, whose length is 0 if there is no such place.
func simPlace(grids []transfer.StridedRegion, i int) (address, length uint64) {
	for _, g := range grids {
		if n := g.Blocks * g.Units; i >= n {
			i -= n
			continue
		}
		if i < 0 {
			break
		}
		return g.Base + uint64(i/g.Units)*g.BlockStride + uint64(i%g.Units)*g.UnitStride, g.Length
	}
	return 0, 0
}
