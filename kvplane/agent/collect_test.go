package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/sched"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/metadata"
)

// heldDirectory answers nobody before it is opened, and then that it knows nothing.
type heldDirectory chan struct{}

func (h heldDirectory) Engine(ctx context.Context, _ metadata.Incarnation) ([]metadata.Record, error) {
	select {
	case <-h:
	case <-ctx.Done():
	}
	return nil, errors.New("not known")
}

// TestCollect lets an engine without a Report function learn all it must from Collect.
func TestCollect(t *testing.T) {
	s := plantest.Spec{Heads: 1, Logical: 4, Blocks: 8}.WithDefaults()
	rec := s.Records("d")[0]
	b, free, err := memory.Allocate(int(rec.Layout.Regions[0].Length) * len(rec.Layout.Regions))
	if err != nil {
		t.Fatal(err)
	}
	base := memory.Of(b).Base
	for i := range rec.Layout.Regions {
		rec.Layout.Regions[i].Base += base - s.Base
	}
	notified := make(chan struct{}, 1000)
	directory := make(heldDirectory)
	a, err := Open(Config{
		Self: rec, Memory: []memory.Region{memory.Of(b)}, Transport: tcp.New(tcp.Config{}), Directory: directory,
		Notify: func() { notified <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(a.Close(), free()); err != nil {
			t.Error(err)
		}
	}()
	wait := func() sched.RankReport {
		t.Helper()
		select {
		case <-notified:
		case <-time.After(10 * time.Second):
			t.Fatal("nobody was notified")
		}
		return a.Collect()
	}
	if r := a.Collect(); r.Seq != 0 || r.Engine != rec.Incarnation || r.Rank != rec.Rank {
		t.Errorf("before anything has happened: %+v", r)
	}
	peer := metadata.Incarnation{Engine: "p", Generation: 1}
	one, two := kvplane.TransferID{1}, kvplane.TransferID{2}
	a.Do(sched.Orders{Expect: []kvplane.Expectation{{ID: one, Peer: peer, Need: [2]int{0, 1}}}, Offer: []kvplane.Offer{{ID: two, Peer: peer}}})
	r := wait()
	if r.Handshakes != 1 || !slices.Equal(r.Pending, []kvplane.TransferID{one, two}) || len(r.Reports) != 0 {
		t.Errorf("while the peer is looked up: %+v", r)
	}
	if again := a.Collect(); again.Handshakes != 1 || len(again.Pending) != 2 || again.Seq != r.Seq {
		t.Errorf("how things stand is not drained: %+v", again)
	}
	a.Do(sched.Orders{Abandon: []sched.Abandonment{{ID: one, Why: "left"}}})
	close(directory)
	var reports []kvplane.Report
	seq := r.Seq
	for r.Handshakes > 0 || len(reports) < 3 {
		r = wait()
		reports = append(reports, r.Reports...)
		if news := len(r.Reports) > 0; news && r.Seq != seq+1 || !news && r.Seq != seq {
			t.Errorf("number %d after %d: %+v", r.Seq, seq, r)
		}
		seq = r.Seq
	}
	var kinds []string
	for _, x := range reports {
		kinds = append(kinds, x.Kind.String())
	}
	if want := []string{"failed", "reusable", "sent"}; !slices.Equal(kinds, want) || len(r.Pending) != 0 {
		t.Errorf("reports %v, pending %v; want %v and none", kinds, r.Pending, want)
	}
	if len(notified) > 0 {
		t.Error("notified, and nothing to collect")
	}
}

// TestHandshakeWakesTheEngineOnce: a look-up that takes long is told when it begins and when it ends, however often the
// owner looks at its transport meanwhile.
func TestHandshakeWakesTheEngineOnce(t *testing.T) {
	net := newFakeNet()
	net.polled = true
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		a := d.agents[0]
		woken, hook := 0, make(chan bool)
		a.owner.engineCall(func() {
			a.owner.cfg.Notify = func() { woken++ }
			close(hook)
		})
		<-hook
		a.Collect()
		dir.mu.Lock()
		dir.slow = 2 * time.Second
		dir.mu.Unlock()
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			if r := a.Collect(); r.Handshakes != 1 || !slices.Equal(r.Pending, []kvplane.TransferID{id}) {
				t.Fatalf("during the look-up: %+v", r)
			}
		}
		time.Sleep(3 * time.Second)
		if r := a.Collect(); r.Handshakes != 0 || len(r.Pending) > 0 {
			t.Errorf("after the look-up: %+v", r)
		}
		a.Status()
		if woken != 2 {
			t.Errorf("the engine was woken %d times; want when the look-up began and when it ended", woken)
		}
	})
}
