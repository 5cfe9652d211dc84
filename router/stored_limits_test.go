package router_test

import (
	"context"
	"sync/atomic"
	"testing"

	"pdrouter/auth"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/edge"
)

// fakeAsked are responses that count how often they are asked for one.
type fakeAsked struct {
	fakeResponses
	asked atomic.Int64
}

func (f *fakeAsked) Get(ctx context.Context, key string) ([]byte, bool, error) {
	f.asked.Add(1)
	return f.fakeResponses.Get(ctx, key)
}

// fakeBudget admits so many requests at once, and counts those that have not ended.
type fakeBudget struct {
	max   int64
	holds atomic.Int64
}

func (f *fakeBudget) Acquire(auth.Principal, int) (edge.Lease, edge.Allowance) {
	if f.holds.Add(1) > f.max {
		f.holds.Add(-1)
		return nil, edge.Allowance{Over: "concurrent"}
	}
	return f, edge.Allowance{}
}

func (f *fakeBudget) Done(int) { f.holds.Add(-1) }

// TestStoredBehindLimits: for a caller who has nothing left nobody is asked where a response is, and one that is not found
// holds no place of his.
func TestStoredBehindLimits(t *testing.T) {
	for _, row := range []struct {
		max    int64
		status int
		asked  int64
	}{{0, 429, 0}, {1, 404, 20}} {
		facts, budget := new(fakeAsked), &fakeBudget{max: row.max}
		e := newFakeKeeper(t, "decode-0")
		g := routertest.Start(t, routertest.AnyFleet(e.AnyEngine), router.Parts{Responses: facts, Limiter: budget})
		for range 10 {
			for _, r := range []routertest.Reply{
				g.Ask("GET", routertest.PathResponses+"/resp_0123456789abcdef0123456789abcdef"),
				g.Post(routertest.PathResponses, `{"model":"tiny","input":"b","previous_response_id":"resp_0123456789abcdef0123456789abcdef"}`),
			} {
				if routertest.ErrorOf(t, r.Body); r.Status != row.status {
					t.Fatalf("of %d places: status %d: %s", row.max, r.Status, r.Body)
				}
			}
		}
		if n := facts.asked.Load(); n != row.asked {
			t.Errorf("of %d places: asked %d times; want %d", row.max, n, row.asked)
		}
		if n := budget.holds.Load(); n != 0 {
			t.Errorf("%d places are held", n)
		}
		g.Stop()
		e.Server.Close()
	}
}
