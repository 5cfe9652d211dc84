package router

import "time"

// keepAliveEvent is a comment: clients skip it, and whatever stands in between sees that the stream lives.
const keepAliveEvent = ": keep-alive\n\n"

// wakeUp has the wait that follows end in time for a keep-alive, or when two events are too far apart. That is good for half its
// time, so that it is not set for every event: a comment comes between half and all of the configured time.
func (s *stream) wakeUp() {
	now, within := time.Now(), s.x.s.cfg.Timeouts.Stream
	if !s.silent {
		s.heard = now
	}
	end := s.heard.Add(within)
	if s.keepsAlive() {
		within = min(within, *s.x.s.cfg.Timeouts.KeepAlive)
	}
	if s.woken.Sub(now) < within/2 {
		if s.woken = now.Add(within); s.woken.After(end) {
			s.woken = end
		}
		s.a.decode.SetReadDeadline(s.woken)
	}
}

// keepsAlive reports whether the client is told that the stream lives. What the fan reads has no client of its own.
func (s *stream) keepsAlive() bool { return *s.x.s.cfg.Timeouts.KeepAlive > 0 && s.conn != nil }

// woke ends the leg, for the error that it returns, if nothing has come for too long. Else a comment may be due.
func (s *stream) woke() error {
	s.woken = time.Time{}
	if time.Since(s.heard) >= s.x.s.cfg.Timeouts.Stream {
		s.a.decode.Cancel(errLegLate)
		return errLegLate
	}
	if s.keepsAlive() {
		s.keepAlive()
	}
	return nil
}

// keepAlive tells the client that the stream lives. What is relayed is whole events, so it comes between two.
func (s *stream) keepAlive() { s.out = append(s.out, keepAliveEvent...) }
