package kvplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	maxQueued      = 1024     // messages of one connection that Poll has not taken; then its socket is not read
	maxQueuedBytes = 16 << 20 // and their bytes
	maxInbound     = 1024     // connections, those in their handshake included
)

// tcpInbound is a connection on which one peer writes here. Its goroutine owns the socket.
type tcpInbound struct {
	t    *TCP
	conn net.Conn
	done chan struct{} // closed when its goroutine lands nothing any more

	// Guarded by t.mu.
	agent       string // "" before the handshake
	session     uint64
	queued      int
	queuedBytes int
	fenced      bool
}

// accept starts a goroutine for each connection until the listener closes.
func (t *TCP) accept() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		conn, err := t.listener.Accept()
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
		c := &tcpInbound{t: t, conn: conn, done: make(chan struct{})}
		t.mu.Lock()
		full := t.closed || len(t.inbound) >= maxInbound
		if !full {
			t.inbound[c] = struct{}{}
		}
		t.mu.Unlock()
		if full {
			_ = conn.Close()
			continue
		}
		t.tasks.Go(c.run)
	}
}

func (c *tcpInbound) run() {
	t := c.t
	stop := context.AfterFunc(t.ctx, func() { _ = c.conn.Close() })
	defer stop()
	err := c.serve()
	_ = c.conn.Close()
	close(c.done)
	t.mu.Lock()
	delete(t.inbound, c)
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
	if !fenced && (stranger || bad) {
		t.cfg.Log.Warn("kvplane: tcp connection refused", "agent", t.name, "peer", c.agent, "from", c.conn.RemoteAddr().String(), "err", err)
	}
}

// serve takes in frames until the connection ends. A chunk lands only if the connection is not fenced, its number is
// that of the write in progress, and every byte of it lies in registered memory.
func (c *tcpInbound) serve() error {
	t := c.t
	if err := c.conn.SetDeadline(time.Now().Add(t.cfg.Dial)); err != nil {
		return err
	}
	agent, session, err := admit(c.conn, t.name, t.secret)
	if err != nil {
		return err
	}
	if !c.supersede(agent, session) {
		return ErrClosed
	}
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	in := bufio.NewReaderSize(c.conn, socketBuffer)
	var header [frameBytes]byte
	seq, landed := uint64(1), uint64(0) // the write in progress
	for {
		f, err := readFrame(in, header[:])
		if err != nil {
			return err
		}
		switch f.kind {
		case frameMessage:
			if err := c.message(in, f); err != nil {
				return err
			}
		case frameChunk:
			if c.barred() { // before the fence it would have been cut
				return ErrClosed
			}
			into, ok := t.memory.view(f.address, uint64(f.length))
			switch {
			case f.seq != seq:
				return fmt.Errorf("%w: a chunk of write %d during write %d", errFrame, f.seq, seq)
			case f.length == 0 || f.length > maxChunk:
				return fmt.Errorf("%w: a chunk of %d bytes", errFrame, f.length)
			case !ok:
				return fmt.Errorf("%w: a chunk of %d bytes at %#x, outside registered memory", errFrame, f.length, f.address)
			}
			if err := c.land(in, into); err != nil {
				return err
			}
			landed += uint64(f.length)
		case frameEnd:
			if f.seq != seq || f.address != landed {
				return fmt.Errorf("%w: the end of write %d after %d bytes; %d bytes of write %d have landed", errFrame, f.seq, f.address, landed, seq)
			}
			if err := c.message(in, f); err != nil {
				return err
			}
			if _, err := c.conn.Write(frame{kind: frameAnswer, seq: seq}.append(header[:0])); err != nil {
				return err
			}
			seq, landed = seq+1, 0
		default:
			return fmt.Errorf("%w: kind %d", errFrame, f.kind)
		}
	}
}

// supersede names the connection's peer and fences its older sessions. It is false if there is a newer one, or if the
// connection was fenced meanwhile.
func (c *tcpInbound) supersede(agent string, session uint64) bool {
	c.t.mu.Lock()
	c.agent, c.session = agent, session
	for other := range c.t.inbound {
		c.fenced = c.fenced || other.agent == agent && other.session > session
	}
	stale := c.fenced
	c.t.mu.Unlock()
	if !stale {
		c.t.fence(func(other *tcpInbound) bool { return other.agent == agent && other.session < session })
	}
	return !stale
}

// barred says that the connection's peer was fenced and must not write yet. A connection that has passed this before
// a fence is cut by it.
func (c *tcpInbound) barred() bool {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	return c.fenced || c.t.barred[c.agent]
}

// land reads bytes straight into registered memory.
func (c *tcpInbound) land(in io.Reader, into []byte) error {
	n, err := io.ReadFull(in, into)
	c.t.mu.Lock()
	c.t.stats.Landed += uint64(n)
	c.t.stats.SocketBytes += uint64(n)
	c.t.mu.Unlock()
	return err
}

// message reads a body and queues it; the empty notification of a write is none.
func (c *tcpInbound) message(in io.Reader, f frame) error {
	if f.length > MaxMessage {
		return fmt.Errorf("%w: a message of %d bytes", errFrame, f.length)
	}
	if f.kind == frameEnd && f.length == 0 {
		return nil
	}
	body := make([]byte, f.length)
	if _, err := io.ReadFull(in, body); err != nil {
		return err
	}
	if !c.t.deliver(c, Incoming{Kind: MessageReceived, Agent: c.agent, Body: body}) {
		return ErrClosed
	}
	return nil
}
