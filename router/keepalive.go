package router

import "time"

// keepAliveEvent is a comment: clients skip it, and whatever stands in between sees that the stream lives.
const keepAliveEvent = ": keep-alive\n\n"

// wakeUp has the read that follows end in time for a keep-alive. That is good for half its time, so that it is not set for
// every event: a comment comes between half and all of the configured time. What the fan reads has no client of its own.
func (s *stream) wakeUp() {
	every := *s.x.s.cfg.Timeouts.KeepAlive
	if every <= 0 || s.conn == nil {
		return
	}
	if now := time.Now(); s.woken.Sub(now) < every/2 {
		s.woken = now.Add(every)
		s.a.decode.wake(s.woken)
	}
}

// keepAlive tells the client that the stream lives. What is relayed is whole events, so it comes between two.
func (s *stream) keepAlive() {
	s.out = append(s.out, keepAliveEvent...)
	s.woken = time.Time{}
}
