package agent

import (
	"errors"
	"fmt"

	"pdrouter/kvplane/internal/core"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// connect makes the transport know a peer, unless it does or a pause before the next attempt is running: but a long pause ends now that the peer
// is needed, or has spoken. While writes over a lost connection have not ended there is only the next attempt.
func (o *owner) connect(p *peer) error {
	if p.connected || p.retry > 0 && p.retry <= o.now()+o.cfg.Times.Pause {
		return nil
	}
	p.retry = 0
	if p.gone {
		return fmt.Errorf("kvplane: %s: %w", p.record.ID(), ErrSuperseded)
	}
	if _, err := o.session(p); err != nil {
		return err
	}
	o.active = o.now()
	err := o.cfg.Transport.Connect(p.record)
	switch {
	case errors.Is(err, transport.ErrBusy):
		o.retryConnect(p)
		return nil
	case err != nil:
		return err
	}
	p.connected = true
	o.step(core.Event{Kind: core.EvUp, Peer: p.id})
	return nil
}

// attemptsUntilLong is how many attempts in a row must fail before the pause between them grows from Times.Pause to Times.Lease. A peer whose host
// is gone for good is still asked how fenced writes have ended, and nothing says that it will never answer.
const attemptsUntilLong = 32

// retryConnect plans the next attempt to reach a peer.
func (o *owner) retryConnect(p *peer) {
	if p.connected || p.gone || p.retry > 0 {
		return
	}
	p.retry = o.now() + min(o.cfg.Times.Resend<<min(p.attempts, 10), o.cfg.Times.Pause)
	if p.attempts >= attemptsUntilLong {
		p.retry = o.now() + max(o.cfg.Times.Lease, o.cfg.Times.Pause)
	}
	p.attempts++
	o.timers.Set(p)
	if p.attempts > 3 {
		o.suspectStale(p)
	}
}

// reconnect is the next attempt. That it works is known when the peer speaks; the cores send at once all the same.
func (o *owner) reconnect(p *peer) {
	p.retry = 0
	if p.gone || p.connected {
		return
	}
	if err := o.connect(p); err != nil {
		o.log.Warn("kvplane: connect", "peer", p.record.Agent, "err", err)
		o.step(core.Event{Kind: core.EvUnreachable, Peer: p.id, Detail: err.Error()})
		o.retryConnect(p)
	}
}

// lost handles the end of a connection.
func (o *owner) lost(agent string, err error) {
	p := o.agents[agent]
	if p == nil || !p.connected {
		return
	}
	o.log.Info("kvplane: connection lost", "peer", agent, "err", err)
	o.cfg.Transport.Disconnect(agent)
	p.connected = false
	o.step(core.Event{Kind: core.EvDown, Peer: p.id})
	o.checkLivenessWithin(o.cfg.Times.Resend)
}

// suspectStale asks the directory whether a silent peer's engine has been started anew, at most every Times.Pause.
func (o *owner) suspectStale(p *peer) {
	inc, now := p.record.Incarnation, o.now()
	e := o.engines[inc]
	if e == nil || e.suspectedAt > 0 && now-e.suspectedAt < o.cfg.Times.Pause {
		return
	}
	e.suspectedAt = now
	o.lookup(inc, func(_ []metadata.Record, err error) {
		if errors.Is(err, ErrSuperseded) {
			o.gone(inc, o.cfg.SerialStarts)
		}
	})
}
