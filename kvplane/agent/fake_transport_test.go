package agent

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/memory/view"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// fakeNet is a network of fakeTransports in one process. It runs on virtual time and does what its faults say.
type fakeNet struct {
	mu     sync.Mutex
	ends   map[string]*fakeTransport
	faults []fault
	seen   map[string]int // how many of each kind of thing have been sent: the faults count in these
	polled bool
	wrote  []string // what was posted, "from>to"
}

// fault is one thing that goes wrong: the nth thing of a kind, counted from 1 over the whole network; 0 is every one.
type fault struct {
	what string // "write-request", "status", "done", "cancel", "ack", "write"
	nth  int
	do   string // "lose", "double", "delay", "flip", "break": end in an error, "hold": never end, "refuse" and "busy": not post
}

func newFakeNet(faults ...fault) *fakeNet {
	return &fakeNet{ends: map[string]*fakeTransport{}, seen: map[string]int{}, faults: faults}
}

// strikeLocked returns what happens to the next thing of a kind.
func (n *fakeNet) strikeLocked(what string) string {
	n.seen[what]++
	for _, f := range n.faults {
		if f.what == what && (f.nth == 0 || f.nth == n.seen[what]) {
			return f.do
		}
	}
	return ""
}

// fakeTransport hands messages and bytes over inside one process.
type fakeTransport struct {
	net     *fakeNet
	name    string
	memory  []memory.Region
	wake    chan struct{}
	peers   map[string]bool
	arrived []transport.Incoming
	closed  bool
	sticks  bool // it cannot be closed in order
	busy    bool // writes over a lost connection have not ended: it connects to nobody
}

func (n *fakeNet) transport() *fakeTransport {
	return &fakeTransport{net: n, wake: make(chan struct{}, 1), peers: map[string]bool{}}
}

func (t *fakeTransport) Name() string          { return "fake" }
func (t *fakeTransport) Polled() bool          { return t.net.polled }
func (t *fakeTransport) Wake() <-chan struct{} { return t.wake }

func (t *fakeTransport) Open(agent string, memory []memory.Region) ([]byte, string, error) {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	t.name, t.memory = agent, memory
	t.net.ends[agent] = t
	return []byte(agent), "", nil
}

func (t *fakeTransport) Connect(peer metadata.Record) error {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	switch {
	case t.busy:
		return transport.ErrBusy
	case t.peers[peer.Agent]:
		return transport.ErrKnownPeer
	}
	t.peers[peer.Agent] = true
	if far := t.net.ends[peer.Agent]; far == nil || far.closed {
		t.deliverLocked(transport.Incoming{Kind: transport.PeerLost, Agent: peer.Agent, Err: errors.New("nobody there")}, 0)
	}
	return nil
}

func (t *fakeTransport) Disconnect(agent string) {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	delete(t.peers, agent)
}

// farLocked finds a connected peer that lives.
func (t *fakeTransport) farLocked(agent string) (*fakeTransport, error) {
	switch far := t.net.ends[agent]; {
	case t.closed:
		return nil, transport.ErrClosed
	case !t.peers[agent]:
		return nil, transport.ErrUnknownPeer
	case far == nil || far.closed:
		return nil, transport.ErrPeerLost
	default:
		return far, nil
	}
}

// hop is how long a message or a write takes.
const hop = 100 * time.Microsecond

func (t *fakeTransport) Send(agent string, body []byte) error {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	far, err := t.farLocked(agent)
	if err != nil {
		return err
	}
	t.sendLocked(far, slices.Clone(body))
	return nil
}

func kindOf(sealed []byte) string {
	l, err := wire.Decode(sealed)
	if err != nil || len(l.Body) == 0 {
		return "malformed"
	}
	return map[wire.Kind]string{wire.KindWriteRequest: "write-request", wire.KindStatus: "status", wire.KindDone: "done", wire.KindCancel: "cancel", wire.KindAck: "ack", wire.KindHeartbeat: "heartbeat", wire.KindHeartbeatAck: "heartbeat-ack", wire.KindBye: "bye"}[wire.Kind(l.Body[0])]
}

func (t *fakeTransport) sendLocked(far *fakeTransport, body []byte) {
	in := transport.Incoming{Kind: transport.MessageReceived, Agent: t.name, Body: body}
	switch t.net.strikeLocked(kindOf(body)) {
	case "lose":
	case "double":
		far.deliverLocked(in, hop)
		far.deliverLocked(in, 3*hop)
	case "delay":
		far.deliverLocked(in, time.Second)
	case "flip":
		body[len(body)-1] ^= 0x40
		far.deliverLocked(in, hop)
	default:
		far.deliverLocked(in, hop)
	}
}

func (t *fakeTransport) deliverLocked(in transport.Incoming, after time.Duration) {
	time.AfterFunc(after, func() {
		t.net.mu.Lock()
		defer t.net.mu.Unlock()
		if t.closed {
			return
		}
		t.arrived = append(t.arrived, in)
		select {
		case t.wake <- struct{}{}:
		default:
		}
	})
}

func (t *fakeTransport) Write(agent string, id uint64, ranges []kvplane.Range, notify []byte) error {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	far, err := t.farLocked(agent)
	if err != nil {
		return err
	}
	do := t.net.strikeLocked("write")
	switch do {
	case "refuse":
		return errors.New("not posted")
	case "busy":
		return fmt.Errorf("fake: %w", transport.ErrBusy)
	}
	t.net.wrote = append(t.net.wrote, t.name+">"+agent)
	ranges, notify = slices.Clone(ranges), slices.Clone(notify)
	land := func(r kvplane.Range) {
		if far.closed {
			return
		}
		if !slices.ContainsFunc(far.memory, func(m memory.Region) bool { return r.Remote >= m.Base && r.Remote+r.Length <= m.Base+m.Length }) {
			panic(fmt.Sprintf("range %+v outside of the peer's memory", r))
		}
		copy(view.Bytes(r.Remote, r.Length), view.Bytes(r.Local, r.Length))
	}
	time.AfterFunc(hop, func() {
		t.net.mu.Lock()
		defer t.net.mu.Unlock()
		in := transport.Incoming{Kind: transport.WriteEnded, Agent: agent, ID: id}
		switch do {
		case "hold":
			return
		case "break": // half of it has landed
			for _, r := range ranges[:len(ranges)/2] {
				land(r)
			}
			in.Err = errors.New("broken")
		default:
			for _, r := range ranges {
				land(r)
			}
			t.sendLocked(far, notify)
		}
		t.deliverLocked(in, hop)
	})
	return nil
}

func (t *fakeTransport) Poll(out []transport.Incoming) []transport.Incoming {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	out = append(out, t.arrived...)
	t.arrived = nil
	return out
}

func (t *fakeTransport) Close() error {
	t.net.mu.Lock()
	defer t.net.mu.Unlock()
	t.closed = true
	if t.sticks {
		return errors.New("a handle could not be released")
	}
	return nil
}

// kill ends an agent's process: nothing of it is heard any more, and its peers lose the connection.
func (n *fakeNet) kill(agent string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends[agent].closed = true
	for _, t := range n.ends {
		if t.peers[agent] && !t.closed {
			t.deliverLocked(transport.Incoming{Kind: transport.PeerLost, Agent: agent, Err: errors.New("killed")}, hop)
		}
	}
}
