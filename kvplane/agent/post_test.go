package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
)

// preparedFake is a fake transport that takes writes of places, after it was asked so many times whether it is ready.
type preparedFake struct {
	*fakeTransport
	ready        int
	local        []transfer.StridedRegion
	remote       []transfer.StridedRegion
	asked, wrote *atomic.Int32
}

func (t *preparedFake) Prepare(_ string, local, remote []transfer.StridedRegion) bool {
	t.asked.Add(1)
	t.local, t.remote = local, remote
	t.ready--
	return t.ready < 0
}

func (t *preparedFake) WritePrepared(agent string, id uint64, local, remote []int32, notify []byte) error {
	t.wrote.Add(1)
	var ranges []kvplane.Range
	for i := range local {
		from, n := plantest.Placed(t.local, local[i])
		to, _ := plantest.Placed(t.remote, remote[i])
		ranges = append(ranges, kvplane.Range{Local: from, Remote: to, Length: n})
	}
	return t.Write(agent, id, ranges, notify)
}

// TestPostPrepared hands requests over with a transport that takes places: ranges until it is ready, then places, and
// the same bytes either way.
func TestPostPrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newFakeNet()
		var asked, wrote atomic.Int32
		p, d, _ := pairOf(t, func() transport.Transport {
			return &preparedFake{fakeTransport: net.transport(), ready: 2, asked: &asked, wrote: &wrote}
		}, side(2), side(4), kvplane.Times{})
		transferAll(t, p, d) // eight writes from each of two ranks, the first two of each as ranges
		if asked.Load() != 16 || wrote.Load() != 12 {
			t.Errorf("asked %d times whether places are ready and wrote %d times so; want 16 and 12", asked.Load(), wrote.Load())
		}
	})
}

// TestPostMerged: a transport that takes places is given ranges where a few ranges are all.
func TestPostMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newFakeNet()
		var asked, wrote atomic.Int32
		s := plantest.Spec{Heads: 1, Logical: 1, Blocks: 256}
		p, d, _ := pairOf(t, func() transport.Transport {
			return &preparedFake{fakeTransport: net.transport(), asked: &asked, wrote: &wrote}
		}, s, s, kvplane.Times{})
		l := kvplane.BlockList{}
		for i := range int32(mergeFactor + 1) {
			l.Blocks = append(l.Blocks, i)
		}
		for n, want := range map[int]int32{mergeFactor: 1, mergeFactor + 1: 0} {
			wrote.Store(0)
			id := kvplane.NewTransferID()
			p.offer(id, d, n, []kvplane.BlockList{l})
			d.expect(id, p, [2]int{0, n}, []kvplane.BlockList{l})
			d.await(id, kvplane.Ready)
			p.await(id, kvplane.Sent)
			if got := wrote.Load(); got != want {
				t.Errorf("%d blocks in a row: %d writes of places; want %d", n, got, want)
			}
		}
	})
}

// slowFake is a fake transport whose writes take long to post.
type slowFake struct {
	*fakeTransport
	takes *time.Duration
}

func (t *slowFake) Write(agent string, id uint64, ranges []kvplane.Range, notify []byte) error {
	time.Sleep(*t.takes)
	return t.fakeTransport.Write(agent, id, ranges, notify)
}

// TestPostSlow: a submission over 200 ms is counted, and logged with what it was.
func TestPostSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newFakeNet()
		takes := slowPost
		var log bytes.Buffer
		p, d, _ := pairOf(t, func() transport.Transport { return &slowFake{net.transport(), &takes} }, side(1), side(1), kvplane.Times{})
		w := p.agents[0].owner
		w.engineCall(func() { w.log = slog.New(slog.NewTextHandler(&log, nil)) })
		hand := func() kvplane.TransferID {
			id := kvplane.NewTransferID()
			l := []kvplane.BlockList{{Blocks: []int32{1, 4, 6}}}
			p.offer(id, d, 12, l)
			d.expect(id, p, [2]int{0, 12}, l)
			d.await(id, kvplane.Ready)
			return id
		}
		hand()
		if n := p.agents[0].Status().SlowPosts; n != 0 || log.Len() > 0 {
			t.Errorf("%v: %d slow submissions, logged %q; want none", takes, n, log.String())
		}
		takes = slowPost + time.Millisecond
		id := hand()
		if n := p.agents[0].Status().SlowPosts; n != 1 {
			t.Errorf("%v: %d slow submissions; want 1", takes, n)
		}
		want := `msg="kvplane: slow submission" transfer=` + id.String() + ` peer=d@1/0/0/0 blocks=3 ranges=6 bytes=384 took_seconds=0.201`
		if !strings.Contains(log.String(), want) {
			t.Errorf("logged %q; want %q", log.String(), want)
		}
	})
}
