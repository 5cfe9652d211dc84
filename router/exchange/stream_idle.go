package exchange

import (
	"time"

	"pdrouter/router/leg"
)

// keepAliveEvery is the silence after which the client is told that the stream lives; 0 if it is not told. A fan's branch has no client.
func (x *Exchange) keepAliveEvery() time.Duration {
	if x.client.Conn == nil {
		return 0
	}
	return *x.s.Config.Timeouts.KeepAlive
}

// idle is the wait for an engine's next event.
type idle struct {
	silent bool      // the last wait has ended with nothing
	since  time.Time // when the first of the waits began that have brought nothing
	until  time.Time // when the wait is to end; zero if that is not set
}

// arm has the wait that follows end in time for a keep-alive, or when two events are too far apart. That is good for half its
// time, so that it is not set for every event: a comment comes between half and all of the configured time.
func (i *idle) arm(d *leg.Leg, within, keepAlive time.Duration) {
	now := time.Now()
	if !i.silent {
		i.since = now
	}
	end := i.since.Add(within)
	if keepAlive > 0 {
		within = min(within, keepAlive)
	}
	if i.until.Sub(now) < within/2 {
		if i.until = now.Add(within); i.until.After(end) {
			i.until = end
		}
		d.SetReadDeadline(i.until)
	}
}

// silent ends the leg, for the error that it returns, if nothing has come for too long. Else a comment may be due.
func (x *Exchange) silent(d *leg.Leg) error {
	x.idle.silent, x.idle.until = true, time.Time{}
	if time.Since(x.idle.since) >= x.s.Config.Timeouts.Stream {
		d.Cancel(leg.ErrLate)
		return leg.ErrLate
	}
	if x.keepAliveEvery() > 0 {
		x.Reply.Stream.KeepAlive()
	}
	return nil
}
