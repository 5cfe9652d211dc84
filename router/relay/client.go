package relay

import (
	"net"
	"time"
)

// ClientWriter bounds the writes of an answer that is sent as it comes.
type ClientWriter struct {
	Conn  net.Conn // nil if there is no client of its own: a fan's branch
	Limit time.Duration
	set   time.Time // when Conn's write deadline was set
}

// ExtendDeadline bounds the write that follows. A deadline is good for half its time, so that it is not set for every event.
func (w *ClientWriter) ExtendDeadline() {
	if w.Conn == nil {
		return
	}
	if now := time.Now(); now.Sub(w.set) > w.Limit/2 {
		w.set = now
		_ = w.Conn.SetWriteDeadline(now.Add(w.Limit))
	}
}

// ClearDeadline ends that: the answer is written.
func (w *ClientWriter) ClearDeadline() {
	if w.Conn != nil {
		_ = w.Conn.SetWriteDeadline(time.Time{})
	}
}
