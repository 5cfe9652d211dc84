package embed

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/kvplane/control"
	"pdrouter/kvplane/sched"
	"pdrouter/metadata"
)

// admitted is a transfer whose legs both engines have taken.
func admitted(t testing.TB, g *pdkvtest.Gateway, p, d *engine) kvplane.TransferID {
	t.Helper()
	id := kvplane.NewTransferID()
	both := g.Ticket(t, id, p.inc, d.inc)
	if err := p.scheduler.Admit(metadata.Prefill, id, d.inc, both); err != nil {
		t.Fatal(err)
	}
	if err := d.scheduler.Admit(metadata.Decode, id, p.inc, both); err != nil {
		t.Fatal(err)
	}
	return id
}

func list(ids ...int32) []kvplane.BlockList { return []kvplane.BlockList{{Blocks: ids}} }

// TestHandOff: the blocks of a prefill engine land in those of a decode engine of another size, once each of their ranks
// has been told and heard through bytes alone; the control routes tell the count.
func TestHandOff(t *testing.T) {
	for _, tp := range [][2]int{{1, 1}, {2, 1}, {1, 2}} {
		g := pdkvtest.NewGateway(t)
		p, d := newEngine(t, g, "prefill-0", metadata.Prefill, tp[0], ""), newEngine(t, g, "decode-0", metadata.Decode, tp[1], "")
		events := watch(t, d)
		id := admitted(t, g, p, d)
		prompt := []int32{1, 2, 3, 4, 5, 6, 7}
		if err := d.scheduler.Queue(id, p.inc); err != nil {
			t.Fatal(err)
		}
		if err := d.scheduler.Expect(&Transfer{ID: id, Peer: p.inc, To: 7, Groups: list(5, 2), Prompt: prompt}); err != nil {
			t.Fatal(err)
		}
		if err := p.scheduler.Offer(&Transfer{ID: id, Peer: d.inc, To: 7, Groups: list(1, 6), Prompt: prompt}); err != nil {
			t.Fatal(err)
		}
		d.until(func() bool { return d.find(Released, id) != nil && p.find(Freed, id) != nil }, p)
		same(t, p, d, []int32{1, 6}, []int32{5, 2}, 7)
		if got, want := d.find(Released, id).tokens, int32(7); got != want {
			t.Errorf("tokens %d; want %d", got, want)
		}
		if got, want := p.find(Freed, id).bytes, uint64(2*layers*heads*blockTokens*headBytes); got != want {
			t.Errorf("%d bytes written; want %d", got, want)
		}
		ranks := map[metadata.Rank]bool{}
		for ev := range events {
			if ev.Event == "ready" && ev.K == ev.N {
				if ev.Transfer != id.String() {
					t.Errorf("ready %+v", ev)
				}
				if ranks[ev.Rank] = true; len(ranks) == tp[1] {
					break
				}
			}
		}
		d.until(func() bool { return !rings(t, p, d) }, p) // and nothing is left that would keep a caller from sleeping
		for _, e := range []*engine{p, d} {
			if s := status(t, e.scheduler); s["legs"].(float64) != 0 || s["missed"].(float64) != 0 {
				t.Errorf("scheduler of %s: %v", e.inc.Engine, s)
			}
		}
	}
}

// watch reads an engine's events from its control routes.
func watch(t testing.TB, e *engine) <-chan control.Event {
	t.Helper()
	resp, err := http.Get("http://" + status(t, e.scheduler)["control"].(string) + "/kvplane/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Scan() // the stream is open
	out := make(chan control.Event, 1024)
	go func() {
		defer close(out)
		for lines.Scan() {
			var ev control.Event
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(data), &ev) == nil {
				out <- ev
			}
		}
	}()
	return out
}

// TestCancel: a transfer ends on both sides wherever it is given up, and its blocks are accounted for.
func TestCancel(t *testing.T) {
	g := pdkvtest.NewGateway(t)
	p, d := newEngine(t, g, "prefill-0", metadata.Prefill, 2, ""), newEngine(t, g, "decode-0", metadata.Decode, 1, "")
	t.Run("decode, before prefill has offered", func(t *testing.T) {
		id := admitted(t, g, p, d)
		if err := d.scheduler.Expect(&Transfer{ID: id, Peer: p.inc, To: 7, Groups: list(5, 2)}); err != nil {
			t.Fatal(err)
		}
		d.step()
		if err := d.scheduler.Cancel(id, "client left"); err != nil {
			t.Fatal(err)
		}
		d.until(func() bool { return d.find(Closed, id) != nil }, p)
		if err := p.scheduler.Offer(&Transfer{ID: id, Peer: d.inc, To: 7, Groups: list(1, 6)}); err != nil {
			t.Fatal(err)
		}
		if err := p.scheduler.Cancel(id, "nobody comes"); err != nil {
			t.Fatal(err)
		}
		p.until(func() bool { return p.find(Freed, id) != nil }, d)
		if d.find(Released, id) != nil {
			t.Error("released")
		}
	})
	t.Run("prefill, before it has offered", func(t *testing.T) {
		id := admitted(t, g, p, d)
		if err := d.scheduler.Expect(&Transfer{ID: id, Peer: p.inc, To: 7, Groups: list(5, 2)}); err != nil {
			t.Fatal(err)
		}
		if err := p.scheduler.Cancel(id, "aborted"); err != nil {
			t.Fatal(err)
		}
		d.until(func() bool { return d.find(Failed, id) != nil && d.find(Closed, id) != nil }, p)
		x := d.find(Failed, id)
		if x.reason != kvplane.Aborted || len(x.blocks) != 1 || len(x.blocks[0]) != 2 || x.blocks[0][0] != 2 || x.blocks[0][1] != 5 || !strings.HasPrefix(x.text, "aborted") {
			t.Errorf("%+v", x)
		}
	})
	t.Run("decode, before it has blocks", func(t *testing.T) {
		id := admitted(t, g, p, d)
		if err := p.scheduler.Offer(&Transfer{ID: id, Peer: d.inc, To: 7, Groups: list(1, 6)}); err != nil {
			t.Fatal(err)
		}
		if err := d.scheduler.Cancel(id, "client left"); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		p.until(func() bool { return p.find(Freed, id) != nil }, d)
		if x := p.find(Freed, id); x.reason != kvplane.Cancelled {
			t.Errorf("after %v: %+v; want that decode has said so, not that the lease was over", time.Since(begun), x)
		}
	})
	t.Run("by the gateway, before anything was ordered", func(t *testing.T) {
		id := admitted(t, g, p, d)
		d.scheduler.CancelledByGateway(id, "over")
		d.until(func() bool { return d.find(Cancelled, id) != nil }, p)
		if err := d.scheduler.Expect(&Transfer{ID: id, Peer: p.inc, To: 7, Groups: list(5, 2)}); err != nil {
			t.Fatal(err) // it crosses the cancel: it must not be silence that follows
		}
		d.until(func() bool { return d.find(Failed, id) != nil && d.find(Closed, id) != nil }, p)
		if err := p.scheduler.Cancel(id, "over"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("by the gateway", func(t *testing.T) {
		id := admitted(t, g, p, d)
		if err := p.scheduler.Offer(&Transfer{ID: id, Peer: d.inc, To: 7, Groups: list(1, 6)}); err != nil {
			t.Fatal(err)
		}
		p.step()
		at := "http://" + status(t, p.scheduler)["control"].(string)
		for _, one := range []kvplane.TransferID{id, kvplane.NewTransferID()} {
			if err := control.CancelTransfer(t.Context(), http.DefaultClient, at, nil, one, "over"); err != nil {
				t.Fatal(err)
			}
		}
		p.until(func() bool { return p.find(Freed, id) != nil }, d)
		if x := p.find(Cancelled, id); x == nil || x.text != "over" {
			t.Errorf("cancelled: %+v", x)
		}
		if got := status(t, p.scheduler)["strange"].(float64); got != 1 {
			t.Errorf("%v strange cancels; want 1", got)
		}
		if err := d.scheduler.Cancel(id, "over"); err != nil {
			t.Fatal(err)
		}
	})
	for _, e := range []*engine{p, d} {
		if s := status(t, e.scheduler); s["legs"].(float64) != 0 {
			t.Errorf("scheduler of %s: %v", e.inc.Engine, s)
		}
	}
}

// TestCancelTellsProducers: a decode leg ends before it was queued or expected. Its producers are told, whether the engine or the gateway cancels
// first: else they keep its blocks for a lease.
func TestCancelTellsProducers(t *testing.T) {
	for _, first := range []string{"engine", "gateway"} {
		t.Run(first, func(t *testing.T) {
			s := scheduler(t, `, generation: 7`)
			id, peer := kvplane.NewTransferID(), metadata.Incarnation{Engine: "p", Generation: 3}
			if err := s.Admit(metadata.Decode, id, peer, ""); err != nil {
				t.Fatal(err)
			}
			if first == "gateway" {
				s.CancelledByGateway(id, "client_left")
			}
			if err := s.Cancel(id, "aborted"); err != nil {
				t.Fatal(err)
			}
			n := 0
			_ = s.Orders(nil, &n)
			b := make([]byte, n)
			if err := s.Orders(b, &n); err != nil {
				t.Fatal(err)
			}
			o, err := sched.ParseOrders(b)
			if err != nil {
				t.Fatal(err)
			}
			if len(o.Queue) != 1 || o.Queue[0].Peer != peer || len(o.Abandon) == 0 {
				t.Errorf("orders %+v; want a queue order that names the peer, and an abandonment", o)
			}
		})
	}
}
