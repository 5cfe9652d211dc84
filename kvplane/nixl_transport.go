package kvplane

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// NIXLConfig configures the nixl transport. The zero value uses UCX and a free loopback port for the doorbell.
type NIXLConfig struct {
	// Backend is NIXL's plugin; default "UCX".
	Backend string
	// Options are the backend's parameters that differ from its defaults.
	Options map[string]string
	// Doorbell is the host:port of the datagram socket that wakes this agent's owner; default "127.0.0.1:0".
	// A host that stands for all interfaces needs Advertise.
	Doorbell string
	// Advertise is the IP address that peers ring; default: the one listened on.
	Advertise string
	// Settle is how long Close waits for writes in progress; default 1 s. What has not ended then ends with the agent.
	Settle time.Duration
	// Log receives what no caller is told; default: nowhere.
	Log *slog.Logger
}

func (c NIXLConfig) withDefaults() NIXLConfig {
	if c.Backend == "" {
		c.Backend = "UCX"
	}
	if c.Doorbell == "" {
		c.Doorbell = "127.0.0.1:0"
	}
	if c.Settle == 0 {
		c.Settle = time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// NIXL is the transport over a NIXL agent without a progress thread: bytes and messages move only while both sides
// are polled. It must not be used by two goroutines at once; Wake's channel may be waited on from any.
type NIXL struct {
	lib      *nixl.Library
	cfg      NIXLConfig
	name     string
	agent    *nixl.Agent
	backend  *nixl.Backend
	memory   spans
	register *nixl.Registration
	bell     *doorbell
	peers    map[string]*nixlPeer
	writing  []*nixlWrite
	ended    []Incoming // known before the next Poll
	closed   bool
}

// nixlPeer is a peer whose metadata is loaded.
type nixlPeer struct {
	remote  spans
	bell    netip.AddrPort // invalid: it has none
	writing int            // handles in progress; the metadata must stay while there are any
	leaving bool           // the owner disconnected
	lost    error
}

// nixlWrite is a request that was posted and has not been seen to end.
type nixlWrite struct {
	id     uint64
	agent  string
	peer   *nixlPeer
	handle *nixl.Transfer
	failed error // the post itself failed
}

// nixlBlob is what a peer must load. Whoever holds it may write into the memory: it is a secret.
type nixlBlob struct {
	Version  int      `msgpack:"v"`
	Metadata []byte   `msgpack:"md"` // NIXL's own
	Memory   []Memory `msgpack:"memory"`
}

const nixlBlobVersion = 1

// NewNIXL returns a transport that has not been opened.
func NewNIXL(lib *nixl.Library, cfg NIXLConfig) *NIXL {
	return &NIXL{lib: lib, cfg: cfg.withDefaults(), peers: make(map[string]*nixlPeer), bell: newDoorbell()}
}

// Name implements Transport.
func (t *NIXL) Name() string { return "nixl" }

// Polled implements Transport: nothing happens between two polls.
func (t *NIXL) Polled() bool { return true }

// Wake implements Transport. It rings when a peer's datagram comes, which may be before what it announces.
func (t *NIXL) Wake() <-chan struct{} { return t.bell.wake }

// Open implements Transport. It takes about half a second. The agent's name must contain its generation: NIXL keeps
// what it knows of a name.
func (t *NIXL) Open(agent string, memory []Memory) (blob []byte, bell string, err error) {
	fail := func(err error) error { return fmt.Errorf("kvplane: nixl agent %s: %w", agent, err) }
	if t.agent != nil || t.closed {
		return nil, "", fail(errors.New("opened before"))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	t.name = agent
	if t.memory, err = newSpans(memory); err != nil {
		return nil, "", err
	}
	if t.agent, err = t.lib.NewAgent(agent, nixl.AgentConfig{}); err != nil {
		return nil, "", fail(err)
	}
	if t.backend, err = t.agent.NewBackend(t.cfg.Backend, t.cfg.Options); err != nil {
		return nil, "", fail(err)
	}
	if err = t.agent.Use(t.backend); err != nil {
		return nil, "", fail(err)
	}
	if len(t.memory) > 0 {
		regions := make([]nixl.Region, 0, len(t.memory))
		for _, m := range t.memory {
			regions = append(regions, nixl.Region{Address: m.Base, Length: m.Length})
		}
		if t.register, err = t.agent.Register(nixl.DRAM, regions); err != nil {
			return nil, "", fail(err)
		}
	}
	md, err := t.agent.Metadata()
	if err != nil {
		return nil, "", fail(err)
	}
	if blob, err = msgpack.Marshal(nixlBlob{Version: nixlBlobVersion, Metadata: md, Memory: t.memory}); err != nil {
		return nil, "", fail(err)
	}
	if bell, err = t.bell.listen(t.cfg.Doorbell, t.cfg.Advertise); err != nil {
		return nil, "", fail(err)
	}
	return blob, bell, nil
}

// Connect implements Transport.
func (t *NIXL) Connect(peer metadata.Record) error {
	if err := t.connect(peer); err != nil {
		return fmt.Errorf("kvplane: nixl peer %s: %w", peer.Agent, err)
	}
	return nil
}

func (t *NIXL) connect(record metadata.Record) error {
	switch p := t.peers[record.Agent]; {
	case t.closed || t.agent == nil:
		return ErrClosed
	case record.Transport != t.Name():
		return fmt.Errorf("its transport is %q; want %q", record.Transport, t.Name())
	case p != nil && p.leaving:
		return ErrBusy
	case p != nil:
		return ErrKnownPeer
	}
	var blob nixlBlob
	if err := msgpack.Unmarshal(record.Blob, &blob); err != nil {
		return fmt.Errorf("blob: %w", err)
	}
	if blob.Version != nixlBlobVersion {
		return fmt.Errorf("blob: version is %d; want %d", blob.Version, nixlBlobVersion)
	}
	remote, err := newSpans(blob.Memory)
	if err != nil {
		return fmt.Errorf("blob: %w", err)
	}
	p := &nixlPeer{remote: remote}
	if record.Doorbell != "" {
		if p.bell, err = netip.ParseAddrPort(record.Doorbell); err != nil {
			return fmt.Errorf("doorbell: %w", err)
		}
	}
	name, err := t.agent.Load(blob.Metadata)
	if err != nil {
		return err
	}
	if name != record.Agent {
		return errors.Join(fmt.Errorf("its metadata is that of agent %q", name), t.agent.Forget(name))
	}
	if err := t.agent.Connect(name); err != nil {
		return errors.Join(err, t.agent.Forget(name))
	}
	t.peers[name] = p
	t.bell.ring(p.bell) // wiring up needs the peer's progress too
	return nil
}

// Disconnect implements Transport. Should a write be in progress after all, the peer is forgotten after its end.
func (t *NIXL) Disconnect(agent string) {
	if p := t.peers[agent]; p != nil && !t.closed {
		p.leaving = true
		t.forget(agent, p)
	}
}

// forget drops a peer that was disconnected and has no handle in progress.
func (t *NIXL) forget(agent string, p *nixlPeer) {
	if !p.leaving || p.writing > 0 {
		return
	}
	delete(t.peers, agent)
	if err := t.agent.Forget(agent); err != nil {
		t.cfg.Log.Warn("kvplane: nixl peer not forgotten", "agent", t.name, "peer", agent, "err", err)
	}
}

func (t *NIXL) peer(agent string) (*nixlPeer, error) {
	p := t.peers[agent]
	switch {
	case t.closed:
		return nil, ErrClosed
	case p == nil || p.leaving:
		return nil, ErrUnknownPeer
	case p.lost != nil:
		return nil, fmt.Errorf("%w: %w", ErrPeerLost, p.lost)
	}
	return p, nil
}

// lose reports a peer lost, once.
func (t *NIXL) lose(agent string, p *nixlPeer, err error) {
	if p.lost == nil {
		p.lost = err
		if !p.leaving {
			t.ended = append(t.ended, Incoming{Kind: PeerLost, Agent: agent, Err: fmt.Errorf("kvplane: nixl peer %s: %w", agent, err)})
		}
	}
}

// Send implements Transport.
func (t *NIXL) Send(agent string, body []byte) error {
	if err := t.send(agent, body); err != nil {
		return fmt.Errorf("kvplane: nixl message to %s: %w", agent, err)
	}
	return nil
}

func (t *NIXL) send(agent string, body []byte) error {
	p, err := t.peer(agent)
	if err != nil {
		return err
	}
	if len(body) > MaxMessage {
		return fmt.Errorf("message of %d bytes; at most %d", len(body), MaxMessage)
	}
	if err := t.agent.Notify(agent, body); err != nil {
		t.lose(agent, p, err)
		return fmt.Errorf("%w: %w", ErrPeerLost, err)
	}
	t.bell.ring(p.bell)
	return nil
}

// Write implements Transport. Ranges outside the memory of either side are refused here.
func (t *NIXL) Write(agent string, id uint64, ranges []Range, notify []byte) error {
	if err := t.write(agent, id, ranges, notify); err != nil {
		return fmt.Errorf("kvplane: nixl write to %s: %w", agent, err)
	}
	return nil
}

func (t *NIXL) write(agent string, id uint64, ranges []Range, notify []byte) error {
	p, err := t.peer(agent)
	if err != nil {
		return err
	}
	if len(notify) > MaxMessage {
		return fmt.Errorf("notification of %d bytes; at most %d", len(notify), MaxMessage)
	}
	if len(notify) == 0 {
		notify = nil
	}
	if len(ranges) == 0 {
		if notify != nil {
			if err := t.send(agent, notify); err != nil {
				return err
			}
		}
		t.ended = append(t.ended, Incoming{Kind: WriteEnded, Agent: agent, ID: id})
		return nil
	}
	local, remote := make([]nixl.Region, len(ranges)), make([]nixl.Region, len(ranges))
	for i, r := range ranges {
		switch {
		case r.Length == 0:
			return fmt.Errorf("range at %#x is empty", r.Local)
		case !t.memory.holds(r.Local, r.Length):
			return fmt.Errorf("range at %#x of %d bytes is not in registered memory", r.Local, r.Length)
		case !p.remote.holds(r.Remote, r.Length):
			return fmt.Errorf("range at %#x of %d bytes is not in the peer's registered memory", r.Remote, r.Length)
		}
		local[i] = nixl.Region{Address: r.Local, Length: r.Length}
		remote[i] = nixl.Region{Address: r.Remote, Length: r.Length}
	}
	handle, err := t.agent.NewTransfer(nixl.Write, nixl.DRAM, local, remote, agent, notify)
	if err != nil {
		return err
	}
	w := &nixlWrite{id: id, agent: agent, peer: p, handle: handle}
	status, err := handle.Post()
	if err != nil {
		// Some of it may have gone out, so it was posted; it ends when nothing is under way any more.
		w.failed = err
	}
	p.writing++
	t.bell.ring(p.bell)
	if status != nixl.InProgress && err == nil {
		t.end(w, nil)
		return nil
	}
	t.writing = append(t.writing, w)
	return nil
}

// Poll implements Transport.
func (t *NIXL) Poll(out []Incoming) []Incoming {
	if t.closed || t.agent == nil {
		return out
	}
	err := t.agent.Notifications(func(sender string, body []byte) {
		out = append(out, Incoming{Kind: MessageReceived, Agent: sender, Body: body})
	})
	if err != nil {
		t.cfg.Log.Warn("kvplane: nixl notifications", "agent", t.name, "err", err)
	}
	t.progress()
	out = append(out, t.ended...)
	clear(t.ended)
	t.ended = t.ended[:0]
	return out
}

// progress asks every write in progress how it stands and ends those that have ended.
func (t *NIXL) progress() {
	still := t.writing[:0]
	for _, w := range t.writing {
		if status, err := w.handle.Status(); status == nixl.InProgress {
			still = append(still, w)
		} else {
			t.end(w, errors.Join(w.failed, err))
		}
	}
	clear(t.writing[len(still):])
	t.writing = still
}

// end gives the handle back, now that it has left «in progress», and reports how the write ended.
func (t *NIXL) end(w *nixlWrite, err error) {
	if closeErr := w.handle.Close(); closeErr != nil {
		t.cfg.Log.Warn("kvplane: nixl handle not released", "agent", t.name, "peer", w.agent, "err", closeErr)
	}
	in := Incoming{Kind: WriteEnded, Agent: w.agent, ID: w.id}
	if err != nil {
		in.Err = fmt.Errorf("kvplane: nixl write to %s: %w: %w", w.agent, ErrPeerLost, err)
	}
	t.ended = append(t.ended, in)
	w.peer.writing--
	if err != nil {
		t.lose(w.agent, w.peer, err)
	} else {
		t.bell.ring(w.peer.bell) // its notification went out just now
	}
	t.forget(w.agent, w.peer)
}

// Close implements Transport. Writes in progress are given Settle to end; after it the agent, its queues and its
// sockets are gone.
func (t *NIXL) Close() error {
	if t.closed {
		return nil
	}
	for deadline := time.Now().Add(t.cfg.Settle); len(t.writing) > 0 && time.Now().Before(deadline); {
		t.progress()
		time.Sleep(50 * time.Microsecond)
	}
	t.closed = true
	var errs []error
	for _, w := range t.writing {
		errs = append(errs, w.handle.Abandon())
	}
	t.writing, t.ended = nil, nil
	errs = append(errs, t.bell.close())
	if t.register != nil {
		errs = append(errs, t.register.Close())
	}
	if t.backend != nil {
		errs = append(errs, t.backend.Close())
	}
	if t.agent != nil {
		errs = append(errs, t.agent.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("kvplane: nixl agent %s: %w", t.name, err)
	}
	return nil
}
