package tcp

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"pdrouter/kvplane/internal/varint"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// nameContext begins what the key of a proof of a name is derived from, so that it is the key of nothing else.
const nameContext = "pdrouter kvplane tcp name v1\x00"

// maxKnown bounds the agents that a transport keeps in mind; of those beyond it who are not connected may be forgotten,
// and land nothing until they are connected again.
const maxKnown = 2 * transport.MaxPeers

// acquaintance is what this side knows, by its record, of an agent that it was once connected to.
type acquaintance struct {
	key     []byte // under which the agent proves its name here; nil: this side has no key
	process metadata.Process
}

// claim is how a connection says who dials: anybody who knows the blob can say a name, its owner alone can prove it.
type claim struct {
	accepted, dialled []byte // both sides' parts of the handshake
	proof             []byte // of the name, under the key that the two records give
}

// SetKey implements Keyed.
func (t *Transport) SetKey(public []byte, agree transport.Agreement) {
	t.public, t.agree = public, agree
}

// acquaint computes from a peer's record what its connections are judged by, and the key under which this agent proves
// its own name to it.
func (t *Transport) acquaint(peer metadata.Record) (a acquaintance, own []byte, err error) {
	a.process = peer.Process
	if t.agree == nil {
		return a, nil, nil
	}
	if len(peer.Key) == 0 {
		return a, nil, transport.ErrNoKey
	}
	secret, err := t.agree(peer.Key)
	if err != nil {
		return a, nil, fmt.Errorf("%w: %w", transport.ErrNoKey, err)
	}
	if a.key, err = nameKey(secret, peer.Agent, peer.Key, t.name, t.public); err != nil {
		return a, nil, err
	}
	own, err = nameKey(secret, t.name, t.public, peer.Agent, peer.Key)
	return a, own, err
}

// nameKey is what the dialling side proves its name under.
func nameKey(secret []byte, dialling string, diallingKey []byte, accepting string, acceptingKey []byte) ([]byte, error) {
	b := varint.AppendText([]byte(nameContext), dialling)
	b = varint.AppendText(b, string(diallingKey))
	b = varint.AppendText(b, accepting)
	b = varint.AppendText(b, string(acceptingKey))
	return hkdf.Key(sha256.New, secret, nil, string(b), sha256.Size)
}

// proves says whether a connection's claim is the agent's own, by what is known of it.
func (a acquaintance) proves(c claim, self, agent string) bool {
	return a.key == nil || hmac.Equal(c.proof, proof(a.key, "name", self, agent, c.accepted, c.dialled))
}

// offers says whether the agent lives in this process, so that its word on that process' memory counts.
func (a acquaintance) offers(p metadata.Process) bool {
	return a.process == p || a.key == nil && a.process.IsZero()
}

// knowLocked takes in who an agent is. Connections that have only claimed to be its own are judged now: those that are
// not are cut, and of the others the newest session stays. None of them has landed anything.
func (t *Transport) knowLocked(agent string, a acquaintance) {
	for name := range t.known {
		if len(t.known) < maxKnown {
			break
		}
		if t.peers[name] == nil {
			delete(t.known, name)
		}
	}
	t.known[agent] = a
	newest := uint64(0)
	for c := range t.inbound {
		if c.agent != agent || !c.joined {
			continue
		}
		c.bound = a.proves(c.claim, t.name, agent) && (c.process.IsZero() || a.offers(c.process))
		if c.bound {
			newest = max(newest, c.session)
		}
	}
	for c := range t.inbound {
		if c.agent == agent && c.joined && (!c.bound || c.session < newest) {
			c.fenced = true
			_ = c.conn.Close() // its reader reports nothing: it was told
		}
	}
	t.room.Broadcast()
}
