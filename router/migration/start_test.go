package migration

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// moverOf returns a Mover with so many conversations that wait to leave an engine. They are kept if known is true.
func moverOf(t *testing.T, n int, known bool) (m *Mover, e *fleet.Engine) {
	t.Helper()
	s := &Snapshot{Config: &config.Config{}, Fleet: &fleet.Fleet{}}
	m = New(Parts{Log: slog.New(slog.DiscardHandler), Current: func() *Snapshot { return s }})
	m.plans.known.setLimit(1 << 20)
	e = new(fleet.Engine)
	for i := range n {
		c := &conversation{ids: make([]uint32, 33)}
		c.key[0], c.key[1], c.at[fleet.Decode] = uint64(i), 1, place{engine: e}
		if known {
			m.plans.known.put("", c, nil)
		}
		m.plans.addLocked(lane{reason: ForDrain, from: e}, task{c: c, role: fleet.Decode, tokens: 32})
	}
	return m, e
}

// TestStartLetsOthersIn: a request that ends does not wait until all conversations that wait are begun or dropped.
func TestStartLetsOthersIn(t *testing.T) {
	m, _ := moverOf(t, 400, false)
	began, seen := make(chan struct{}), make(chan int, 1)
	first := true
	m.observe = func(Ended) {
		if first {
			first = false
			close(began)
		}
		time.Sleep(time.Millisecond)
	}
	go func() {
		<-began
		seen <- m.Stats().Waiting
	}()
	m.startDue(time.Now())
	if n := <-seen; n == 0 {
		t.Error("all were dropped before another could look")
	}
	if n := m.Stats().Waiting; n != 0 {
		t.Errorf("%d wait still", n)
	}
}

// TestUnableEngineIsRemembered: a run of an engine that has shown that its KV cannot be moved is asked once, whatever waits.
func TestUnableEngineIsRemembered(t *testing.T) {
	for _, why := range []Result{HybridCache, NoHandOff} {
		m, e := moverOf(t, 4, true)
		dropped := map[Result]int{}
		m.observe = func(o Ended) { dropped[o.Result]++ }
		l := lane{reason: ForDrain, from: e}
		q := m.plans.lanes[l]
		w := q.waiting[0]
		q.waiting, q.moving = q.waiting[1:], 1
		m.ended(&driver{Mover: m, Planned: &Planned{s: m.current(), c: w.c, role: w.role, queue: q, From: e, To: new(fleet.Engine)}}, why)
		m.startDue(time.Now())
		if dropped[why] != 4 || len(dropped) != 1 {
			t.Errorf("%s: %v", why, dropped)
		}
		if _, unable := m.plans.unable.Of(e).of(1); unable {
			t.Errorf("%s: the next run is not asked", why)
		}
	}
}

// TestWaitingMovesEnd: however long moves have to wait for the bytes of a pair, they are over soon after their source is.
func TestWaitingMovesEnd(t *testing.T) {
	const perToken, perMove = 1 << 20, 32 // bytes, tokens
	cfg, f := fleetABC(t, policies.Default(), fakeRecords(perToken))
	cfg.Migration.BytesPerSecond = 1
	synctest.Test(t, func(t *testing.T) {
		s := &Snapshot{Config: &cfg, Fleet: f}
		m := New(Parts{Log: slog.New(slog.DiscardHandler), Current: func() *Snapshot { return s }})
		m.plans.known.setLimit(1 << 20)
		from, to := f.Engines[0], f.Engines[1]
		m.plans.pairs.begin(pair{from, to}, time.Now(), perMove*perToken, 1)
		for i := range 2 * mostAtOnce {
			c := &conversation{model: "m", ids: make([]uint32, perMove+1)}
			c.key[0], c.at[fleet.Decode] = uint64(i+1), place{from, f.RunOf(from)}
			m.plans.known.put("", c, nil)
			m.plans.addLocked(lane{ForDrain, from, to}, task{c: c, role: fleet.Decode, run: f.RunOf(from), tokens: perMove})
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go m.Run(ctx)
		m.wake <- struct{}{}
		time.Sleep(time.Second)
		if n := m.Stats().Waiting; n != 2*mostAtOnce {
			t.Errorf("%d wait before the source is lost; want all %d", n, 2*mostAtOnce)
		}
		from.Down.Store(true)
		time.Sleep(dueAgain)
		synctest.Wait()
		if n := m.Stats().Waiting; n != 0 {
			t.Errorf("%d still wait %v after the source was lost", n, dueAgain)
		}
	})
}
