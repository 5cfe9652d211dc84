package wire

import (
	"encoding/binary"
	"errors"

	"pdrouter/kvplane/internal/varint"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// Envelope is who sent a message to whom. It travels in clear in front of the body, so that an unknown sender's record
// can be fetched.
type Envelope struct {
	From  metadata.Incarnation
	Agent string // the sender's agent; its name contains the generation
	To    string // the receiver's agent
}

// Letter is a sealed message as it arrived: what stands in clear, and the whole that its code is about. Its fields
// share the message's memory.
type Letter struct {
	Engine, Agent, To []byte
	generation        uint64
	Body              []byte
	Whole             []byte // envelope, body and code
}

// Version begins each message; version 2 has a code behind the body. Records say it too, so that agents which would
// not understand each other are never paired: raise it with whatever agents say to each other.
const Version = 2

var errEnvelope = errors.New("kvplane: malformed envelope")

// Seal puts an envelope around a body, appended to dst. The code of the session belongs behind it.
func Seal(dst []byte, e Envelope, body []byte) []byte {
	dst = append(dst, Version)
	dst = varint.AppendText(dst, e.From.Engine)
	dst = binary.AppendUvarint(dst, e.From.Generation)
	dst = varint.AppendText(dst, e.Agent)
	dst = varint.AppendText(dst, e.To)
	return append(dst, body...)
}

// Unseal takes what was sealed and signed apart. It believes nothing: only the session that the envelope names can tell
// whether the code is right.
func Unseal(b []byte) (Letter, error) {
	r := varint.Read(b)
	if len(b) > transport.MaxMessage || r.Byte() != Version {
		return Letter{}, errEnvelope
	}
	l := Letter{Whole: b}
	l.Engine = r.Bytes(int(r.Uvarint(plan.MaxName)))
	l.generation = r.Uvarint(^uint64(0))
	l.Agent = r.Bytes(int(r.Uvarint(plan.MaxName)))
	l.To = r.Bytes(int(r.Uvarint(plan.MaxName)))
	l.Body = r.Bytes(len(r.Rest()) - CodeBytes)
	if r.Failed() || len(l.Agent) == 0 {
		return Letter{}, errEnvelope
	}
	return l, nil
}

// Envelope is what stands in clear.
func (l *Letter) Envelope() Envelope {
	return Envelope{From: metadata.Incarnation{Engine: string(l.Engine), Generation: l.generation}, Agent: string(l.Agent), To: string(l.To)}
}

// Is reports whether the letter says that it is from an agent with this record.
func (l *Letter) Is(r *metadata.Record) bool {
	return string(l.Agent) == r.Agent && string(l.Engine) == r.Engine && l.generation == r.Generation
}
