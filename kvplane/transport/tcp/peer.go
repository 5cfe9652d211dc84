package tcp

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
)

const (
	maxUnsent      = 4096     // messages queued for a peer that does not take them
	maxUnsentBytes = 64 << 20 // and their bytes
	maxPending     = 4096     // writes of a peer without an answer
)

// queuedWrite is one write on its way to a peer.
type queuedWrite struct {
	id     uint64
	seq    uint64
	ranges []transfer.Range // not sent
	notify []byte
	bytes  uint64
}

// outbound is the session on which this agent writes to one peer.
type outbound struct {
	t       *Transport
	agent   string
	blob    contact
	remote  memory.Set
	session uint64 // grows with each Connect
	proves  []byte // the key under which this agent proves its name to the peer; nil: it has none
	ctx     context.Context
	cancel  context.CancelFunc
	memory  atomic.Bool // the peer copies out of this process's memory; settled before the first write is sent
	pledge  *pledge     // only its goroutine (run) has to do with it

	mu           sync.Mutex
	stream       *stream // nil until it is there
	messages     [][]byte
	messageBytes int
	writes       []*queuedWrite // whose end is not sent, oldest first
	pending      []*queuedWrite // without an answer, by seq; those in writes too
	nextSeq      uint64
	lost         error // why the session ended
	forgotten    bool  // the owner disconnected: its end is no news
}

func newOutbound(t *Transport, agent string, blob contact, remote memory.Set) *outbound {
	p := &outbound{t: t, agent: agent, blob: blob, remote: remote, nextSeq: 1}
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	return p
}

func (p *outbound) forget() {
	p.mu.Lock()
	p.forgotten = true
	p.mu.Unlock()
	p.cancel()
}

// ringLocked wakes what sends.
func (p *outbound) ringLocked() {
	if p.stream != nil {
		p.stream.ring()
	}
}

func (p *outbound) lostLocked() error {
	if p.lost != nil {
		return fmt.Errorf("%w: %w", transport.ErrPeerLost, p.lost)
	}
	return nil
}

// send queues a copy of one message.
func (p *outbound) send(body []byte) error {
	if len(body) > transport.MaxMessage {
		return fmt.Errorf("message of %d bytes; at most %d", len(body), transport.MaxMessage)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.lostLocked(); err != nil {
		return err
	}
	if len(p.messages) >= maxUnsent || p.messageBytes+len(body) > maxUnsentBytes {
		return transport.ErrBusy
	}
	p.messages = append(p.messages, append(make([]byte, 0, len(body)), body...))
	p.messageBytes += len(body)
	p.ringLocked()
	return nil
}

// write checks and queues one write.
func (p *outbound) write(id uint64, ranges []transfer.Range, notify []byte) error {
	if len(notify) > transport.MaxMessage {
		return fmt.Errorf("notification of %d bytes; at most %d", len(notify), transport.MaxMessage)
	}
	w := &queuedWrite{id: id, ranges: append([]transfer.Range(nil), ranges...), notify: append([]byte(nil), notify...)}
	for _, r := range ranges {
		switch {
		case r.Length == 0:
			return fmt.Errorf("range at %#x is empty", r.Local)
		case !p.t.memory.Holds(r.Local, r.Length):
			return fmt.Errorf("range at %#x of %d bytes is not in registered memory", r.Local, r.Length)
		case !p.remote.Holds(r.Remote, r.Length):
			return fmt.Errorf("range at %#x of %d bytes is not in the peer's registered memory", r.Remote, r.Length)
		}
		w.bytes += r.Length
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.lostLocked(); err != nil {
		return err
	}
	if len(p.pending) >= maxPending {
		return transport.ErrBusy
	}
	w.seq = p.nextSeq
	p.nextSeq++
	p.writes = append(p.writes, w)
	p.pending = append(p.pending, w)
	p.ringLocked()
	return nil
}

// run carries the session from its dial to its end and reports the end.
func (p *outbound) run() {
	defer p.cancel()
	err := p.serve()
	if p.ctx.Err() != nil {
		err = transport.ErrClosed
	}
	if err := p.stand(nil); err != nil {
		p.t.cfg.Log.Error("kvplane: tcp", "agent", p.t.name, "peer", p.agent, "err", err)
	}
	p.memory.Store(false)
	p.mu.Lock()
	p.lost = err
	pending, forgotten := p.pending, p.forgotten
	p.stream, p.messages, p.messageBytes, p.writes, p.pending = nil, nil, 0, nil, nil
	p.mu.Unlock()
	for _, w := range pending { // nothing that still reads their bytes is believed any more
		p.t.deliver(nil, transport.Incoming{Kind: transport.WriteEnded, Agent: p.agent, ID: w.id, Err: fmt.Errorf("kvplane: tcp write to %s: %w: %w", p.agent, transport.ErrPeerLost, err)})
	}
	if !forgotten {
		p.t.deliver(nil, transport.Incoming{Kind: transport.PeerLost, Agent: p.agent, Err: fmt.Errorf("kvplane: tcp peer %s: %w", p.agent, err)})
	}
}

// stand revokes the pledge that stood and lets another one stand.
func (p *outbound) stand(next *pledge) error {
	old := p.pledge
	p.pledge = next
	return old.revoke()
}

// serve returns why the session ended, after everything that used it has stopped.
func (p *outbound) serve() error {
	ctx, cancel := context.WithCancelCause(p.ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel(nil)
	s, err := p.dial(ctx)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	tasks.Go(func() { cancel(s.readAnswers()) })
	tasks.Go(func() { cancel(s.send(ctx)) })
	p.mu.Lock()
	p.stream = s
	p.ringLocked()
	p.mu.Unlock()
	<-ctx.Done()
	return context.Cause(ctx)
}

// job is what the connection sends next; kind is 0 if there is nothing now.
type job struct {
	kind  frameKind
	seq   uint64
	bytes uint64 // end: of the write; chunk, pull: of the ranges
	body  []byte
}

// next takes what the connection sends now: the oldest message, or else ranges of the oldest write, or its end if it has no more.
func (p *outbound) next(s *stream, table []transfer.Range) (job, []transfer.Range) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.messages) > 0 {
		body := p.messages[0]
		p.messages[0] = nil
		p.messages = p.messages[1:]
		p.messageBytes -= len(body)
		return job{kind: frameMessage, body: body}, table
	}
	if len(p.writes) > 0 && len(p.writes[0].ranges) == 0 {
		w := p.writes[0]
		p.writes[0] = nil
		p.writes = p.writes[1:]
		return job{kind: frameEnd, seq: w.seq, bytes: w.bytes, body: w.notify}, table
	}
	kind, most := frameChunk, uint64(maxChunk)
	if p.memory.Load() {
		kind, most = framePull, maxPull
	}
	if len(p.writes) == 0 || kind == framePull && s.pulling+most > pullWindow {
		return job{}, table
	}
	w, left := p.writes[0], most
	for len(w.ranges) > 0 && left > 0 && len(table) < maxStrips {
		r := &w.ranges[0]
		n := min(r.Length, left)
		table = append(table, transfer.Range{Local: r.Local, Remote: r.Remote, Length: n})
		left -= n
		r.Local, r.Remote, r.Length = r.Local+n, r.Remote+n, r.Length-n
		if r.Length == 0 {
			w.ranges = w.ranges[1:]
		}
	}
	if kind == framePull {
		s.pulling += most - left
	}
	return job{kind: kind, seq: w.seq, bytes: most - left}, table
}

// taken notes that the peer has copied what it was told to. It is false if it was told less.
func (p *outbound) taken(s *stream, n uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > s.pulling {
		return false
	}
	s.pulling -= n
	s.ring()
	return true
}

// answered strikes off the oldest pending write if the frame answers it and its end was sent.
func (p *outbound) answered(f frame) *queuedWrite {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.kind != frameAnswer || len(p.pending) == 0 || p.pending[0].seq != f.seq || len(p.writes) > 0 && p.writes[0] == p.pending[0] {
		return nil
	}
	w := p.pending[0]
	p.pending[0] = nil
	p.pending = p.pending[1:]
	return w
}
