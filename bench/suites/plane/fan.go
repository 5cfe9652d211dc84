package plane

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// bareFan is one bare agent of prefill that writes to several of decode, or those of decode, which one goroutine looks at in
// turns: what counting could be if it were nothing but that.
type bareFan struct {
	agents []*bareNIXL // prefill: one; decode: one for each rank
	peers  []fanPeer   // prefill's
}

// fanPeer is one of decode's agents as prefill's sees it.
type fanPeer struct {
	name          string
	local, remote *nixl.Prepared
}

func (f *bareFan) close() error {
	var errs []error
	for _, b := range f.agents {
		errs = append(errs, b.close())
	}
	return errors.Join(errs...)
}

// openFan starts a bare agent for each of decode's ranks.
func (d *planeDecode) openFan(o PlaneOrder) (a PlaneAnswer, err error) {
	d.fan = &bareFan{}
	for i, r := range d.ranks {
		b, err := openBareNIXL(fmt.Sprint(r.agent.Record().Agent, "-fan", o.First, "-", i), r.memory, false)
		if err != nil {
			return a, err
		}
		d.fan.agents = append(d.fan.agents, b)
		if b.peer, err = b.agent.Load(o.Blob); err != nil {
			return a, err
		}
		blob, err := b.agent.Metadata()
		if err != nil {
			return a, err
		}
		a.Blobs = append(a.Blobs, blob)
	}
	return a, nil
}

// endFan closes it, if there is one.
func (d *planeDecode) endFan() (err error) {
	if d.fan != nil {
		err = d.fan.close()
	}
	d.fan = nil
	return err
}

// fanned asks for transfers, and notes when every rank's notification was seen.
func (d *planeDecode) fanned(o PlaneOrder) (a PlaneAnswer, err error) {
	for i := o.First; i < o.First+o.Count; i++ {
		for _, r := range d.ranks {
			r.clear(i, o.Shape)
		}
		if err := d.fan.agents[0].agent.Notify(d.fan.agents[0].peer, []byte(strconv.Itoa(i))); err != nil {
			return a, err
		}
		heard := make([]bool, len(d.ranks))
		more := within(10 * time.Second)
		for left := len(heard); left > 0; {
			for k, b := range d.fan.agents {
				if err := b.agent.Notifications(func(_ string, body []byte) {
					if !heard[k] && string(body) == bareDone {
						heard[k] = true
						left--
					}
				}); err != nil {
					return a, err
				}
			}
			if !more() {
				return a, fmt.Errorf("%w: %d of %d bare writes were not seen", load.ErrVoid, left, len(heard))
			}
		}
		a.Seen = append(a.Seen, time.Now().UnixNano())
		for _, r := range d.ranks {
			if err := r.check(i, o.Shape); err != nil {
				return a, err
			}
		}
	}
	return a, nil
}

// inTurns is that as a system: from the last write's post until the last notification was seen.
func (s *planeStage) inTurns(_ context.Context) (harness.System, error) {
	b, err := openBareNIXL(fmt.Sprint(s.rank.agent.Record().Agent, "-fan", s.take(1)), s.rank.memory, false)
	if err != nil {
		return harness.System{}, err
	}
	f := &bareFan{agents: []*bareNIXL{b}}
	s.ended = append(s.ended, f.close, func() error { _, err := s.decode.Tell(PlaneOrder{Do: "fan-close"}); return err })
	blob, err := b.agent.Metadata()
	if err != nil {
		return harness.System{}, err
	}
	a, err := s.decode.Tell(PlaneOrder{Do: "fan", Blob: blob, First: s.take(1)})
	if err != nil {
		return harness.System{}, err
	}
	own := s.rank.agent.Record().Layout.Regions[0]
	for k, blob := range a.Blobs {
		peer, err := f.meet(blob, k, own, s.peers[k].Layout.Regions[0])
		if err != nil {
			return harness.System{}, err
		}
		f.peers = append(f.peers, peer)
	}
	shape := PlaneShape{Blocks: 1}
	return sliced(turns, func(_ context.Context, n int) ([]float64, error) {
		first := s.take(n)
		var posts []planePost
		served := make(chan error, 1)
		go func() { served <- f.serve(s.layout, first, n, shape, &posts) }()
		a, err := s.decode.Tell(PlaneOrder{Do: "fanned", First: first, Count: n, Shape: shape})
		if err = errors.Join(err, <-served); err != nil {
			return nil, err
		}
		return []float64{since(posts, 1, a.Seen)}, nil
	}), nil
}

// turns is what inTurns is called.
const turns = "bare agents in turns"

// meet makes the k-th of decode's agents known: its blocks, and those of its share here.
func (f *bareFan) meet(blob []byte, k int, own, its metadata.Region) (p fanPeer, err error) {
	b := f.agents[0]
	if p.name, err = b.agent.Load(blob); err != nil {
		return p, err
	}
	if err := b.agent.Connect(p.name); err != nil {
		return p, err
	}
	if p.local, err = b.prepare("", own, uint64(k)*its.BlockStride, its.BlockStride); err == nil {
		p.remote, err = b.prepare(p.name, its, 0, its.BlockStride)
	}
	return p, err
}

// serve writes what decode asks for, n transfers, to all its agents, and notes when it posted the last write of each.
func (f *bareFan) serve(l PlaneLayout, first, n int, shape PlaneShape, posts *[]planePost) error {
	b := f.agents[0]
	for i := first; i < first+n; i++ {
		from, into := planeBlocks(l, i, shape, prefillSide), planeBlocks(l, i, shape, decodeSide)
		said, err := b.next(within(10 * time.Second))
		if err == nil && said != strconv.Itoa(i) {
			err = fmt.Errorf("%w: bare agents are asked for %q; want %d", load.ErrVoid, said, i)
		}
		if err != nil {
			return err
		}
		under := make([]*nixl.Transfer, 0, len(f.peers))
		var began time.Time
		for _, p := range f.peers {
			began = time.Now()
			t, err := b.agent.NewIndexed(nixl.Write, p.local, from, p.remote, into, []byte(bareDone))
			if err == nil {
				_, err = t.Post()
			}
			if err != nil {
				return err
			}
			under = append(under, t)
		}
		*posts = append(*posts, planePost{began: began.UnixNano()})
		for len(under) > 0 {
			left := under[:0]
			for _, t := range under {
				status, err := t.Status()
				if err != nil {
					return err
				}
				if status == nixl.InProgress {
					left = append(left, t)
				} else if err := t.Close(); err != nil {
					return err
				}
			}
			under = left
		}
	}
	return nil
}
