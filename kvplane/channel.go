package kvplane

import (
	"encoding/binary"
	"errors"

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
	dst = appendText(dst, e.from.Engine)
	dst = binary.AppendUvarint(dst, e.from.Generation)
	dst = appendText(dst, e.agent)
	dst = appendText(dst, e.to)
	return append(dst, body...)
}

// unseal takes what was sealed and signed apart. It believes nothing: only the session that the envelope names can tell
// whether the code is right.
func unseal(b []byte) (letter, error) {
	r := reader{b: b}
	if len(b) > MaxMessage || r.byte() != channelVersion {
		return letter{}, errEnvelope
	}
	l := letter{whole: b}
	l.engine = r.bytes(int(r.uvarint(maxName)))
	l.generation = r.uvarint(^uint64(0))
	l.agent = r.bytes(int(r.uvarint(maxName)))
	l.to = r.bytes(int(r.uvarint(maxName)))
	l.body = r.bytes(len(r.b) - codeBytes)
	if r.bad || len(l.agent) == 0 {
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

func appendText(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// reader takes fields from the front of b and remembers whether one did not fit.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > limit {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) bytes(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) text(limit uint64) string {
	return string(r.bytes(int(r.uvarint(limit))))
}
