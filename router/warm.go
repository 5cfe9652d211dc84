package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
	"pdrouter/router/monitor"
	"pdrouter/router/openai"
	"pdrouter/router/reclaim"
	"pdrouter/router/upstream"
)

// warmPause is the least time from one look at all pairs to the next, so that many changes at once cost one look.
const warmPause = 10 * time.Millisecond

// warmAnyway is after how many health checks all pairs are looked at though nothing has changed.
const warmAnyway = 15

// run begins the handshakes of all pairs that have not shaken hands, whenever something changed or a pause after
// a failure is over, until ctx ends. While nothing happens it hardly looks at all.
func (h *handshaker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.pairs.Wake():
		case <-timer.C:
		}
		again := h.startDue(time.Now())
		timer.Reset(warmPause)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(again)
	}
}

// handshakeSnapshot is what handshakes go by at one moment. It is never changed.
type handshakeSnapshot struct {
	cfg      *config.Config
	fleet    *fleet.Fleet
	bodies   openai.Limits
	stock    monitor.Stock          // nil: stock engines are not asked what they are
	token    func() (string, error) // bearer token for the engines' control routes; nil: none is sent
	enroller Enroller               // nil: no tickets
	reclaim  *reclaim.Snapshot
}

// handshaker makes pairs ready before requests need them. It goes by the present configuration, as it outlives each; a handshake goes by
// that of its beginning. It is safe for concurrent use.
type handshaker struct {
	log       *slog.Logger
	current   func() *handshakeSnapshot
	tasks     *background.Tasks
	pairs     *fleet.Handshakes
	cancels   *upstream.CancelSet
	monitor   *monitor.Monitor
	reclaim   *reclaim.Reclaimer
	transfers *transfers
}

func newHandshaker(log *slog.Logger, current func() *handshakeSnapshot, tasks *background.Tasks, pairs *fleet.Handshakes, cancels *upstream.CancelSet,
	m *monitor.Monitor, r *reclaim.Reclaimer, t *transfers,
) *handshaker {
	return &handshaker{log: log, current: current, tasks: tasks, pairs: pairs, cancels: cancels, monitor: m, reclaim: r, transfers: t}
}

// startDue begins the handshakes that are due between engines that are up, and returns when it is to be called again.
func (h *handshaker) startDue(now time.Time) time.Duration {
	s := h.current()
	again := warmAnyway * s.cfg.Timeouts.Health
	for _, c := range s.fleet.Pairs {
		if c.Prefill.Down.Load() || c.Decode.Down.Load() {
			c.Reset()
			continue
		}
		pair, err := s.fleet.Runs(c)
		if err != nil {
			continue // until records come
		}
		if h.pairs.Ready(pair) {
			if c.Circuit(now) != health.HalfOpen {
				continue
			}
			h.pairs.ForgetPair(pair) // it has failed since
		}
		if pause := c.HandshakePause(pair, now); pause > 0 {
			again = min(again, pause)
			continue
		}
		if errors.Is(h.pairs.Start(pair, c.Weight(now)), metadata.ErrBusy) {
			again = min(again, s.cfg.Timeouts.Health)
		}
	}
	return again
}

// handshake is the handshake of one pair as the registry calls it.
func (h *handshaker) handshake(ctx context.Context, pair metadata.Pair) error {
	s := h.current()
	c := s.fleet.PairOf(pair)
	if c == nil {
		return fmt.Errorf("router: probe: %s and %s are no pair of one model", pair.Prefill.Engine, pair.Decode.Engine)
	}
	c.HandshakeBegun(pair)
	begun := time.Now()
	err := errPanicked
	h.tasks.Recover("a handshake", func() { err = h.probe(ctx, s, c, pair) })
	now := time.Now()
	pause := c.HandshakeEnded(pair, err, now, fleet.PairRules(s.cfg.Health))
	switch {
	case err == nil:
		h.reclaim.Leaks.HandedOver(c, begun)
		h.log.Info("engines know each other", "prefill", pair.Prefill.ID(), "decode", pair.Decode.ID(), "took", now.Sub(begun))
	case errors.Is(err, metadata.ErrForgotten), errors.Is(ctx.Err(), context.Canceled): // one of them was started anew, or the router stops
	case errors.Is(err, errHandsNothing): // which was told
	default:
		h.log.Warn("handshake; trying again", "prefill", pair.Prefill.ID(), "decode", pair.Decode.ID(), "err", err, "pause", pause)
	}
	if err != nil {
		h.pairs.Schedule()
	}
	return err
}
