package agent

import (
	"encoding/binary"
	"errors"

	"pdrouter/kvplane/internal/varint"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// envelope is who sent a message to whom. It travels in clear in front of the body, so that an unknown sender's record
// can be fetched.
type envelope struct {
	from  metadata.Incarnation
	agent string // the sender's agent; its name contains the generation
	to    string // the receiver's agent
}

// letter is a sealed message as it arrived: what stands in clear, and the whole that its code is about. Its fields
// share the message's memory.
type letter struct {
	engine, agent, to []byte
	generation        uint64
	body              []byte
	whole             []byte // envelope, body and code
}

// channelVersion begins each message; version 2 has a code behind the body. Records say it too, so that agents which would
// not understand each other are never paired: raise it with whatever agents say to each other.
const channelVersion = 2

var errEnvelope = errors.New("kvplane: malformed envelope")

// seal puts an envelope around a body, appended to dst. The code of the session belongs behind it.
func seal(dst []byte, e envelope, body []byte) []byte {
	dst = append(dst, channelVersion)
	dst = varint.AppendText(dst, e.from.Engine)
	dst = binary.AppendUvarint(dst, e.from.Generation)
	dst = varint.AppendText(dst, e.agent)
	dst = varint.AppendText(dst, e.to)
	return append(dst, body...)
}

// unseal takes what was sealed and signed apart. It believes nothing: only the session that the envelope names can tell
// whether the code is right.
func unseal(b []byte) (letter, error) {
	r := varint.Read(b)
	if len(b) > transport.MaxMessage || r.Byte() != channelVersion {
		return letter{}, errEnvelope
	}
	l := letter{whole: b}
	l.engine = r.Bytes(int(r.Uvarint(maxName)))
	l.generation = r.Uvarint(^uint64(0))
	l.agent = r.Bytes(int(r.Uvarint(maxName)))
	l.to = r.Bytes(int(r.Uvarint(maxName)))
	l.body = r.Bytes(len(r.Rest()) - codeBytes)
	if r.Failed() || len(l.agent) == 0 {
		return letter{}, errEnvelope
	}
	return l, nil
}

// envelope is what stands in clear.
func (l *letter) envelope() envelope {
	return envelope{from: metadata.Incarnation{Engine: string(l.engine), Generation: l.generation}, agent: string(l.agent), to: string(l.to)}
}

// is reports whether the letter says that it is from an agent with this record.
func (l *letter) is(r *metadata.Record) bool {
	return string(l.agent) == r.Agent && string(l.engine) == r.Engine && l.generation == r.Generation
}
