// Package tcp is the transport in pure Go, for loopback and trusted networks: nothing that it sends is encrypted. Each direction between
// two agents is a session on one connection; on one host the receiver copies bytes out of the writer's memory instead.
//
// Read tcp.go first, then peer.go and stream.go for the side that writes, inbound.go and land.go for the side that is written to, name.go
// for how a peer proves who it is, fence.go for how its bytes are refused.
package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// Config configures the tcp transport. The zero value listens on a free loopback port.
type Config struct {
	// Listen is the host:port peers dial; default "127.0.0.1:0". A host that stands for all interfaces needs Advertise.
	Listen string
	// Advertise is what peers are told to dial, as host or host:port (without a port: the port listened on);
	// default: the address listened on.
	Advertise []string
	// Path says how the bytes of this agent's writes reach a peer: "memory" (the receiver copies them out of this
	// process; only on one host, and a peer without it is lost), "socket", or "" for memory where it can be had and
	// the socket elsewhere. With "socket" this agent does not copy out of its peers' memory either.
	Path string
	// Stall ends a connection whose peer has taken in nothing of what was sent for so long; default 30 s.
	// It is no proof of death.
	Stall time.Duration
	// Dial bounds connecting and the handshake; default 5 s.
	Dial time.Duration
	// Log receives refused strangers and bad frames; default: nowhere.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Stall == 0 {
		c.Stall = 30 * time.Second
	}
	if c.Dial == 0 {
		c.Dial = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Stats counts what a transport has seen since Open.
type Stats struct {
	Strangers uint64 // connections that did not prove the secret
	Refused   uint64 // connections closed at once, because there were too many
	BadFrames uint64 // connections closed for what their peer sent
	Landed    uint64 // bytes of peers' writes; the sum of the next two
	Inbound   int    // connections from peers, now
	Peers     int    // peers connected to, now
	Memory    int    // of Peers: those that copy out of this process's memory

	SocketBytes uint64 // of Landed: what came through sockets
	MemoryBytes uint64 // of Landed: what was copied out of the writer's memory
}

// Transport is the transport in pure Go. Each direction between two agents is a session on one connection; writes
// land in registered memory straight from the sockets or, on one host, out of the writer's memory (see memoryOffer). The
// bytes are not encrypted: it is for loopback and trusted networks.
type Transport struct {
	cfg    Config
	wake   chan struct{}
	tasks  sync.WaitGroup
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	// Set by Open, constant afterwards.
	name     string
	secret   []byte
	memory   memory.Set
	listener *net.TCPListener
	public   []byte              // of the agent's key
	agree    transport.Agreement // with its private half; nil: names are believed
	process  metadata.Process    // zero: nobody can tell this process by its number, or no bytes are to go through memory

	mu         sync.Mutex
	peers      map[string]*outbound
	inbound    map[*inbound]struct{}
	known      map[string]acquaintance // agents that were connected to
	barred     map[string]bool         // agents that were fenced and not admitted again
	arrived    []arrival
	handshakes int // of inbound: not greeted yet
	refusedLog refusedLog
	session    uint64     // the last one given out: the Unix time in ns of a Connect
	room       *sync.Cond // signalled when arrived was taken, a connection was fenced or the transport closed
	closed     bool
	stats      Stats
}

// arrival is an Incoming and, for messages, the connection whose share of the queue it takes.
type arrival struct {
	transport.Incoming
	from *inbound
}

// New returns a transport that has not been opened.
func New(cfg Config) *Transport {
	t := &Transport{
		cfg:     cfg.withDefaults(),
		wake:    make(chan struct{}, 1),
		peers:   make(map[string]*outbound),
		inbound: make(map[*inbound]struct{}),
		known:   make(map[string]acquaintance),
		barred:  make(map[string]bool),
	}
	t.room = sync.NewCond(&t.mu)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Name implements Transport.
func (t *Transport) Name() string { return "tcp" }

// Polled implements Transport: goroutines take in what comes.
func (t *Transport) Polled() bool { return false }

// Wake implements Transport.
func (t *Transport) Wake() <-chan struct{} { return t.wake }

// Open implements Transport. The memory must be readable and writable by this process.
func (t *Transport) Open(agent string, memory []memory.Region) ([]byte, string, error) {
	switch {
	case t.listener != nil:
		return nil, "", fmt.Errorf("kvplane: tcp agent %s: already open", agent)
	case t.cfg.Path != "" && t.cfg.Path != PathSocket && t.cfg.Path != PathMemory:
		return nil, "", fmt.Errorf("kvplane: tcp agent %s: path is %q; want %q, %q or nothing", agent, t.cfg.Path, PathSocket, PathMemory)
	case agent == "" || len(agent) > maxAgentName:
		return nil, "", fmt.Errorf("kvplane: tcp agent name of %d bytes; want 1 to %d", len(agent), maxAgentName)
	}
	s, err := newDRAM(memory)
	if err != nil {
		return nil, "", fmt.Errorf("kvplane: tcp agent %s: %w", agent, err)
	}
	secret := make([]byte, secretBytes)
	if _, err := rand.Read(secret); err != nil {
		return nil, "", fmt.Errorf("kvplane: tcp agent %s: %w", agent, err)
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive, Control: t.control}
	ln, err := lc.Listen(t.ctx, "tcp", t.cfg.Listen)
	if err != nil {
		return nil, "", fmt.Errorf("kvplane: tcp agent %s: %w", agent, err)
	}
	addresses, err := advertised(ln.Addr(), t.cfg.Advertise)
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("kvplane: tcp agent %s: %w", agent, err), ln.Close())
	}
	var process metadata.Process
	if t.cfg.Path != PathSocket {
		process = procid.Self()
	}
	blob, err := contact{Version: blobVersion, Addresses: addresses, Secret: secret, Memory: packSpans(s), Process: process}.encode()
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("kvplane: tcp agent %s: %w", agent, err), ln.Close())
	}
	t.name, t.secret, t.memory, t.process, t.listener = agent, secret, s, process, ln.(*net.TCPListener)
	t.tasks.Go(t.accept)
	return blob, "", nil
}

// advertised completes the configured addresses with the port, or falls back to the address listened on.
func advertised(at net.Addr, configured []string) ([]string, error) {
	host, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return nil, err
	}
	if len(configured) == 0 {
		if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
			return nil, fmt.Errorf("listening on %s needs an address to advertise", at)
		}
		return []string{at.String()}, nil
	}
	var out []string
	for _, a := range configured {
		if _, _, err := net.SplitHostPort(a); err != nil {
			a = net.JoinHostPort(a, port)
		}
		out = append(out, a)
	}
	return out, nil
}

// Connect implements Transport. The connection is made in the background; a peer that cannot be reached is reported
// lost by Poll.
func (t *Transport) Connect(peer metadata.Record) error {
	fail := func(err error) error { return fmt.Errorf("kvplane: tcp peer %s: %w", peer.Agent, err) }
	if peer.Transport != t.Name() {
		return fail(fmt.Errorf("its transport is %q; want %q", peer.Transport, t.Name()))
	}
	if peer.Agent == "" || len(peer.Agent) > maxAgentName {
		return fail(fmt.Errorf("agent name of %d bytes; want 1 to %d", len(peer.Agent), maxAgentName))
	}
	blob, err := parseContact(peer.Blob)
	if err != nil {
		return fail(err)
	}
	remote, err := unpackSpans(blob.Memory)
	if err != nil {
		return fail(err)
	}
	who, own, err := t.acquaint(peer)
	if err != nil {
		return fail(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed || t.listener == nil:
		return fail(transport.ErrClosed)
	case t.peers[peer.Agent] != nil:
		return fail(transport.ErrKnownPeer)
	}
	t.session = max(t.session+1, uint64(time.Now().UnixNano()))
	p := newOutbound(t, peer.Agent, blob, remote)
	p.session, p.proves = t.session, own
	t.knowLocked(peer.Agent, who)
	t.peers[peer.Agent] = p
	t.tasks.Go(p.run)
	return nil
}

// Disconnect implements Transport. Should a write be in progress after all, its end is reported as an error.
func (t *Transport) Disconnect(agent string) {
	t.mu.Lock()
	p := t.peers[agent]
	delete(t.peers, agent)
	t.mu.Unlock()
	if p != nil {
		p.forget()
	}
}

// Send implements Transport.
func (t *Transport) Send(agent string, body []byte) error {
	p, err := t.peer(agent)
	if err == nil {
		err = p.send(body)
	}
	if err != nil {
		return fmt.Errorf("kvplane: tcp message to %s: %w", agent, err)
	}
	return nil
}

// Write implements Transport. Ranges outside the memory of either side are refused here, and again by the receiver.
// The local bytes are read until the write has ended.
func (t *Transport) Write(agent string, id uint64, ranges []transfer.Range, notify []byte) error {
	p, err := t.peer(agent)
	if err == nil {
		err = p.write(id, ranges, notify)
	}
	if err != nil {
		return fmt.Errorf("kvplane: tcp write to %s: %w", agent, err)
	}
	return nil
}

func (t *Transport) peer(agent string) (*outbound, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	p := t.peers[agent]
	if p == nil {
		return nil, transport.ErrUnknownPeer
	}
	return p, nil
}

// Poll implements Transport.
func (t *Transport) Poll(out []transport.Incoming) []transport.Incoming {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.arrived {
		a := &t.arrived[i]
		if a.from != nil {
			a.from.queued--
			a.from.queuedBytes -= len(a.Body)
		}
		out = append(out, a.Incoming)
	}
	clear(t.arrived)
	t.arrived = t.arrived[:0]
	t.room.Broadcast()
	return out
}

// deliver queues one Incoming for Poll. A message waits until its connection's share of the queue has room; it is
// false if the connection was fenced or the transport closed meanwhile.
func (t *Transport) deliver(from *inbound, in transport.Incoming) bool {
	t.mu.Lock()
	for !t.closed && from != nil && !from.fenced &&
		(from.queued >= maxQueued || from.queuedBytes+len(in.Body) > maxQueuedBytes && from.queued > 0) {
		t.room.Wait()
	}
	if t.closed || from != nil && from.fenced {
		t.mu.Unlock()
		return false
	}
	if from != nil {
		from.queued++
		from.queuedBytes += len(in.Body)
	}
	in.At = time.Now()
	t.arrived = append(t.arrived, arrival{Incoming: in, from: from})
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // it rings already
	}
	return true
}

// Stats returns the counters. Safe for concurrent use.
func (t *Transport) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Inbound, s.Peers = len(t.inbound), len(t.peers)
	for _, p := range t.peers {
		if p.memory.Load() {
			s.Memory++
		}
	}
	return s
}

// Close implements Transport. Writes in progress are cut and not reported.
func (t *Transport) Close() error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	t.room.Broadcast()
	t.mu.Unlock()
	t.cancel()
	var err error
	if first && t.listener != nil {
		err = t.listener.Close()
	}
	t.tasks.Wait()
	if err != nil {
		return fmt.Errorf("kvplane: tcp agent %s: %w", t.name, err)
	}
	return nil
}
