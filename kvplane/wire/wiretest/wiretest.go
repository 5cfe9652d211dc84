// Package wiretest makes agents that speak without an owner. It is for tests alone.
package wiretest

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

// FakeKey stands for the key that Open makes, where no randomness may be read: the public half is made from the agent's
// name, and two agents agree on a digest of both their public halves. It keeps nothing secret.
func FakeKey(agent string) (public []byte, agree transport.Agreement) {
	own := sha256.Sum256([]byte(agent))
	return own[:], func(peer []byte) ([]byte, error) {
		low, high := own[:], peer
		if bytes.Compare(low, high) > 0 {
			low, high = high, low
		}
		secret := sha256.Sum256(append(append([]byte(nil), low...), high...))
		return secret[:], nil
	}
}

// Party is one agent with a key, without an owner.
type Party struct {
	Record metadata.Record
	Agree  transport.Agreement
}

// New makes an agent of an engine: with a real key, or with one of FakeKey.
func New(t testing.TB, engine string, generation uint64, real bool) Party {
	t.Helper()
	p := Party{Record: metadata.Record{Incarnation: metadata.Incarnation{Engine: engine, Generation: generation}}}
	p.Record.Agent = p.Record.ID() + "/0/0/0"
	p.Record.Key, p.Agree = FakeKey(p.Record.Agent)
	if real {
		var err error
		if p.Record.Key, p.Agree, err = transport.NewKey(); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// With is the session with another one.
func (p Party) With(t testing.TB, peer Party) *wire.Session {
	t.Helper()
	s, err := wire.NewSession(p.Agree, p.Record, peer.Record)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Write encodes a message from one agent to another, with its MAC.
func (p Party) Write(t testing.TB, to Party, m *wire.Message) []byte {
	t.Helper()
	e := wire.Header{From: p.Record.Incarnation, Agent: p.Record.Agent, To: to.Record.Agent}
	return p.With(t, to).AppendMAC(wire.Encode(nil, e, wire.Append(nil, m)))
}

// HeaderOf is the header of what a party says to an agent.
func HeaderOf(p Party, to metadata.Record) wire.Header {
	return wire.Header{From: p.Record.Incarnation, Agent: p.Record.Agent, To: to.Agent}
}

// EncodedAs is a message as a stranger would write it: with a MAC of zeros.
func EncodedAs(e wire.Header, body []byte) []byte {
	return append(wire.Encode(nil, e, body), make([]byte, wire.MACBytes)...)
}
