package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/memory/view"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/nixltransport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// fakeDirectory knows the records that were published.
type fakeDirectory struct {
	mu      sync.Mutex
	records map[string][]metadata.Record // by engine name: one generation at a time
	asked   int
	slow    time.Duration
	err     error
}

func (d *fakeDirectory) Engine(ctx context.Context, inc metadata.Incarnation) ([]metadata.Record, error) {
	d.mu.Lock()
	d.asked++
	slow, err, records := d.slow, d.err, d.records[inc.Engine]
	d.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch {
	case err != nil:
		return nil, err
	case len(records) == 0:
		return nil, errors.New("unknown engine")
	case records[0].Generation > inc.Generation:
		return nil, fmt.Errorf("%s: %w", inc.ID(), ErrSuperseded)
	case records[0].Generation < inc.Generation:
		return nil, errors.New("not published yet")
	}
	return records, nil
}

// rig is an engine: its ranks' agents, their memory, and what they have reported.
type rig struct {
	t       *testing.T
	spec    plantest.Spec
	inc     metadata.Incarnation
	agents  []*Agent
	records []metadata.Record
	memory  [][]byte

	mu      sync.Mutex
	reports []kvplane.Report
	changed chan struct{}
}

type rigOptions struct {
	transport func() transport.Transport
	directory *fakeDirectory
	role      metadata.Role
	name      string
	gen       uint64
	times     kvplane.Times
}

func newRig(t *testing.T, s plantest.Spec, o rigOptions) *rig {
	t.Helper()
	s = s.WithDefaults()
	r := &rig{t: t, spec: s, inc: metadata.Incarnation{Engine: o.name, Generation: max(o.gen, 1)}, changed: make(chan struct{}, 1)}
	var published []metadata.Record
	for _, rec := range s.Records(o.name) {
		size := 0
		for _, region := range rec.Layout.Regions {
			size += int(region.Length)
		}
		b, free, err := memory.Allocate(size)
		if err != nil {
			t.Fatal(err)
		}
		rec.Generation, rec.Role, rec.Agent = r.inc.Generation, o.role, ""
		base := memory.Of(b).Base
		for i := range rec.Layout.Regions {
			rec.Layout.Regions[i].Base += base - s.Base
		}
		a, err := Open(Config{
			Self: rec, Memory: []memory.Region{memory.Of(b)}, Transport: o.transport(), Directory: o.directory,
			Report: r.report, Times: o.times, SerialStarts: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			if err := free(); err != nil {
				t.Error(err)
			}
		})
		r.agents, r.memory = append(r.agents, a), append(r.memory, b)
		r.records = append(r.records, a.Record())
		published = append(published, a.Record())
	}
	o.directory.mu.Lock()
	o.directory.records[o.name] = published
	o.directory.mu.Unlock()
	return r
}

func (r *rig) report(x kvplane.Report) {
	r.mu.Lock()
	r.reports = append(r.reports, x)
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// await waits until every rank has made a report of this kind about the transfer.
func (r *rig) await(id kvplane.TransferID, kind kvplane.ReportKind) []kvplane.Report {
	r.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		var got []kvplane.Report
		r.mu.Lock()
		for _, x := range r.reports {
			if x.ID == id && x.Kind == kind {
				got = append(got, x)
			}
		}
		all := fmt.Sprint(r.reports)
		r.mu.Unlock()
		if len(got) > len(r.agents) {
			r.t.Fatalf("%s: %d reports of %s: %v", r.inc.Engine, len(got), kind, got)
		}
		if len(got) == len(r.agents) {
			return got
		}
		select {
		case <-r.changed:
		case <-deadline:
			r.t.Fatalf("%s: %d of %d ranks have reported %s: %s", r.inc.Engine, len(got), len(r.agents), kind, all)
		}
	}
}

// kinds lists what was reported about a transfer, in order.
func (r *rig) kinds(id kvplane.TransferID) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, x := range r.reports {
		if x.ID == id {
			out = append(out, x.Kind.String())
		}
	}
	return out
}

// word is what belongs in one byte of a transfer's KV.
func word(id kvplane.TransferID, content string) byte {
	h := fnv.New32a()
	h.Write(id[:])
	h.Write([]byte(content))
	return byte(h.Sum32())
}

func (r *rig) fill(id kvplane.TransferID, l kvplane.BlockList, tokens int) {
	for _, rec := range r.records {
		plantest.Each(r.spec, rec, l, l.First, tokens, func(at uint64, content string) {
			view.Bytes(at, 1)[0] = word(id, content)
		})
	}
}

// wrong counts the bytes of tokens [from, to) that are not the transfer's.
func (r *rig) wrong(id kvplane.TransferID, l kvplane.BlockList, from, to int) int {
	n := 0
	for _, rec := range r.records {
		plantest.Each(r.spec, rec, l, from, to, func(at uint64, content string) {
			if view.Bytes(at, 1)[0] != word(id, content) {
				n++
			}
		})
	}
	return n
}

func (r *rig) offer(id kvplane.TransferID, to *rig, tokens int, groups []kvplane.BlockList) {
	for _, a := range r.agents {
		a.Offer(kvplane.Offer{ID: id, Peer: to.inc, Tokens: tokens, Groups: groups})
	}
}

func (r *rig) expect(id kvplane.TransferID, from *rig, need [2]int, groups []kvplane.BlockList) {
	for _, a := range r.agents {
		a.Expect(kvplane.Expectation{ID: id, Peer: from.inc, Need: need, Groups: groups})
	}
}

func (r *rig) abandon(id kvplane.TransferID) {
	for _, a := range r.agents {
		a.Abandon(id, "test")
	}
}

// settled waits until the books are empty but for what only remembers.
func settled(t *testing.T, rigs ...*rig) {
	t.Helper()
	for _, r := range rigs {
		for _, a := range r.agents {
			for range 2000 {
				s := a.Status()
				if s.Offers+s.Expectations+s.Writing+s.WriteRequests+s.HeldBlocks+s.PinnedBlocks+len(s.Quarantined) == 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			s := a.Status()
			got := Status{Offers: s.Offers, Expectations: s.Expectations, Writing: s.Writing, HeldBlocks: s.HeldBlocks, PinnedBlocks: s.PinnedBlocks, Quarantined: s.Quarantined}
			if diff := cmp.Diff(got, Status{Quarantined: map[string]Quarantine{}}); diff != "" {
				t.Errorf("%s rank %s still holds (-got +want):\n%s", r.inc.Engine, a.Record().Rank, diff)
			}
		}
	}
}

func side(tp int) plantest.Spec {
	return plantest.Spec{TP: tp, Heads: 4, Logical: 4, Planes: 2, HeadBytes: 2, Blocks: 32, Stages: [][]int{{0, 1}}}
}

// pairOf makes a prefill and a decode engine over the same kind of transport.
func pairOf(t *testing.T, transport func() transport.Transport, p, d plantest.Spec, times kvplane.Times) (*rig, *rig, *fakeDirectory) {
	dir := &fakeDirectory{records: map[string][]metadata.Record{}}
	o := rigOptions{transport: transport, directory: dir, role: metadata.Prefill, name: "p", times: times}
	prefill := newRig(t, p, o)
	o.role, o.name = metadata.Decode, "d"
	return prefill, newRig(t, d, o), dir
}

// transferAll hands requests over, in both orders of offer and write request, and checks every byte.
func transferAll(t *testing.T, p, d *rig) {
	for i, first := range []string{"offer", "expect", "offer", "expect"} {
		id := kvplane.NewTransferID()
		from := []kvplane.BlockList{{Blocks: []int32{int32(5 + i), 3, int32(9 + i)}}}
		to := []kvplane.BlockList{{First: 4 * (i / 2), Blocks: []int32{int32(20 + i), 2, 7}[i/2:]}}
		n := 10 + i/2
		p.fill(id, from[0], n)
		offer := func() { p.offer(id, d, n, from) }
		expect := func() { d.expect(id, p, [2]int{to[0].First, n}, to) }
		if first == "offer" {
			offer()
			time.Sleep(5 * time.Millisecond)
			expect()
		} else {
			expect()
			time.Sleep(5 * time.Millisecond)
			offer()
		}
		for _, x := range d.await(id, kvplane.Ready) {
			if x.Tokens != n || x.K != x.N || x.K == 0 {
				t.Errorf("ready report is %+v; want %d tokens and all completions", x, n)
			}
		}
		p.await(id, kvplane.Sent)
		if wrong := d.wrong(id, to[0], to[0].First, n); wrong > 0 {
			t.Errorf("transfer %d: %d bytes on D are wrong", i, wrong)
		}
	}
	settled(t, p, d)
}

func TestTransferTensorParallel(t *testing.T) {
	for _, ptp := range []int{1, 2, 4} {
		for _, dtp := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("fake P %d D %d", ptp, dtp), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := newFakeNet()
					p, d, _ := pairOf(t, func() transport.Transport { return net.transport() }, side(ptp), side(dtp), kvplane.Times{})
					transferAll(t, p, d)
				})
			})
			t.Run(fmt.Sprintf("tcp P %d D %d", ptp, dtp), func(t *testing.T) {
				p, d, _ := pairOf(t, func() transport.Transport { return tcp.New(tcp.Config{}) }, side(ptp), side(dtp), kvplane.Times{})
				transferAll(t, p, d)
			})
		}
	}
}

// TestRefusedBeforeAnythingIsSent: between whole agents an unplannable pair says no word about a transfer.
func TestRefusedBeforeAnythingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newFakeNet()
		far := side(2)
		far.Logical = 6
		p, d, _ := pairOf(t, func() transport.Transport { return net.transport() }, side(1), far, kvplane.Times{})
		id := kvplane.NewTransferID()
		p.offer(id, d, 12, []kvplane.BlockList{{Blocks: []int32{1, 4, 6}}})
		d.expect(id, p, [2]int{0, 12}, []kvplane.BlockList{{Blocks: []int32{1, 4}}})
		for _, kind := range []kvplane.ReportKind{kvplane.Failed, kvplane.Reusable} {
			for _, r := range d.await(id, kind) {
				if want := "kernel block tokens: 4 on P, 6 on D"; kind == kvplane.Failed && (r.Reason != kvplane.Unplannable || !strings.Contains(r.Detail, want)) {
					t.Errorf("D was told %v, %q; want unplannable, %q", r.Reason, r.Detail, want)
				}
			}
		}
		p.await(id, kvplane.Sent)
		net.mu.Lock()
		defer net.mu.Unlock()
		if net.seen["write-request"] != 0 || net.seen["write"] != 0 {
			t.Errorf("%v was sent; want no registration and no write", net.seen)
		}
	})
}

// newTransport returns a transport that is not open, or skips the test if this machine has none of that name.
func newTransport(t testing.TB, name string) transport.Transport {
	t.Helper()
	if name == "tcp" {
		return tcp.New(tcp.Config{})
	}
	return nixltransport.New(transporttest.OpenNIXL(t), nixltransport.Config{})
}
