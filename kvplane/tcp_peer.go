package kvplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	maxUnsent      = 4096     // messages queued for a peer that does not take them
	maxUnsentBytes = 64 << 20 // and their bytes
	maxPending     = 4096     // writes of a peer without an answer
	socketBuffer   = 64 << 10 // bytes gathered before a system call; larger pieces go out of the memory they lie in
)

// keepAlive finds out about a silent host that is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}

// tcpWrite is one write on its way to a peer.
type tcpWrite struct {
	id     uint64
	seq    uint64
	pieces []piece
	notify []byte
	bytes  uint64
}

// piece is what is left of one range.
type piece struct {
	data   []byte
	remote uint64
}

// tcpPeer is the connection on which this agent writes to one peer. Its goroutine (run) owns the socket.
type tcpPeer struct {
	t       *TCP
	agent   string
	blob    tcpBlob
	remote  spans
	session uint64 // grows with each Connect
	ctx     context.Context
	cancel  context.CancelFunc
	queued  chan struct{} // rings when something was queued

	mu           sync.Mutex
	messages     [][]byte
	messageBytes int
	writes       []*tcpWrite // not sent whole
	pending      []*tcpWrite // without an answer, by seq; those in writes too
	nextSeq      uint64
	lost         error // why the connection ended
	forgotten    bool  // the owner disconnected: its end is no news
}

func newTCPPeer(t *TCP, agent string, blob tcpBlob, remote spans) *tcpPeer {
	p := &tcpPeer{t: t, agent: agent, blob: blob, remote: remote, queued: make(chan struct{}, 1), nextSeq: 1}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	return p
}

func (p *tcpPeer) forget() {
	p.mu.Lock()
	p.forgotten = true
	p.mu.Unlock()
	p.cancel()
}

func (p *tcpPeer) ring() {
	select {
	case p.queued <- struct{}{}:
	default:
	}
}

func (p *tcpPeer) lostLocked() error {
	if p.lost != nil {
		return fmt.Errorf("%w: %w", ErrPeerLost, p.lost)
	}
	return nil
}

// send queues a copy of one message.
func (p *tcpPeer) send(body []byte) error {
	if len(body) > MaxMessage {
		return fmt.Errorf("message of %d bytes; at most %d", len(body), MaxMessage)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.lostLocked(); err != nil {
		return err
	}
	if len(p.messages) >= maxUnsent || p.messageBytes+len(body) > maxUnsentBytes {
		return ErrBusy
	}
	p.messages = append(p.messages, append(make([]byte, 0, len(body)), body...))
	p.messageBytes += len(body)
	p.ring()
	return nil
}

// write checks and queues one write.
func (p *tcpPeer) write(id uint64, ranges []Range, notify []byte) error {
	if len(notify) > MaxMessage {
		return fmt.Errorf("notification of %d bytes; at most %d", len(notify), MaxMessage)
	}
	w := &tcpWrite{id: id, pieces: make([]piece, 0, len(ranges)), notify: append([]byte(nil), notify...)}
	for _, r := range ranges {
		data, ok := p.t.memory.view(r.Local, r.Length)
		switch {
		case r.Length == 0:
			return fmt.Errorf("range at %#x is empty", r.Local)
		case !ok:
			return fmt.Errorf("range at %#x of %d bytes is not in registered memory", r.Local, r.Length)
		case !p.remote.holds(r.Remote, r.Length):
			return fmt.Errorf("range at %#x of %d bytes is not in the peer's registered memory", r.Remote, r.Length)
		}
		w.pieces = append(w.pieces, piece{data: data, remote: r.Remote})
		w.bytes += r.Length
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.lostLocked(); err != nil {
		return err
	}
	if len(p.pending) >= maxPending {
		return ErrBusy
	}
	w.seq = p.nextSeq
	p.nextSeq++
	p.writes = append(p.writes, w)
	p.pending = append(p.pending, w)
	p.ring()
	return nil
}

// run carries the connection from its dial to its end and reports the end.
func (p *tcpPeer) run() {
	defer p.cancel()
	err := p.serve()
	if p.ctx.Err() != nil {
		err = ErrClosed
	}
	p.mu.Lock()
	p.lost = err
	pending, forgotten := p.pending, p.forgotten
	p.messages, p.messageBytes, p.writes, p.pending = nil, 0, nil, nil
	p.mu.Unlock()
	for _, w := range pending { // nothing reads their bytes any more
		p.t.deliver(nil, Incoming{Kind: WriteEnded, Agent: p.agent, ID: w.id, Err: fmt.Errorf("kvplane: tcp write to %s: %w: %w", p.agent, ErrPeerLost, err)})
	}
	if !forgotten {
		p.t.deliver(nil, Incoming{Kind: PeerLost, Agent: p.agent, Err: fmt.Errorf("kvplane: tcp peer %s: %w", p.agent, err)})
	}
}

// serve returns why the connection ended, after everything that used it has stopped.
func (p *tcpPeer) serve() error {
	conn, err := p.dial()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(p.ctx, func() { _ = conn.Close() })
	defer stop()
	answers := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		answers <- p.readAnswers(conn)
		close(ended)
		_ = conn.Close() // a blocked sender returns
	}()
	sendErr := p.sendQueued(conn, ended)
	_ = conn.Close()
	if err := <-answers; err != nil && (sendErr == nil || !errors.Is(err, net.ErrClosed)) {
		return err
	}
	return sendErr
}

// dial connects to the first address that answers and proves the secret.
func (p *tcpPeer) dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.t.cfg.Dial)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepAlive, Control: p.t.control}
	var errs []error
	for _, address := range p.blob.Addresses {
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		err = greet(conn, p.t.name, p.agent, p.blob.Secret, p.session)
		if stop() && err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("handshake with %s: %w", address, errors.Join(err, ctx.Err(), conn.Close())))
	}
	return nil, errors.Join(errs...)
}

// sendQueued sends what is queued until the connection or its reader ends: messages first, then one chunk of the
// oldest write, so that a message waits for no more than a chunk.
func (p *tcpPeer) sendQueued(conn net.Conn, ended <-chan struct{}) error {
	out := bufio.NewWriterSize(conn, socketBuffer)
	var header [frameBytes]byte
	put := func(f frame, body []byte) error {
		if _, err := out.Write(f.append(header[:0])); err != nil {
			return err
		}
		_, err := out.Write(body)
		return err
	}
	for {
		message, isMessage, w := p.next()
		var err error
		switch {
		case isMessage:
			err = put(frame{kind: frameMessage, length: uint32(len(message))}, message)
		case w == nil:
			if err := out.Flush(); err != nil {
				return err
			}
			select {
			case <-p.queued:
			case <-ended:
				return nil
			case <-p.ctx.Done():
				return p.ctx.Err()
			}
		case len(w.pieces) == 0:
			p.sent()
			err = put(frame{kind: frameEnd, seq: w.seq, address: w.bytes, length: uint32(len(w.notify))}, w.notify)
		default:
			at := &w.pieces[0]
			data := at.data[:min(len(at.data), maxChunk)]
			err = put(frame{kind: frameChunk, seq: w.seq, address: at.remote, length: uint32(len(data))}, data)
			at.data, at.remote = at.data[len(data):], at.remote+uint64(len(data))
			if len(at.data) == 0 {
				w.pieces = w.pieces[1:]
			}
		}
		if err != nil {
			return err
		}
	}
}

// next takes the oldest message, or else names the oldest write that is not sent whole.
func (p *tcpPeer) next() (message []byte, isMessage bool, w *tcpWrite) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.messages) > 0 {
		message = p.messages[0]
		p.messages[0] = nil
		p.messages = p.messages[1:]
		p.messageBytes -= len(message)
		return message, true, nil
	}
	if len(p.writes) > 0 {
		return nil, false, p.writes[0]
	}
	return nil, false, nil
}

// sent takes the oldest write off the queue: its last frame goes out now.
func (p *tcpPeer) sent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes[0] = nil
	p.writes = p.writes[1:]
}

// readAnswers takes in the receiver's word that writes have landed, in their order.
func (p *tcpPeer) readAnswers(conn net.Conn) error {
	in := bufio.NewReader(conn)
	var scratch [frameBytes]byte
	for {
		f, err := readFrame(in, scratch[:])
		if errors.Is(err, io.EOF) {
			return errors.New("the peer closed the connection")
		}
		if err != nil {
			return err
		}
		w := p.answered(f)
		if w == nil {
			return fmt.Errorf("%w: an answer to write %d, which is not the next one", errFrame, f.seq)
		}
		p.t.deliver(nil, Incoming{Kind: WriteEnded, Agent: p.agent, ID: w.id})
	}
}

// answered strikes off the oldest pending write if the frame answers it and it was sent whole.
func (p *tcpPeer) answered(f frame) *tcpWrite {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.kind != frameAnswer || len(p.pending) == 0 || p.pending[0].seq != f.seq ||
		len(p.writes) > 0 && p.writes[0] == p.pending[0] {
		return nil
	}
	w := p.pending[0]
	p.pending[0] = nil
	p.pending = p.pending[1:]
	return w
}
