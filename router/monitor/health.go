package monitor

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"pdrouter/router/fleet"
	"pdrouter/router/upstream"
)

// firstChecks is the time over which the first checks of many engines are spread.
const firstChecks = 100 * time.Millisecond

// bundles is into how many moments the checks of a period are aligned. What a gateway at rest in front of 1,000 engines uses is
// mostly being woken, and then it is woken for many of them at once.
const bundles = 10

// aligned returns how long after now the last multiple of step is that is not after d, and at least half of d.
func aligned(now time.Time, d, step time.Duration) time.Duration {
	return max(d/2, now.Add(d).Truncate(step).Sub(now))
}

// watchHealth checks the health of an engine until ctx ends, at times that chance keeps apart from those of others.
func (m *Monitor) watchHealth(ctx context.Context, e *fleet.Engine) {
	next := time.NewTimer(rand.N(min(firstChecks, time.Duration(len(m.current().Fleet.Engines)+1)*time.Millisecond)))
	defer next.Stop()
	its, held := upstream.NewTimeouts(ctx), HeldBlocks{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-e.Recheck:
		}
		every := m.current().Timeouts.Health
		e.Progress.Store(false)
		result := Check(e, its, every)
		if ctx.Err() != nil {
			return
		}
		switch {
		case result == Healthy && e.Down.Load():
			m.Back(ctx, e)
		case result == Healthy:
			e.Reached()
		case result == checkRefused:
			m.current().Fleet.WentDown(e, e.Refused())
		case result == checkLate:
			m.late(e)
		default:
			m.current().Fleet.WentDown(e, e.Missed())
		}
		if result == Healthy {
			m.report(e)
		}
		held = m.Recount(ctx, e, held)
		next.Reset(aligned(time.Now(), every-every/8+rand.N(every/4+1), every/bundles))
	}
}

// HeldBlocks is what an engine's own gauge has shown of the blocks that are counted as leaked there.
type HeldBlocks struct {
	Said int // how many blocks it was said to hold, also those that it may hold
	Used int // how many blocks of its KV cache are in use, for any request
}

// Recount asks a stock engine with leaked blocks whether it still holds them: what may be held often is not. It holds no more
// than it says at two health checks in a row that it uses. was is what the last one has shown; recount returns the same for the next.
func (m *Monitor) Recount(ctx context.Context, e *fleet.Engine, was HeldBlocks) HeldBlocks {
	now := HeldBlocks{Said: m.leaks.Blocks(e, time.Now())}
	if now.Said == 0 || e.Down.Load() {
		return HeldBlocks{}
	}
	l, t := m.askLoad(ctx, e)
	if t != LoadKnown || l.used < 0 {
		return HeldBlocks{}
	}
	now.Used = l.used
	if now.Said != was.Said {
		return now
	}
	if freed := m.leaks.AtMost(e, now.Said, max(now.Used, was.Used), time.Now()); freed > 0 {
		m.log.Info("blocks are not held after all", "engine", e.Name, "blocks", freed)
		now.Said -= freed
	}
	return now
}

// CheckResult is the outcome of a health check.
type CheckResult uint8

const (
	Healthy      CheckResult = iota
	checkFailed              // an answer that says no, or none as the connection broke or could not be made
	checkLate                // no answer in time, on a connection
	checkRefused             // the engine refuses connections
)

// Back takes an engine into use that was down and is healthy again.
func (m *Monitor) Back(ctx context.Context, e *fleet.Engine) {
	m.Recognize(ctx, e)
	if ctx.Err() != nil {
		return
	}
	e.Restored(time.Now())
	if o := m.current().Fleet.Models[e.Model]; o != nil {
		o.Queue.Update()
	}
	m.log.Info("engine is back", "engine", e.Name)
	e.PollSoon()
	e.AskModels()
	m.pairs.Schedule()
}

// Check asks the engine's health route, for at most timeout but no less than a second.
func Check(e *fleet.Engine, its *upstream.Timeouts, timeout time.Duration) CheckResult {
	held := its.Begin(max(timeout, time.Second))
	defer its.End()
	status, _, err := Get(held, e, "/health", 1<<20)
	var up *upstream.Error
	switch {
	case upstream.RefusesConnections(err):
		return checkRefused
	case errors.Is(err, context.DeadlineExceeded) && errors.As(err, &up) && up.Phase != upstream.PhaseDial:
		return checkLate
	case err != nil || status != 200:
		return checkFailed
	}
	return Healthy
}

// Get asks an engine for a document of at most so many bytes.
func Get(ctx context.Context, e *fleet.Engine, path string, most int) (status int, document []byte, err error) {
	resp, err := e.Upstream.Do(ctx, &upstream.Request{Method: "GET", Path: path, Header: e.Header[1:]})
	if err != nil {
		return 0, nil, err
	}
	defer resp.Close()
	document, err = resp.ReadAll(nil, most)
	return resp.Status, document, err
}

// late notes a health check that was not answered in time. An engine whose requests make progress is only busy, and the last one
// of a role that can take requests is never taken out for being slow.
func (m *Monitor) late(e *fleet.Engine) {
	if !e.Late() {
		return
	}
	m.slowest.Lock()
	defer m.slowest.Unlock()
	if f := m.current().Fleet; !f.LastUsable(e) {
		f.WentDown(e, e.Down.CompareAndSwap(false, true))
	}
}
