package router

import (
	"net"
	"time"

	"pdrouter/router/leg"
)

// clientWriter bounds the writes of an answer that is sent as it comes.
type clientWriter struct {
	conn  net.Conn // nil if there is no client of its own: a fan's branch
	limit time.Duration
	set   time.Time // when conn's write deadline was set
}

// extendDeadline bounds the write that follows. A deadline is good for half its time, so that it is not set for every event.
func (w *clientWriter) extendDeadline() {
	if w.conn == nil {
		return
	}
	if now := time.Now(); now.Sub(w.set) > w.limit/2 {
		w.set = now
		_ = w.conn.SetWriteDeadline(now.Add(w.limit))
	}
}

func (w *clientWriter) clearDeadline() {
	if w.conn != nil {
		_ = w.conn.SetWriteDeadline(time.Time{})
	}
}

// keepAliveEvery is the silence after which the client is told that the stream lives; 0 if it is not told. A fan's branch has no client.
func (x *exchange) keepAliveEvery() time.Duration {
	if x.client.conn == nil {
		return 0
	}
	return *x.s.cfg.Timeouts.KeepAlive
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
func (x *exchange) silent(d *leg.Leg) error {
	x.idle.silent, x.idle.until = true, time.Time{}
	if time.Since(x.idle.since) >= x.s.cfg.Timeouts.Stream {
		d.Cancel(leg.ErrLate)
		return leg.ErrLate
	}
	if x.keepAliveEvery() > 0 {
		x.reply.stream.KeepAlive()
	}
	return nil
}
