package router_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// drawing is roomy, and keeps by which chance it was asked for room and for a choice.
type drawing struct {
	roomy
	mu            sync.Mutex
	asked, chosen []uint64
}

func (d *drawing) Room(q policies.Request, f policies.Fleet, draw policies.Draw, unbegun, tokens int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, draw.Random)
	return d.roomy.Room(q, f, draw, unbegun, tokens)
}

func (d *drawing) Choose(q policies.Request, f policies.Fleet, draw policies.Draw) policies.Choice {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.chosen = append(d.chosen, draw.Random)
	return d.roomy.Choose(q, f, draw)
}

// TestRoomIsOfTheChoice: the engines of a request are chosen by the chance by which room was found for it. Further choices have each their own.
func TestRoomIsOfTheChoice(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePush, 1, 2, nil)
	for _, e := range s.Engines() {
		e.SetHabit(func(h *routertest.Habit) { h.Parrot = true })
	}
	s.Config.Queue.ByObjective, s.Config.Limits.MaxParallelChoices = true, 8
	planner := new(drawing)
	g := routertest.Start(t, s.Config, router.Parts{Planner: planner})
	routertest.Eventually(t, "every pair is known", func() bool { return g.Router.Stats().Handshakes.Ready == 2 })
	g.WaitIdle()
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "alone", Nth: 1, Do: routertest.DoHang}}})
	conn := g.Dial(t) // an idle model has room, whatever the planner says
	defer conn.Close()
	const short = `{"model":"tiny","prompt":"a","max_tokens":1}` // no engine holds KV for it when its client leaves
	if _, err := fmt.Fprint(conn, routertest.RawPost(routertest.PathCompletions, short, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(short)))); err != nil {
		t.Fatal(err)
	}
	routertest.Eventually(t, "decode-0 has the first request", func() bool {
		s.Decode[0].Mu.Lock()
		defer s.Decode[0].Mu.Unlock()
		return s.Decode[0].N["alone"] == 1
	})
	seen := map[uint64]bool{}
	for _, row := range []struct {
		body   string
		chosen int // times
	}{
		{routertest.StreamBody, 1},
		{routertest.PlainBody, 1},
		{`{"model":"tiny","prompt":"a","n":3,"max_tokens":16}`, 3},
	} {
		planner.mu.Lock()
		planner.asked, planner.chosen = nil, nil
		planner.mu.Unlock()
		if r := g.Post(routertest.PathCompletions, row.body); r.Status != 200 {
			t.Fatalf("%s: status %d: %s", row.body, r.Status, r.Body)
		}
		planner.mu.Lock()
		asked, others := planner.asked[0], slices.DeleteFunc(slices.Clone(planner.chosen), func(r uint64) bool { return r == planner.asked[0] })
		if asked == 0 || seen[asked] || len(others) != len(planner.chosen)-1 || len(planner.chosen) < row.chosen {
			t.Errorf("%s: room was asked for by %x, engines were chosen by %x", row.body, asked, planner.chosen)
		}
		seen[asked] = true
		planner.mu.Unlock()
	}
	conn.Close()
	g.WaitIdle()
}
