package nixltransport

import (
	"math/rand/v2"
	"testing"

	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// TestNIXLRoundsAreBounded holds writes that end in any order: no round asks about more than its bound, all that have
// ended are found, and each is asked about again within a number of rounds that follows from how many there are.
func TestNIXLRoundsAreBounded(t *testing.T) {
	for _, count := range []int{0, 1, 64, 65, 1000, 10000} {
		rng := rand.New(rand.NewPCG(uint64(count), 1))
		var l writesInProgress
		open := map[uint64]bool{}
		for i := range uint64(count) {
			l.add(&writeInProgress{id: i})
			open[i] = true
		}
		sweep := count/askTurn + 1
		latest := map[uint64]int{}
		for round := 1; round <= sweep; round++ { // nothing ends
			asked := 0
			l.round(func(w *writeInProgress) bool { asked++; latest[w.id] = round; return false })
			if asked > askOldest+askNewest+askTurn || asked < min(count, askOldest) {
				t.Fatalf("%d writes: a round asked about %d", count, asked)
			}
		}
		if len(latest) != count {
			t.Fatalf("%d writes: %d rounds asked about %d", count, sweep, len(latest))
		}
		done := map[uint64]bool{}
		for id := range open {
			if rng.IntN(2) == 0 {
				done[id] = true
			}
		}
		want := count - len(done)
		for range sweep + count/endsPerPoll + 1 {
			ends := 0
			l.round(func(w *writeInProgress) bool {
				if !done[w.id] {
					return false
				}
				if !open[w.id] {
					t.Fatalf("write %d ended twice", w.id)
				}
				delete(open, w.id)
				ends++
				return true
			})
			if ends > endsPerPoll {
				t.Fatalf("%d writes ended in one round", ends)
			}
		}
		if l.n != want || len(open) != want {
			t.Errorf("%d writes: %d and %d are left; want %d", count, l.n, len(open), want)
		}
		for range l.n + 1 {
			l.round(func(*writeInProgress) bool { return true })
		}
		if l.n != 0 || l.first != nil || l.last != nil || l.turn != nil {
			t.Errorf("%d writes: the list is not empty: %+v", count, l)
		}
	}
}

// TestNIXLOthersEndBesideStuck: a peer that takes in nothing holds a thousand writes up; a write to another peer ends.
func TestNIXLOthersEndBesideStuck(t *testing.T) {
	const stuck = 1000
	t.Setenv("UCX_TLS", "tcp")
	p, d := transporttest.Pair(t, func(t testing.TB) transport.Transport { return newNIXL(t) }, stuck*64)
	other := transporttest.OpenNode(t, newNIXL(t), "other@1", 64, 0)
	transporttest.Joined(p, other)
	for i, n := range []*transporttest.Node{d, other} { // wired up first
		if err := p.Transport.Write(n.Record.Agent, uint64(1+i), []transfer.Range{{Local: p.Base, Remote: n.Base, Length: 1}}, nil); err != nil {
			t.Fatal(err)
		}
		if err := p.AwaitEnd(uint64(1+i), d, other); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(stuck) {
		if err := p.Transport.Write("d@1", 100+i, []transfer.Range{{Local: p.Base + 64*i, Remote: d.Base + 64*i, Length: 64}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.Transport.(*Transport).writing.n; n < stuck/2 {
		t.Skipf("SKIPPED: only %d of %d writes are held up by a peer that is not polled", n, stuck)
	}
	if err := p.Transport.Write("other@1", 3, []transfer.Range{{Local: p.Base, Remote: other.Base, Length: 64}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitEnd(3, other); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(stuck) {
		if err := p.AwaitEnd(100+i, d, other); err != nil {
			t.Fatal(err)
		}
	}
}
