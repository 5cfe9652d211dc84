package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/memory/view"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
)

const (
	maxGather  = 512 << 10   // bytes that go out in one system call
	maxBuffers = 1000        // and their pieces
	pullWindow = 8 * maxPull // bytes that the peer is told to copy ahead
)

// keepAlive finds out about a silent host that is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

// stream is the connection on which this agent writes to a peer.
type stream struct {
	p      *outbound
	conn   net.Conn
	queued chan struct{} // rings when there may be something to send
	word   []byte        // of its handshake

	pulling uint64 // guarded by p.mu: bytes that the peer was told to copy and has not
}

func (s *stream) ring() {
	select {
	case s.queued <- struct{}{}:
	default:
	}
}

// dial connects to the first address that answers and proves the secret.
func (p *outbound) dial(ctx context.Context) (*stream, error) {
	ctx, cancel := context.WithTimeout(ctx, p.t.cfg.Dial)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepAlive, Control: p.t.control}
	var errs []error
	for _, address := range p.blob.Addresses {
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s := &stream{p: p, conn: conn, queued: make(chan struct{}, 1)}
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		s.word, err = greet(conn, greeting{agent: p.t.name, session: p.session, key: p.proves}, p.agent, p.blob.Secret)
		if err == nil {
			err = s.choosePath()
		}
		if stop() && err == nil {
			return s, nil
		}
		errs = append(errs, fmt.Errorf("handshake with %s: %w", address, errors.Join(err, ctx.Err(), conn.Close())))
	}
	return nil, errors.Join(errs...)
}

// choosePath offers the peer this process's memory, if it may and the peer lives on this host.
func (s *stream) choosePath() error {
	p := s.p
	why := "configured"
	if p.t.cfg.Path != PathSocket {
		var err error
		if why, err = s.offer(); err != nil {
			return err
		}
		p.memory.Store(why == "")
		if why != "" && p.t.cfg.Path == PathMemory {
			return fmt.Errorf("%w: %s", errNoMemoryPath, why)
		}
	}
	path := PathSocket
	if p.memory.Load() {
		path, why = PathMemory, "the peer may read this process"
	}
	p.t.cfg.Log.Info("kvplane: tcp path", "agent", p.t.name, "peer", p.agent, "path", path, "why", why)
	return nil
}

// offer returns why the memory path is not to be had, "" if it is.
func (s *stream) offer() (why string, err error) {
	p := s.p
	switch {
	case p.t.process.IsZero():
		return "this process cannot be told by its number", nil
	case !procid.CanProbe(p.t.process, p.blob.Process):
		return "the peer takes none, or lives in another kernel or other namespaces", nil
	}
	pledged, err := newPledge(s.word)
	if err != nil {
		return "", err
	}
	if err := p.stand(pledged); err != nil { // instead of another address's
		return "", err
	}
	body, err := memoryOffer{Process: p.t.process, Word: pledged.address(), Memory: packSpans(p.t.memory)}.encode()
	switch {
	case err != nil:
		return "", err
	case len(body) > transport.MaxMessage:
		return fmt.Sprintf("%d stretches of memory are too many to offer", len(p.t.memory)), nil
	}
	out := frame{kind: frameOffer, length: uint32(len(body))}.append(nil)
	if _, err := s.conn.Write(append(out, body...)); err != nil {
		return "", err
	}
	var header [frameBytes]byte
	f, err := readFrame(s.conn, header[:])
	if err != nil {
		return "", err
	}
	if f.kind != frameVerdict || f.length > transport.MaxMessage {
		return "", fmt.Errorf("%w: kind %d, %d bytes; want a verdict", errFrame, f.kind, f.length)
	}
	verdict := make([]byte, f.length)
	_, err = io.ReadFull(s.conn, verdict)
	return string(verdict), err
}

// send sends what is queued until the connection ends.
func (s *stream) send(ctx context.Context) error {
	var out gather
	var table []transfer.Range
	for {
		var j job
		j, table = s.p.next(s, table[:0])
		switch j.kind {
		case 0: // nothing now
			if err := out.flush(s.conn); err != nil {
				return err
			}
			select {
			case <-s.queued:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		case frameMessage:
			out.add(frame{kind: frameMessage, length: uint32(len(j.body))}, nil, j.body)
		case frameEnd:
			out.add(frame{kind: frameEnd, seq: j.seq, count: j.bytes, length: uint32(len(j.body))}, nil, j.body)
		default:
			out.ranges(j, table)
		}
		if out.size >= maxGather || len(out.buffers) >= maxBuffers {
			if err := out.flush(s.conn); err != nil {
				return err
			}
		}
	}
}

// gather collects what goes out in one system call.
type gather struct {
	heads   []byte
	buffers net.Buffers
	size    int
}

// add appends a frame; the bytes of body are not copied.
func (g *gather) add(f frame, table []transfer.Range, body []byte) {
	from := len(g.heads)
	g.heads = f.append(g.heads)
	for _, r := range table {
		g.heads = appendStrip(g.heads, r)
	}
	g.put(g.heads[from:len(g.heads):len(g.heads)])
	g.put(body)
}

func (g *gather) put(b []byte) {
	if len(b) > 0 {
		g.buffers = append(g.buffers, b)
		g.size += len(b)
	}
}

// ranges appends a chunk or a pull.
func (g *gather) ranges(j job, table []transfer.Range) {
	f := frame{kind: j.kind, seq: j.seq, count: uint64(len(table)), length: uint32(len(table) * stripBytes)}
	if j.kind == framePull {
		g.add(f, table, nil)
		return
	}
	f.length += uint32(j.bytes)
	from := len(g.buffers)
	for _, r := range table {
		g.put(view.Bytes(r.Local, r.Length))
	}
	for i := range table {
		table[i].Local = 0 // a chunk brings its bytes along
	}
	g.add(f, table, nil)
	head := g.buffers[len(g.buffers)-1] // and they come behind it
	copy(g.buffers[from+1:], g.buffers[from:])
	g.buffers[from] = head
}

func (g *gather) flush(conn net.Conn) error {
	if len(g.buffers) == 0 {
		return nil
	}
	out := g.buffers
	_, err := out.WriteTo(conn) // uses up out and forgets what it has sent
	g.heads, g.buffers, g.size = g.heads[:0], g.buffers[:0], 0
	return err
}

// readAnswers takes in the receiver's word of what has landed.
func (s *stream) readAnswers() error {
	in := bufio.NewReader(s.conn)
	var scratch [frameBytes]byte
	for {
		f, err := readFrame(in, scratch[:])
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the peer closed the connection")
		case err != nil:
			return err
		case f.kind == frameTaken:
			if !s.p.taken(s, f.count) {
				return fmt.Errorf("%w: %d bytes taken that were not given", errFrame, f.count)
			}
			continue
		}
		w := s.p.answered(f)
		if w == nil {
			return fmt.Errorf("%w: kind %d for write %d, which is not the next one", errFrame, f.kind, f.seq)
		}
		s.p.t.deliver(nil, transport.Incoming{Kind: transport.WriteEnded, Agent: s.p.agent, ID: w.id})
	}
}
