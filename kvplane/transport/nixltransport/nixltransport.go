// Package nixltransport is the transport over a NIXL agent. Bytes and messages move only while both sides poll, and nothing can refuse the
// bytes of a live peer: it is no Fencer. It owns the NIXL agent, the handles of writes in progress and the doorbell.
//
// Read nixltransport.go first (Open, Poll), then peer.go (agent metadata of peers), write.go (one write, from post to the release of its handle),
// progress.go (polls of handles), prepared.go (writes by descriptor indices), doorbell.go (the datagram that wakes a sleeping owner).
package nixltransport

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/transport"
)

// Config configures the nixl transport. The zero value uses UCX and a free loopback port for the doorbell.
type Config struct {
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

func (c Config) withDefaults() Config {
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

// Transport is the transport over a NIXL agent without a progress thread: bytes and messages move only while both sides
// are polled. It must not be used by two goroutines at once; Wake's channel may be waited on from any.
type Transport struct {
	lib       *nixl.Library
	cfg       Config
	name      string
	agent     *nixl.Agent
	backend   *nixl.Backend
	memory    memory.Set
	registers []*nixl.Registration
	bell      *doorbell
	peers     map[string]*knownPeer
	preparing []*knownPeer // whose places are not ready yet
	writing   writesInProgress
	looked    time.Time            // when NIXL was last asked for messages
	ended     []transport.Incoming // known before the next Poll
	closed    bool
}

// New returns a transport that has not been opened.
func New(lib *nixl.Library, cfg Config) *Transport {
	return &Transport{lib: lib, cfg: cfg.withDefaults(), peers: make(map[string]*knownPeer), bell: newDoorbell()}
}

// Name implements Transport.
func (t *Transport) Name() string { return "nixl" }

// Polled implements Transport: nothing happens between two polls.
func (t *Transport) Polled() bool { return true }

// Wake implements Transport. It rings when a peer's datagram comes, which may be before what it announces.
func (t *Transport) Wake() <-chan struct{} { return t.bell.wake }

// Open implements Transport. It takes about half a second. The agent's name must contain its generation: NIXL keeps
// what it knows of a name.
func (t *Transport) Open(agent string, memory []memory.Region) (blob []byte, bell string, err error) {
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
	if t.memory, err = newSet(memory); err != nil {
		return nil, "", fail(err)
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
	lists, err := memoryOf(t.memory)
	if err != nil {
		return nil, "", fail(err)
	}
	for _, m := range lists {
		r, err := t.agent.Register(m)
		if err != nil {
			return nil, "", fail(err)
		}
		t.registers = append(t.registers, r)
	}
	md, err := t.agent.Metadata()
	if err != nil {
		return nil, "", fail(err)
	}
	if blob, err = msgpack.Marshal(contact{Version: blobVersion, Metadata: md, Memory: memories(t.memory)}); err != nil {
		return nil, "", fail(err)
	}
	if bell, err = t.bell.listen(t.cfg.Doorbell, t.cfg.Advertise, cookieOf(blob)); err != nil {
		return nil, "", fail(err)
	}
	return blob, bell, nil
}

// Send implements Transport.
func (t *Transport) Send(agent string, body []byte) error {
	if err := t.send(agent, body); err != nil {
		return fmt.Errorf("kvplane: nixl message to %s: %w", agent, err)
	}
	return nil
}

func (t *Transport) send(agent string, body []byte) error {
	p, err := t.peer(agent)
	if err != nil {
		return err
	}
	if len(body) > transport.MaxMessage {
		return fmt.Errorf("message of %d bytes; at most %d", len(body), transport.MaxMessage)
	}
	if err := t.agent.Notify(agent, body); err != nil {
		t.lose(agent, p, err)
		return fmt.Errorf("%w: %w", transport.ErrPeerLost, err)
	}
	t.ringFor(p, alert)
	return nil
}

// Poll implements Transport.
func (t *Transport) Poll(out []transport.Incoming) []transport.Incoming {
	if t.closed || t.agent == nil {
		return out
	}
	since := t.looked // what is here now has come after that
	t.looked = time.Now()
	var at time.Time // when it was announced
	if rang := t.bell.rang.Swap(nil); rang != nil {
		at = *rang
	}
	t.progress() // first: what takes in that a write has ended also sends its notification
	err := t.agent.Notifications(func(sender string, body []byte) {
		if p := t.peers[sender]; p != nil {
			p.heard = since
		}
		out = append(out, transport.Incoming{Kind: transport.MessageReceived, Agent: sender, Body: body, At: at})
	})
	if err != nil {
		t.cfg.Log.Warn("kvplane: nixl notifications", "agent", t.name, "err", err)
	}
	t.prepare()
	out = append(out, t.ended...)
	clear(t.ended)
	t.ended = t.ended[:0]
	return out
}

// Close implements Transport. Writes in progress are given Settle to end; after it the agent, its queues and its
// sockets are gone.
func (t *Transport) Close() error {
	if t.closed {
		return nil
	}
	for deadline := time.Now().Add(t.cfg.Settle); t.writing.n > 0 && time.Now().Before(deadline); {
		t.progress()
		time.Sleep(50 * time.Microsecond)
	}
	t.closed = true
	var errs []error
	for w := t.writing.first; w != nil; w = w.after {
		errs = append(errs, w.handle.Abandon())
	}
	t.writing, t.preparing, t.ended = writesInProgress{}, nil, nil
	errs = append(errs, t.bell.close())
	for _, p := range t.peers {
		if p.prepared != nil {
			errs = append(errs, p.prepared.close())
		}
	}
	for _, r := range t.registers {
		errs = append(errs, r.Close())
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
