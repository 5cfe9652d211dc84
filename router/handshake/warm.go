// Package handshake makes pairs of engines ready before requests need them: as soon as both are up and their records are known, a whole
// request of the gateway's own goes through both. It runs in the background, goes by the present configuration, and retries with pauses. What
// a handshake may leak it hands to package reclaim. Which pairs are ready is kept by fleet.Handshakes; ask there for one.
package handshake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/monitor"
	"pdrouter/router/openai"
	"pdrouter/router/reclaim"
	"pdrouter/router/upstream"
)

// warmPause is the least time from one look at all pairs to the next, so that many changes at once cost one look.
const warmPause = 10 * time.Millisecond

// warmAnyway is after how many health checks all pairs are looked at though nothing has changed.
const warmAnyway = 15

// Run begins the handshakes of all pairs that have not shaken hands, whenever something changed or a pause after
// a failure is over, until ctx ends. While nothing happens it hardly looks at all.
func (h *Handshaker) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.pairs.Wake():
		case <-timer.C:
		}
		again := h.StartDue(time.Now())
		timer.Reset(warmPause)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(again)
	}
}

// Snapshot is what handshakes go by at one moment. It is never changed.
type Snapshot struct {
	Config  *config.Config
	Fleet   *fleet.Fleet
	Bodies  openai.Limits
	Stock   monitor.Stock          // nil: stock engines are not asked what they are
	Token   func() (string, error) // bearer token for the engines' control routes; nil: none is sent
	Tickets kvtransfer.Signer      // nil: no tickets
	Reclaim *reclaim.Snapshot
}

// Handshaker makes pairs ready before requests need them. It goes by the present configuration, as it outlives each; a handshake goes by
// that of its beginning. It is safe for concurrent use.
type Handshaker struct {
	log       *slog.Logger
	current   func() *Snapshot
	tasks     *background.Tasks
	pairs     *fleet.Handshakes
	cancels   *upstream.CancelSet
	monitor   *monitor.Monitor
	reclaim   *reclaim.Reclaimer
	transfers *kvtransfer.Transfers
}

// New returns one that begins nothing before Run. current returns what the next handshake goes by.
func New(log *slog.Logger, current func() *Snapshot, tasks *background.Tasks, pairs *fleet.Handshakes, cancels *upstream.CancelSet,
	m *monitor.Monitor, r *reclaim.Reclaimer, t *kvtransfer.Transfers,
) *Handshaker {
	return &Handshaker{log: log, current: current, tasks: tasks, pairs: pairs, cancels: cancels, monitor: m, reclaim: r, transfers: t}
}

// StartDue begins the handshakes that are due between engines that are up, and returns when to call it again.
func (h *Handshaker) StartDue(now time.Time) time.Duration {
	s := h.current()
	again := warmAnyway * s.Config.Timeouts.Health
	for _, c := range s.Fleet.Pairs {
		if c.Prefill.Down.Load() || c.Decode.Down.Load() {
			c.Reset()
			continue
		}
		pair, err := s.Fleet.Runs(c)
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
		if errors.Is(h.pairs.Start(pair, c.Weight(now)), handshake.ErrBusy) {
			again = min(again, s.Config.Timeouts.Health)
		}
	}
	return again
}

// Handshake is the handshake of one pair as the registry calls it.
func (h *Handshaker) Handshake(ctx context.Context, pair metadata.Pair) error {
	s := h.current()
	c := s.Fleet.PairOf(pair)
	if c == nil {
		return fmt.Errorf("router: probe: %s and %s are no pair of one model", pair.Prefill.Engine, pair.Decode.Engine)
	}
	c.HandshakeBegun(pair)
	begun := time.Now()
	err := errPanicked
	h.tasks.Recover("a handshake", func() { err = h.probe(ctx, s, c, pair) })
	now := time.Now()
	pause := c.HandshakeEnded(pair, err, now, fleet.PairRules(s.Config.Health))
	switch {
	case err == nil:
		h.reclaim.Leaks.HandedOver(c, begun)
		h.log.Info("engines know each other", "prefill", pair.Prefill.ID(), "decode", pair.Decode.ID(), "took_seconds", now.Sub(begun).Seconds())
	case errors.Is(err, handshake.ErrForgotten), errors.Is(ctx.Err(), context.Canceled): // one of them has restarted, or the router stops
	case errors.Is(err, errHandsNothing): // which was told
	default:
		h.log.Warn("handshake; trying again", "prefill", pair.Prefill.ID(), "decode", pair.Decode.ID(), "err", err, "pause", pause)
	}
	if err != nil {
		h.pairs.Schedule()
	}
	return err
}
