package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

const (
	maxQueued      = 1024     // messages of one connection that Poll has not taken; then its socket is not read
	maxQueuedBytes = 16 << 20 // and their bytes
	maxHandshakes  = 1024     // connections that have not said yet, and proven, whose they are
	maxInbound     = maxHandshakes + transport.MaxPeers
)

// inbound is a connection on which one peer writes here. Its goroutine owns the socket.
type inbound struct {
	t      *Transport
	conn   *net.TCPConn
	done   chan struct{} // closed when its goroutine lands nothing any more
	lander lander

	// Guarded by t.mu.
	agent       string           // "" before the handshake
	claim       claim            // to this name
	bound       bool             // the name is its own, or names are believed
	greeted     bool             // it has proven that it knows this agent's record
	joined      bool             // the next two are set
	session     uint64           // its number
	process     metadata.Process // whose memory the writer has offered; zero: none
	queued      int
	queuedBytes int
	fenced      bool
}

// accept starts a goroutine for each connection until the listener closes.
func (t *Transport) accept() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		conn, err := t.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of descriptors, or the connection is gone already
			t.cfg.Log.Warn("kvplane: tcp accept", "agent", t.name, "err", err)
			pause.Reset(50 * time.Millisecond)
			select {
			case <-pause.C:
			case <-t.ctx.Done():
				return
			}
			continue
		}
		c := &inbound{t: t, conn: conn, done: make(chan struct{})}
		t.mu.Lock()
		closed, full := t.closed, len(t.inbound) >= maxInbound || t.handshakes >= maxHandshakes
		switch {
		case closed:
		case full:
			t.stats.Refused++
		default:
			t.inbound[c] = struct{}{}
			t.handshakes++
		}
		t.mu.Unlock()
		switch {
		case closed:
			_ = conn.Close()
			continue
		case full:
			_ = conn.Close()
			t.refusedLog.warn(t.cfg.Log, "agent", t.name, "from", conn.RemoteAddr().String(), "err", "too many connections")
			continue
		}
		t.tasks.Go(c.run)
	}
}

// refusedLog logs refused connections, the first of each minute with the number of those that were not logged before it: anybody can make them.
type refusedLog struct {
	mu     sync.Mutex
	last   time.Time
	silent int
}

func (l *refusedLog) warn(log *slog.Logger, args ...any) {
	l.mu.Lock()
	now, silent := time.Now(), l.silent
	quiet := !l.last.IsZero() && now.Sub(l.last) < time.Minute
	if quiet {
		l.silent++
	} else {
		l.last, l.silent = now, 0
	}
	l.mu.Unlock()
	if !quiet {
		log.Warn("kvplane: tcp connection refused", append(args, "not_logged", silent)...)
	}
}

func (c *inbound) run() {
	t := c.t
	stop := context.AfterFunc(t.ctx, func() { _ = c.conn.Close() })
	defer stop()
	err := c.serve()
	_ = c.conn.Close()
	close(c.done)
	c.lander.source.close()
	t.mu.Lock()
	delete(t.inbound, c)
	if !c.greeted {
		t.handshakes--
	}
	stranger, fenced := c.agent == "", c.fenced || t.closed
	bad := errors.Is(err, errFrame)
	switch {
	case fenced:
	case stranger:
		t.stats.Strangers++
	case bad:
		t.stats.BadFrames++
	}
	t.mu.Unlock()
	switch {
	case fenced:
	case stranger || bad:
		t.refusedLog.warn(t.cfg.Log, "agent", t.name, "peer", c.agent, "from", c.conn.RemoteAddr().String(), "err", err)
	case !errors.Is(err, io.EOF):
		t.cfg.Log.Info("kvplane: tcp connection ended", "agent", t.name, "peer", c.agent, "err", err)
	}
}

// serve takes in frames until the connection ends. Bytes land only if the connection is not fenced, their number is
// that of a write in progress, and every one of them lies in registered memory.
func (c *inbound) serve() error {
	t := c.t
	if err := c.conn.SetDeadline(time.Now().Add(t.cfg.Dial)); err != nil {
		return err
	}
	g, keys, err := admit(c.conn, t.name, t.secret)
	if err != nil {
		return err
	}
	if err := c.join(g, keys.claim); err != nil {
		return err
	}
	if _, err := c.conn.Write(keys.confirm); err != nil {
		return err
	}
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	l := &c.lander
	l.low = 1
	if l.raw, err = c.conn.SyscallConn(); err != nil {
		return err
	}
	l.in = bufio.NewReaderSize(c.conn, readBuffer)
	var header [frameBytes]byte
	for {
		if l.in.Buffered() == 0 {
			if err := c.flush(); err != nil {
				return err
			}
		}
		f, err := readFrame(l.in, header[:])
		if err != nil {
			return err
		}
		bytes := f.kind == frameChunk || f.kind == framePull
		switch {
		case bytes:
			err = c.land(f)
		case f.kind == frameMessage:
			err = c.message(f)
		case f.kind == frameEnd:
			err = c.end(f)
		case f.kind == frameOffer:
			err = c.offered(f, keys.word)
		default:
			err = fmt.Errorf("%w: kind %d", errFrame, f.kind)
		}
		if err != nil {
			return err
		}
	}
}

// end takes in the end of a write, delivers its notification if it has one, and answers.
func (c *inbound) end(f frame) error {
	body, err := c.body(f)
	if err != nil {
		return err
	}
	if err := c.ended(f); err != nil {
		return err
	}
	if len(body) > 0 && !c.t.deliver(c, transport.Incoming{Kind: transport.MessageReceived, Agent: c.agent, Body: body}) {
		return transport.ErrClosed
	}
	runtime.Gosched() // the owner runs now: the writer is not in such a hurry for its answer
	c.lander.answers = frame{kind: frameAnswer, seq: f.seq}.append(c.lander.answers)
	return c.flush()
}

func (c *inbound) message(f frame) error {
	body, err := c.body(f)
	if err != nil {
		return err
	}
	if !c.t.deliver(c, transport.Incoming{Kind: transport.MessageReceived, Agent: c.agent, Body: body}) {
		return transport.ErrClosed
	}
	return nil
}

func (c *inbound) body(f frame) ([]byte, error) {
	if f.length > transport.MaxMessage {
		return nil, fmt.Errorf("%w: a message of %d bytes", errFrame, f.length)
	}
	body := make([]byte, f.length)
	_, err := io.ReadFull(c.lander.in, body)
	return body, err
}

// offered takes in the writer's offer of its memory and answers whether it is accepted.
func (c *inbound) offered(f frame, word []byte) error {
	raw, err := c.body(f)
	if err != nil {
		return err
	}
	var s *source
	why := "the receiver is configured to use sockets"
	if c.t.cfg.Path != PathSocket {
		o, err := parseOffer(raw, c.t.process)
		if err == nil {
			err = c.lives(o.Process)
		}
		if err == nil {
			s, err = newSource(o, word)
		}
		switch {
		case errors.Is(err, errFrame):
			return err
		case err != nil:
			why = err.Error()
		default:
			why = ""
		}
	}
	if why == "" {
		c.lander.source = s
	}
	c.lander.answers = frame{kind: frameVerdict, length: uint32(len(why))}.append(c.lander.answers)
	c.lander.answers = append(c.lander.answers, why...)
	return c.flush()
}
