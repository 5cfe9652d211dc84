package nixltransport

import (
	"errors"
	"fmt"
	"slices"

	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/transfer"
)

// preparedLists is both sides' places of the writes to one peer, which NIXL is told once. Telling it takes a while, so
// it is done a little in each poll.
type preparedLists struct {
	sides [2]placeList // from, into
	ready bool
}

// placeList is one side's list.
type placeList struct {
	owner string // "" is this agent
	side  sideOf
	grids []transfer.StridedRegion
	next  int // place of grids[0] that is described next
	list  *nixl.List
	made  *nixl.Prepared
}

// placesPerPoll is how many places one poll describes, each in about 0.15 µs.
const placesPerPoll = 512

// Prepare implements Preparer.
func (t *Transport) Prepare(agent string, local, remote []transfer.StridedRegion) bool {
	p, err := t.peer(agent)
	if err != nil {
		return false
	}
	if p.prepared == nil {
		p.prepared = &preparedLists{sides: [2]placeList{
			{side: sideOf{whose: "this agent's", spans: t.memory}, grids: local},
			{owner: agent, side: sideOf{whose: "the peer's", spans: p.remote}, grids: remote},
		}}
		if len(local) > 0 && len(remote) > 0 {
			t.preparing = append(t.preparing, p)
		}
	}
	return p.prepared.ready
}

// prepare goes on with the first peer whose places are not ready. One that fails stays without.
func (t *Transport) prepare() {
	if len(t.preparing) == 0 {
		return
	}
	p := t.preparing[0]
	err := p.prepared.step(t.agent, placesPerPoll)
	if err == nil && !p.prepared.ready {
		return
	}
	t.preparing = slices.Delete(t.preparing, 0, 1)
	if err != nil {
		t.cfg.Log.Warn("kvplane: nixl places not prepared; writes go range by range", "agent", t.name,
			"peer", p.prepared.sides[1].owner, "err", errors.Join(err, p.prepared.close()))
	}
}

// step describes so many places more.
func (x *preparedLists) step(a *nixl.Agent, places int) error {
	for i := range x.sides {
		s := &x.sides[i]
		if s.made != nil {
			continue
		}
		var err error
		if places, err = s.step(a, places); err != nil || s.made == nil {
			return err
		}
	}
	x.ready = true
	return nil
}

func (s *placeList) step(a *nixl.Agent, places int) (left int, err error) {
	for ; len(s.grids) > 0; s.grids, s.next = s.grids[1:], 0 {
		g := s.grids[0]
		reach, ok := g.Extent()
		if !ok {
			return places, fmt.Errorf("places at %#x: none, or too many", g.Base)
		}
		first, err := s.side.region(g.Base, reach)
		if err != nil {
			return places, err
		}
		if s.list == nil {
			if s.list, err = a.NewList(s.side.kind); err != nil {
				return places, err
			}
		}
		for ; s.next < g.Places(); s.next++ {
			if places == 0 {
				return 0, nil
			}
			places--
			if err := s.list.Add(nixl.Region{Address: g.At(s.next), Length: g.Length, Device: first.Device}); err != nil {
				return places, err
			}
		}
	}
	if s.made, err = a.PrepareList(s.owner, s.list); err != nil {
		return places, err
	}
	return places, s.list.Close()
}

// close gives the lists back. No handle made from them may be in progress.
func (x *preparedLists) close() error {
	x.ready = false
	var errs []error
	for i := range x.sides {
		s := &x.sides[i]
		if s.list != nil {
			errs = append(errs, s.list.Close())
		}
		if s.made != nil {
			errs = append(errs, s.made.Close())
		}
		s.grids, s.list, s.made = nil, nil, nil
	}
	return errors.Join(errs...)
}

// WritePrepared implements Preparer.
func (t *Transport) WritePrepared(agent string, id uint64, local, remote []int32, notify []byte) error {
	if err := t.writePrepared(agent, id, local, remote, notify); err != nil {
		return fmt.Errorf("kvplane: nixl write to %s: %w", agent, err)
	}
	return nil
}

func (t *Transport) writePrepared(agent string, id uint64, local, remote []int32, notify []byte) error {
	p, err := t.writable(agent, notify)
	if err != nil {
		return err
	}
	if p.prepared == nil || !p.prepared.ready {
		return errors.New("its places are not prepared")
	}
	if len(notify) == 0 {
		notify = nil
	}
	sides := &p.prepared.sides
	handle, err := t.agent.NewIndexed(nixl.Write, sides[0].made, local, sides[1].made, remote, notify)
	if err != nil {
		return err
	}
	t.start(&writeInProgress{id: id, agent: agent, peer: p, handle: handle})
	return nil
}
