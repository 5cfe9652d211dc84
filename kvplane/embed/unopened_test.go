package embed

import (
	"fmt"
	"slices"
	"testing"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

// TestUnopened: what is given up before there is an agent is safe at once, and its agent never hears of it; when it is known
// that there will be none, everything is.
func TestUnopened(t *testing.T) {
	id := func(n byte) kvplane.TransferID { return kvplane.TransferID{n} }
	u := unopened{rank: metadata.Rank{TP: 1}}
	said := func() (out []string) {
		for _, r := range u.reports {
			out = append(out, fmt.Sprintf("%d %s %s %d", r.ID[0], r.Kind, r.Reason, r.Blocks))
			if r.Rank != u.rank {
				t.Errorf("a report of rank %s; want %s", r.Rank, u.rank)
			}
		}
		u.reports = nil
		return out
	}
	want := func(when string, want ...string) {
		t.Helper()
		if got := said(); !slices.Equal(got, want) {
			t.Errorf("%s: said %q; want %q", when, got, want)
		}
	}
	u.take(sched.Orders{Queue: []sched.Queued{{ID: id(1)}, {ID: id(2)}, {ID: id(6)}}})
	u.take(sched.Orders{Expect: []kvplane.Expectation{{ID: id(1), Groups: list(5, 2)}, {ID: id(3), Groups: list(7)}}, Offer: []kvplane.Offer{{ID: id(4), Groups: list(1)}}})
	want("ordered")
	u.take(sched.Orders{Offer: []kvplane.Offer{{ID: id(5), Groups: list(2)}}, Abandon: []sched.Abandonment{{ID: id(1)}, {ID: id(5)}, {ID: id(6)}, {ID: id(9)}}})
	want("given up", "1 negative stopped 2", "1 safe  2", "5 sent stopped 1", "6 negative stopped 0", "6 safe  0")
	if o := u.orders; len(o) != 3 || len(o[0].Queue) != 1 || len(o[1].Expect) != 1 || len(o[1].Offer) != 1 || len(o[2].Offer) != 0 ||
		!slices.Equal(o[2].Abandon, []sched.Abandonment{{ID: id(9)}}) {
		t.Errorf("an agent would be ordered %+v", o)
	}
	u.fail("why")
	want("broken", "3 negative closing 1", "3 safe  1", "4 sent closing 1", "2 negative closing 0", "2 safe  0")
	u.take(sched.Orders{Expect: []kvplane.Expectation{{ID: id(7), Groups: list(1)}}, Abandon: []sched.Abandonment{{ID: id(8)}}})
	want("ordered of a broken one", "7 negative closing 1", "7 safe  1")
	if len(u.orders) > 0 {
		t.Errorf("%+v wait for an agent that never comes", u.orders)
	}
	u = unopened{}
	for range maxEarly {
		if !u.take(sched.Orders{}) {
			t.Fatal("refused before the bound")
		}
	}
	if u.take(sched.Orders{}) {
		t.Error("there is room beyond the bound")
	}
}

// TestRankThatNeverOpens: a rank of two has no agent. What was ordered before that was known fails and is closed, so that its
// blocks come back; no leg is taken from then on.
func TestRankThatNeverOpens(t *testing.T) {
	g := pdkvtest.NewGateway(t)
	p, d := newEngine(t, g, "prefill-0", metadata.Prefill, 1, ""), newEngine(t, g, "decode-0", metadata.Decode, 2, "")
	id := admitted(t, g, p, d)
	if err := d.ranks[1].Close(); err != nil {
		t.Fatal(err)
	}
	cfg := d.ranks[1].cfg
	cfg.Cache.Heads = 999 // its regions are of other heads
	var err error
	if d.ranks[1], err = OpenRank(cfg); err != nil {
		t.Fatal(err)
	}
	regions, _ := d.cache()
	d.ranks[1].regions = regions // nobody has checked them
	if err := d.ranks[1].Publish(); err != nil {
		t.Fatal(err)
	}
	if err := d.scheduler.Expect(&Transfer{ID: id, Peer: p.inc, To: 7, Groups: list(5, 2)}); err != nil {
		t.Fatal(err)
	}
	d.until(func() bool { return d.find(Closed, id) != nil }, p)
	if x := d.find(Failed, id); x == nil || x.reason != kvplane.Closing || x.text == "" {
		t.Errorf("told %+v; want that it has failed, and why", x)
	}
	if d.find(Broken, kvplane.TransferID{}) == nil {
		t.Error("the rank has not said that it is broken")
	}
	other := kvplane.NewTransferID()
	ticket := g.Ticket(t, other, p.inc, d.inc)
	if err := d.scheduler.Admit(metadata.Decode, other, p.inc, ticket); FaultOf(err) != State {
		t.Errorf("a leg for a broken engine: %v; want that it is refused", err)
	}
	if err := d.scheduler.Expect(&Transfer{ID: other, Peer: p.inc, To: 7, Groups: list(5, 2)}); FaultOf(err) != State {
		t.Errorf("blocks for a broken engine: %v; want that they are refused", err)
	}
	if s := status(t, d.scheduler); s["legs"] != 0.0 || s["missed"] != 0.0 {
		t.Errorf("status %v; want no legs and nothing missed", s)
	}
}
