package nixltransport

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// contact is what a peer must load. Whoever holds it may write into the memory: it is a secret.
type contact struct {
	Version  int      `msgpack:"v"`
	Metadata []byte   `msgpack:"md"` // NIXL's own
	Memory   memories `msgpack:"memory"`
}

// memories is a list whose length is checked before room is made for it.
type memories []memory.Region

// DecodeMsgpack implements msgpack.CustomDecoder.
func (m *memories) DecodeMsgpack(d *msgpack.Decoder) error {
	n, err := d.DecodeArrayLen()
	if err != nil {
		return err
	}
	if n > metadata.MaxRegions {
		return fmt.Errorf("%d stretches of memory; want at most %d", n, metadata.MaxRegions)
	}
	*m = make(memories, 0, max(n, 0))
	for range n {
		var x memory.Region
		if err := d.Decode(&x); err != nil {
			return err
		}
		*m = append(*m, x)
	}
	return nil
}

const blobVersion = 1

// knownPeer is a peer whose metadata is loaded.
type knownPeer struct {
	remote   memory.Set
	bell     netip.AddrPort // invalid: it has none
	cookie   cookie         // what a datagram to it holds
	heard    time.Time      // it has spoken since
	prepared *preparedLists // nil until somebody asked
	writing  int            // handles in progress; the metadata must stay while there are any
	leaving  bool           // the owner disconnected
	lost     error
}

// Connect implements Transport.
func (t *Transport) Connect(peer metadata.Record) error {
	if err := t.connect(peer); err != nil {
		return fmt.Errorf("kvplane: nixl peer %s: %w", peer.Agent, err)
	}
	return nil
}

func (t *Transport) connect(record metadata.Record) error {
	switch p := t.peers[record.Agent]; {
	case t.closed || t.agent == nil:
		return transport.ErrClosed
	case record.Transport != t.Name():
		return fmt.Errorf("its transport is %q; want %q", record.Transport, t.Name())
	case p != nil && p.leaving:
		return transport.ErrBusy
	case p != nil:
		return transport.ErrKnownPeer
	}
	blob, remote, err := parseContact(record.Blob)
	if err != nil {
		return fmt.Errorf("blob: %w", err)
	}
	p := &knownPeer{remote: remote, cookie: cookieOf(record.Blob)}
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
	t.bell.ring(p) // wiring up needs the peer's progress too
	return nil
}

// parseContact reads what a peer has published and checks all of it but NIXL's own part.
func parseContact(b []byte) (contact, memory.Set, error) {
	var blob contact
	if len(b) > metadata.MaxBlob {
		return blob, nil, fmt.Errorf("%d bytes; want at most %d", len(b), metadata.MaxBlob)
	}
	if err := msgpack.Unmarshal(b, &blob); err != nil {
		return blob, nil, err
	}
	if blob.Version != blobVersion {
		return blob, nil, fmt.Errorf("version is %d; want %d", blob.Version, blobVersion)
	}
	remote, err := newSet(blob.Memory)
	return blob, remote, err
}

// Disconnect implements Transport. Should a write be in progress after all, the peer is forgotten after its end.
func (t *Transport) Disconnect(agent string) {
	if p := t.peers[agent]; p != nil && !t.closed {
		p.leaving = true
		t.forget(agent, p)
	}
}

// forget drops a peer that was disconnected and has no handle in progress.
func (t *Transport) forget(agent string, p *knownPeer) {
	if !p.leaving || p.writing > 0 {
		return
	}
	delete(t.peers, agent)
	t.preparing = slices.DeleteFunc(t.preparing, func(x *knownPeer) bool { return x == p })
	var err error
	if p.prepared != nil {
		err = p.prepared.close()
	}
	if err := errors.Join(err, t.agent.Forget(agent)); err != nil {
		t.cfg.Log.Warn("kvplane: nixl peer not forgotten", "agent", t.name, "peer", agent, "err", err)
	}
}

func (t *Transport) peer(agent string) (*knownPeer, error) {
	p := t.peers[agent]
	switch {
	case t.closed:
		return nil, transport.ErrClosed
	case p == nil || p.leaving:
		return nil, transport.ErrUnknownPeer
	case p.lost != nil:
		return nil, fmt.Errorf("%w: %w", transport.ErrPeerLost, p.lost)
	}
	return p, nil
}

// lose reports a peer lost, once.
func (t *Transport) lose(agent string, p *knownPeer, err error) {
	if p.lost == nil {
		p.lost = err
		if !p.leaving {
			t.ended = append(t.ended, transport.Incoming{Kind: transport.PeerLost, Agent: agent, Err: fmt.Errorf("kvplane: nixl peer %s: %w", agent, err)})
		}
	}
}
