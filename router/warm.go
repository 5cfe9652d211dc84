package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
)

// warmPause is the least time from one look at all pairs to the next, so that many changes at once cost one look.
const warmPause = 10 * time.Millisecond

// warmAnyway is after how many health checks all pairs are looked at though nothing has changed.
const warmAnyway = 15

// keepWarm begins the handshakes of all pairs that have not shaken hands, whenever something changed or a pause after
// a failure is over, until ctx ends. While nothing happens it hardly looks at all.
func (r *Router) keepWarm(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.pairs.wake:
		case <-timer.C:
		}
		again := r.warm(time.Now())
		timer.Reset(warmPause)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(again)
	}
}

// handshakes says which pairs have shaken hands, and when it is to be looked for pairs that should.
type handshakes struct {
	*metadata.Pairs
	wake chan struct{} // has room for one
}

// schedule has all pairs looked at now. It never blocks.
func (h *handshakes) schedule() { notify(h.wake) }

// warm begins the handshakes that are due between engines that are up, and returns when it is to be called again.
func (r *Router) warm(now time.Time) time.Duration {
	again := warmAnyway * r.now().cfg.Timeouts.Health
	for _, c := range r.now().fleet.Pairs {
		if c.Prefill.Down.Load() || c.Decode.Down.Load() {
			c.Reset()
			continue
		}
		pair, err := r.now().fleet.Runs(c)
		if err != nil {
			continue // until records come
		}
		if r.pairs.Ready(pair) {
			if c.Circuit(now) != health.HalfOpen {
				continue
			}
			r.pairs.ForgetPair(pair) // it has failed since
		}
		if pause := c.HandshakePause(pair, now); pause > 0 {
			again = min(again, pause)
			continue
		}
		if errors.Is(r.pairs.Start(pair, c.Weight(now)), metadata.ErrBusy) {
			again = min(again, r.now().cfg.Timeouts.Health)
		}
	}
	return again
}

// shake is the handshake of one pair as the registry calls it.
func (r *Router) shake(ctx context.Context, pair metadata.Pair) error {
	c := r.now().fleet.PairOf(pair)
	if c == nil {
		return fmt.Errorf("router: probe: %s and %s are no pair of one model", pair.Prefill.Engine, pair.Decode.Engine)
	}
	c.HandshakeBegun(pair)
	begun := time.Now()
	err := errPanicked
	r.tasks.Recover("a handshake", func() { err = r.probe(ctx, c, pair) })
	now := time.Now()
	pause := c.HandshakeEnded(pair, err, now, fleet.PairRules(r.now().cfg.Health))
	switch {
	case err == nil:
		r.left.handedOver(c, begun)
		r.log.Info("engines know each other", "prefill", pair.Prefill.ID(), "decode", pair.Decode.ID(), "took", now.Sub(begun))
	case errors.Is(err, metadata.ErrForgotten), errors.Is(ctx.Err(), context.Canceled): // one of them was started anew, or the router stops
	case errors.Is(err, errHandsNothing): // which was told
	default:
		r.log.Warn("handshake; trying again", "prefill", pair.Prefill.ID(), "decode", pair.Decode.ID(), "err", err, "pause", pause)
	}
	if err != nil {
		r.pairs.schedule()
	}
	return err
}

// Renewed notes that the records of an engine have changed: it appeared, was started anew, published another rank, or
// is gone. What is known of its earlier starts is void, and its pairs shake hands again. It does not block, and knows
// names that are not of the configuration as well as others.
func (r *Router) Renewed(name string) {
	e := r.now().fleet.Engine(name)
	if e == nil || !e.Publishes {
		return
	}
	if records := r.now().fleet.Records(e); len(records) > 0 {
		if run := records[0].Incarnation; e.Generation.Swap(run.Generation) != run.Generation {
			r.pairs.Retire(run)
		}
		r.log.Info("engine has published", "engine", records[0].ID(), "ranks", len(records))
	} else {
		r.pairs.Forget(name)
		r.log.Info("engine's records are gone", "engine", name)
	}
	r.pairs.schedule()
}
