package exchange

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/leg"
	"pdrouter/router/reason"
	"pdrouter/router/relay"
)

// SetClient sets the client's connection, and the deadline of the first write to it. Then the server calls WriteTo and CloseWithError.
func (x *Exchange) SetClient(conn net.Conn) {
	x.client = ClientWriter{Conn: conn, Limit: x.s.Config.Timeouts.Write}
	x.client.ExtendDeadline()
}

// WriteTo writes events as they come, until the stream ends, well or not.
func (x *Exchange) WriteTo(w io.Writer) (int64, error) {
	sum := int64(0)
	for {
		events, err := x.NextEvents()
		if errors.Is(err, io.EOF) {
			return sum, nil
		} else if err != nil {
			return sum, err
		}
		n, err := w.Write(events)
		if sum += int64(n); err != nil {
			return sum, err
		}
	}
}

// SupportsBodyWriteTo has the server call WriteTo and not Read, for which it would hold a buffer of its own.
func (x *Exchange) SupportsBodyWriteTo() bool { return true }

// Read is there for readers that know nothing else. It returns events as they come.
func (x *Exchange) Read(p []byte) (int, error) {
	if err := x.more(); err != nil {
		return 0, err
	}
	return x.Reply.Stream.Read(p), nil
}

// NextEvents waits for events and returns all that are here, valid until the next call. io.EOF only follows the route's terminal event.
func (x *Exchange) NextEvents() ([]byte, error) {
	if err := x.more(); err != nil {
		return nil, err
	}
	return x.Reply.Stream.TakeOut(), nil
}

// more waits until there is something for the client, or returns how the stream has ended.
func (x *Exchange) more() (err error) {
	s := x.Reply.Stream
	defer func() {
		if v := recover(); v != nil {
			x.Panicked(v)
			s.Abort()
			if err = nil; s.Empty() {
				err = s.Err()
			}
		}
	}()
	for s.Empty() {
		if err := s.Err(); err != nil {
			return err
		}
		s.Reuse()
		if x.advance(); x.HasOutcome {
			s.Abort()
		}
	}
	if s.Whole() {
		x.awaitRecorded() // blocks only for a response of /v1/responses that an engine keeps
	}
	x.client.ExtendDeadline()
	return nil
}

// stepStream passes on the events of decode that are here, or waits for more. At the end of decode's stream it ends the client's.
func (x *Exchange) stepStream() {
	s := x.Reply.Stream
	d := s.Leg
	switch {
	case s.Failed() != reason.None:
		d.ObserveStream(x.s.Fleet, s.Failed())
		x.streamFailed()
	case s.Whole():
		x.streamEnded()
	case !x.pour():
		s.FreeIfEmpty()
		if !x.armInterrupt(&d.Canceler) {
			return
		}
		// From here on an event of the request cancels decode's leg: each of them ends the stream. The failure that this makes of the wait is
		// never looked at, as advance takes the event first.
		x.idle.arm(d, x.s.Config.Timeouts.StreamIdle, x.keepAliveEvery())
		err := d.Response.Await()
		x.disarmInterrupt()
		if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && d.Cause() == nil {
			err = x.silent(d)
		} else {
			x.idle.silent = false
		}
		if err != nil {
			s.Fail(reason.StreamCut, err)
		}
	}
}

// pour takes the events of all that is here. It reports false if that is nothing.
func (x *Exchange) pour() (some bool) {
	s := x.Reply.Stream
	d, before := s.Leg, s.Pieces()
	// All that is here has come together, in however many chunks: it may have waited for the client, or on the way.
	defer func() { d.Work.Said(s.Pieces() - before) }()
	for ; s.NeedsMore(); some = true {
		b, err := d.Response.Take()
		switch {
		case err != nil:
			s.Fail(reason.StreamCut, err)
			return true
		case len(b) == 0:
			return some
		}
		d.Engine.Progressed()
		s.Take(b)
	}
	return true
}

// streamEnded ends the stream, whose terminal event the client has.
func (x *Exchange) streamEnded() {
	s := x.Reply.Stream
	d := s.Leg
	d.ObserveStream(x.s.Fleet, reason.None)
	// The rest is the end of the body, which lets the connection be used again.
	if !d.Response.AtEnd(func() { d.SetReadDeadline(time.Now().Add(time.Second)) }) {
		d.Cancel(leg.ErrEnded)
	}
	d.SetReadDeadline(time.Time{})
	if c, ok := x.client.Conn.(interface{ JoinNext() }); ok {
		c.JoinNext() // the server writes the last chunk, and then the line that ends the answer
	}
	s.Finish()
}

// streamFailed tells the dispatch that the stream has failed, and what that leaves to be done.
func (x *Exchange) streamFailed() {
	s := x.Reply.Stream
	e := dispatch.Event{Kind: dispatch.EvStreamLost, Why: s.Failed()}
	remedy, why := s.Remedy()
	switch remedy {
	case relay.RemedyEnd:
		e.Kind = dispatch.EvStreamUnended
	case relay.RemedyCut:
		if why == "" && x.uncontinued {
			why = "unsupported"
		}
		e.Kind, x.Sum.NotContinued = dispatch.EvStreamCut, why
	}
	x.postOwn(e)
}

// awaitContinuation waits for what the engine that was asked to go on says, for the client, or for as long as the stream may be silent.
func (x *Exchange) awaitContinuation() {
	var quiet <-chan time.Time
	if every := x.keepAliveEvery(); every > 0 {
		t := time.NewTimer(every)
		defer t.Stop()
		quiet = t.C
	}
	select {
	case <-x.wake:
	case <-quiet:
		x.Reply.Stream.KeepAlive()
	}
}

// resume takes over the stream of the engine that goes on, if the client can have what it says.
func (x *Exchange) resume(m envelope) dispatch.Event {
	next := m.a.stream
	m.a.stream = nil
	x.idle = idle{}
	if !x.Reply.Stream.Resume(next) {
		return x.refuseStream(m)
	}
	return m.e
}

// CloseWithError tells how the stream ended: nil only if the client got every byte.
func (x *Exchange) CloseWithError(err error) error {
	if a, s := x.cur, x.Reply.Stream; a != nil && a.split && s.Whole() {
		x.all.Reclaim.Streamed(x.s.Reclaim, a.decode.Engine, x.m.Name, &a.h, x.b.PromptTokens()+int(s.Pieces()))
	}
	if !x.HasOutcome {
		switch {
		case err == nil:
			x.step(dispatch.Event{Kind: dispatch.EvStreamWhole})
		case errors.Is(err, os.ErrDeadlineExceeded):
			x.step(dispatch.Event{Kind: dispatch.EvClientSlow, Why: reason.SlowClient})
		default:
			x.step(dispatch.Event{Kind: dispatch.EvClientLeft, Why: reason.ClientLeft})
		}
	}
	x.Reply.Stream.Free()
	x.client.ClearDeadline()
	x.drainOn()
	return nil
}

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
	if time.Since(x.idle.since) >= x.s.Config.Timeouts.StreamIdle {
		d.Cancel(leg.ErrLate)
		return leg.ErrLate
	}
	if x.keepAliveEvery() > 0 {
		x.Reply.Stream.KeepAlive()
	}
	return nil
}

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
