package embed

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

func scheduler(t testing.TB, more string) *Scheduler {
	t.Helper()
	s, err := OpenScheduler(config(t, `{kind: scheduler, engine: e`+more+`}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestWhatIsTakenCanBeTold: the orders of every transfer that is taken can be read by the ranks; one that they would not
// read is refused, and costs no other transfer of its step anything.
func TestWhatIsTakenCanBeTold(t *testing.T) {
	s := scheduler(t, `, generation: 7`)
	some := func(n ...int) int { return n[rand.IntN(len(n))] }
	taken := 0
	for range 3000 {
		x := Transfer{
			ID: kvplane.NewTransferID(), Peer: metadata.Incarnation{Engine: []string{"p", "p", "p", "p", "", "a b"}[rand.IntN(6)], Generation: uint64(some(1, 1, 1, 0, math.MaxInt64))},
			From: some(0, 0, 0, -1, 5, 1<<40, math.MaxInt64), To: some(0, 7, 7, 7, 1<<40, 1<<40+1, math.MinInt64),
			Wait: time.Duration(some(0, 1, -1, int(24*time.Hour), int(25*time.Hour))),
		}
		if rand.IntN(9) == 0 {
			x.ID = kvplane.TransferID{}
		}
		for range some(0, 1, 1, 64, 65) {
			g := kvplane.BlockList{First: some(0, 0, 0, 16, -1, 1<<40, 1<<40+1)}
			for range some(0, 1, 3) {
				g.Blocks = append(g.Blocks, []int32{0, 1, math.MaxInt32, -1}[rand.IntN(24)%4*rand.IntN(2)])
			}
			x.Groups = append(x.Groups, g)
		}
		order := s.Expect
		if rand.IntN(2) == 0 {
			order = s.Offer
		}
		err := order(&x)
		if err != nil {
			if FaultOf(err) != Argument {
				t.Fatalf("%+v: %v", x, err)
			}
			continue
		}
		taken++
		if err := s.Cancel(x.ID, "why"); err != nil {
			t.Fatal(err)
		}
		n := 0
		if err := s.Orders(nil, &n); FaultOf(err) != Room {
			t.Fatalf("%v; want no room", err)
		}
		b := make([]byte, n)
		if err := s.Orders(b, &n); err != nil {
			t.Fatal(err)
		}
		if _, err := sched.ParseOrders(b); err != nil {
			t.Fatalf("%+v was taken; its orders: %v", x, err)
		}
	}
	if taken < 20 {
		t.Fatalf("only %d were taken", taken)
	}
}

// TestSchedulerRefuses: what is not now, known already or too much is told so.
func TestSchedulerRefuses(t *testing.T) {
	peer := metadata.Incarnation{Engine: "p", Generation: 1}
	x := &Transfer{ID: kvplane.TransferID{1}, Peer: peer, To: 4, Groups: list(1)}
	g := pdkvtest.NewGateway(t)
	s := scheduler(t, fmt.Sprintf(`, gateway: {record_keys: [%q]}`, g.Keys))
	if err := s.Admit(metadata.Decode, x.ID, peer, ""); FaultOf(err) != Early {
		t.Errorf("admitted before a rank was heard: %v", err)
	}
	if err := s.Expect(x); FaultOf(err) != State {
		t.Errorf("expected before a rank was heard: %v", err)
	}
	own := metadata.Incarnation{Engine: "e", Generation: 7}
	if err := s.Hear((&sched.RankReport{Engine: metadata.Incarnation{Engine: "other", Generation: 7}}).Marshal()); FaultOf(err) != Argument {
		t.Errorf("another engine's report: %v", err)
	}
	if err := s.Hear((&sched.RankReport{Engine: own}).Marshal()); err != nil {
		t.Fatal(err)
	}
	if err := s.Admit(metadata.Decode, x.ID, peer, ""); FaultOf(err) != Ticket {
		t.Errorf("admitted without a ticket: %v", err)
	}
	if err := s.Admit(metadata.Decode, x.ID, peer, pdkvtest.NewGateway(t).Ticket(t, x.ID, peer, own)); FaultOf(err) != Ticket {
		t.Errorf("admitted with the ticket of a gateway that is not trusted: %v", err)
	}
	if err := s.Admit(metadata.Decode, x.ID, peer, g.Ticket(t, x.ID, peer, own)); err != nil {
		t.Fatal(err)
	}
	stranger := *x
	stranger.Peer.Engine = "q"
	if err := s.Expect(&stranger); FaultOf(err) != Argument {
		t.Errorf("expected of another peer than admitted: %v", err)
	}
	if err := s.Queue(x.ID, peer); err != nil {
		t.Fatal(err)
	}
	if err := s.Offer(x); FaultOf(err) != Known {
		t.Errorf("offered what is queued: %v", err)
	}
	if err := s.Expect(x); err != nil {
		t.Fatal(err)
	}
	if err := s.Expect(x); FaultOf(err) != Known {
		t.Errorf("expected twice: %v", err)
	}
	if err := s.Queue(x.ID, peer); FaultOf(err) != Known {
		t.Errorf("queued after it was expected: %v", err)
	}
	full, large := FaultOf(nil), make([]int32, maxBlocks)
	for i := range maxListed/maxBlocks + 1 {
		full = FaultOf(s.Expect(&Transfer{ID: kvplane.TransferID{2, byte(i)}, Peer: peer, To: 4, Groups: list(large...)}))
	}
	if full != Full {
		t.Errorf("more blocks than a step's orders hold: fault %d", full)
	}
	n := 0
	if err := s.Orders(make([]byte, 64<<20), &n); err != nil {
		t.Fatal(err)
	}
	if err := s.Expect(&Transfer{ID: kvplane.TransferID{2, maxListed / maxBlocks}, Peer: peer, To: 4, Groups: list(1)}); err != nil {
		t.Errorf("what found no room is not taken in the next step: %v", err)
	}
}

// TestExpectAfterItLapsed: a queued transfer fails, and the engine expects it before it has polled that. The expectation is
// refused, so that the failure of the one is never taken for the failure of the other.
func TestExpectAfterItLapsed(t *testing.T) {
	s := scheduler(t, `, generation: 7`)
	own, peer := metadata.Incarnation{Engine: "e", Generation: 7}, metadata.Incarnation{Engine: "p", Generation: 1}
	x := &Transfer{ID: kvplane.TransferID{1}, Peer: peer, To: 4, Groups: list(1)}
	hear := func(seq uint64, reports ...kvplane.Report) {
		t.Helper()
		for i := range reports {
			reports[i].ID = x.ID
		}
		if err := s.Hear((&sched.RankReport{Engine: own, Seq: seq, Reports: reports}).Marshal()); err != nil {
			t.Fatal(err)
		}
	}
	poll := func() []Kind {
		t.Helper()
		buf, used := make([]byte, 1<<12), 0
		n, err := s.Poll(buf, &used)
		if err != nil {
			t.Fatal(err)
		}
		var kinds []Kind
		for b := buf[:used]; n > 0; n-- {
			kinds = append(kinds, Kind(binary.NativeEndian.Uint32(b[4:])))
			b = b[binary.NativeEndian.Uint32(b):]
		}
		return kinds
	}
	if err := s.Queue(x.ID, peer); err != nil {
		t.Fatal(err)
	}
	lapsed := []kvplane.Report{{Kind: kvplane.Failed, Order: kvplane.QueueOrder, Reason: kvplane.LeaseOver}, {Kind: kvplane.Reusable, Order: kvplane.QueueOrder}}
	hear(1, lapsed...)
	if err := s.Expect(x); FaultOf(err) != State {
		t.Errorf("expected after it lapsed: %v; want that it is refused", err)
	}
	if got := poll(); !reflect.DeepEqual(got, []Kind{Failed}) || len(s.legs) != 0 {
		t.Errorf("polled %v, %d legs are left; want one failure and none", got, len(s.legs))
	}
	// The other way round: the order crosses the rank's word, which is no answer to it.
	x.ID = kvplane.TransferID{2}
	if err := s.Queue(x.ID, peer); err != nil {
		t.Fatal(err)
	}
	if err := s.Expect(x); err != nil {
		t.Fatal(err)
	}
	hear(2, lapsed...)
	if got := poll(); len(got) > 0 {
		t.Errorf("polled %v of an expectation that no rank has answered", got)
	}
	hear(3, kvplane.Report{Kind: kvplane.Ready, Order: kvplane.ExpectOrder})
	if got := poll(); !reflect.DeepEqual(got, []Kind{Released}) {
		t.Errorf("polled %v; want that it is released", got)
	}
}

// TestDeadlineRings: a transfer of which no rank ever speaks fails by itself, and the descriptor says so.
func TestDeadlineRings(t *testing.T) {
	s := scheduler(t, `, generation: 7, times: {wait: 1ms, deadline: 1ms, net_delay: 1ms}`)
	e := &engine{t: t, scheduler: s}
	id := kvplane.TransferID{1}
	if err := s.Expect(&Transfer{ID: id, Peer: metadata.Incarnation{Engine: "p", Generation: 1}, To: 4, Groups: list(9, 3)}); err != nil {
		t.Fatal(err)
	}
	e.until(func() bool { return e.find(Failed, id) != nil })
	if x := e.find(Failed, id); x.reason != kvplane.Deadline || !reflect.DeepEqual(x.blocks, [][]int32{{3, 9}}) {
		t.Errorf("%+v", x)
	}
	e.step()
	if o, err := sched.ParseOrders(e.told); err != nil || len(o.Abandon) != 1 {
		t.Errorf("orders after the deadline: %+v, %v; want that it is given up", o, err)
	}
}

// TestResultsFill: results are taken whole, in order, as far as the buffer goes.
func TestResultsFill(t *testing.T) {
	one := Result{Kind: Failed, Reason: kvplane.LeaseOver, Blocks: [][]int32{{1, 2, 3}, nil}, Ranges: []kvplane.Range{{Local: 1, Length: 2}}, Text: "text"}
	size := one.Len()
	if size%8 != 0 || len(one.Append(nil)) != size {
		t.Fatalf("%d bytes; Append gives %d", size, len(one.Append(nil)))
	}
	for _, c := range [][2]string{{"ab\xc8c", "ab?c"}, {"abcä", "abc"}, {"abcde", "abcd"}, {"", ""}} {
		if got := Cut(c[0], 4); got != c[1] {
			t.Errorf("Cut(%q) is %q; want %q", c[0], got, c[1])
		}
	}
	q := results{one, {Kind: Freed}, one}
	if _, used, err := q.poll(make([]byte, size-1)); FaultOf(err) != Room || used != size || len(q) != 3 {
		t.Errorf("%d bytes, %v; want no room and %d", used, err, size)
	}
	if n, used, err := q.poll(make([]byte, size+resultBytes)); n != 2 || used != size+resultBytes || err != nil || len(q) != 1 {
		t.Errorf("%d results of %d bytes, %v", n, used, err)
	}
	if n, used, err := (&results{}).poll(nil); n != 0 || used != 0 || err != nil {
		t.Errorf("of none: %d, %d, %v", n, used, err)
	}
}

// FuzzHear: whatever a rank seems to say, a scheduler takes it or refuses it.
func FuzzHear(f *testing.F) {
	f.Add((&sched.RankReport{Engine: metadata.Incarnation{Engine: "e", Generation: 7}}).Marshal())
	f.Add((&sched.RankReport{Seq: 2}).Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		s := scheduler(t, `, generation: 7`)
		if err := s.Hear(b); err != nil && FaultOf(err) != Argument {
			t.Fatal(err)
		}
	})
}

// TestRefusedOrdersUseNoRoom: orders that are refused do not count against the room of a step.
func TestRefusedOrdersUseNoRoom(t *testing.T) {
	s := scheduler(t, ``) // no generation: no rank was heard yet
	many := make([]int32, maxBlocks)
	for i := range many {
		many[i] = int32(i)
	}
	x := Transfer{ID: kvplane.NewTransferID(), Peer: metadata.Incarnation{Engine: "p", Generation: 1}, To: 7, Groups: []kvplane.BlockList{{Blocks: many}}}
	for range maxListed/maxBlocks + 1 {
		if err := s.Expect(&x); FaultOf(err) != State {
			t.Fatalf("%v; want State", err)
		}
	}
	report := sched.RankReport{Engine: metadata.Incarnation{Engine: "e", Generation: 7}}
	if err := s.Hear(report.Marshal()); err != nil {
		t.Fatal(err)
	}
	small := Transfer{ID: kvplane.NewTransferID(), Peer: x.Peer, To: 7, Groups: list(1, 2)}
	for step := range 5 {
		small.ID[0]++
		if err := s.Expect(&small); err != nil {
			t.Errorf("expectation %d of 2 blocks: %v", step, err)
		}
	}
}

// TestRepeatedOrdersUseNoRoom: nor do repeats of one order.
func TestRepeatedOrdersUseNoRoom(t *testing.T) {
	s := scheduler(t, `, generation: 7`)
	many := make([]int32, maxBlocks)
	x := Transfer{ID: kvplane.NewTransferID(), Peer: metadata.Incarnation{Engine: "p", Generation: 1}, To: 7, Groups: []kvplane.BlockList{{Blocks: many}}}
	if err := s.Expect(&x); err != nil {
		t.Fatal(err)
	}
	n := 0
	_ = s.Orders(nil, &n)
	if err := s.Orders(make([]byte, n), &n); err != nil {
		t.Fatal(err)
	}
	for range maxListed/maxBlocks + 1 {
		if err := s.Expect(&x); FaultOf(err) != Known {
			t.Fatalf("%v; want Known", err)
		}
	}
	small := Transfer{ID: kvplane.NewTransferID(), Peer: x.Peer, To: 7, Groups: list(1, 2)}
	if err := s.Expect(&small); err != nil {
		t.Error(err)
	}
}
