package wire

import (
	"encoding/binary"
	"errors"

	"pdrouter/kvplane/internal/varint"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// Header names the sender and the receiver of a message. It is not encrypted, so that the receiver can look up the record of a sender that it
// does not know yet.
type Header struct {
	From  metadata.Incarnation
	Agent string // the sender's agent; its name contains the generation
	To    string // the receiver's agent
}

// Packet is a message as it arrived. Its fields share the memory of the bytes.
type Packet struct {
	Engine, Agent, To []byte
	generation        uint64
	Body              []byte
	Whole             []byte // header, body and MAC
}

// Version begins each message; version 2 has a MAC after the body. Records contain it, so that agents which would not
// understand each other are never paired: raise it with every change of a message.
const Version = 2

var errHeader = errors.New("kvplane: malformed header")

// Encode appends header and body to dst. The MAC of the session comes after them.
func Encode(dst []byte, e Header, body []byte) []byte {
	dst = append(dst, Version)
	dst = varint.AppendText(dst, e.From.Engine)
	dst = binary.AppendUvarint(dst, e.From.Generation)
	dst = varint.AppendText(dst, e.Agent)
	dst = varint.AppendText(dst, e.To)
	return append(dst, body...)
}

// Decode splits a packet into header, body and MAC. It does not check the MAC: Session.Verify does.
func Decode(b []byte) (Packet, error) {
	r := varint.Read(b)
	if len(b) > transport.MaxMessage || r.Byte() != Version {
		return Packet{}, errHeader
	}
	l := Packet{Whole: b}
	l.Engine = r.Bytes(int(r.Uvarint(plan.MaxName)))
	l.generation = r.Uvarint(^uint64(0))
	l.Agent = r.Bytes(int(r.Uvarint(plan.MaxName)))
	l.To = r.Bytes(int(r.Uvarint(plan.MaxName)))
	l.Body = r.Bytes(len(r.Rest()) - MACBytes)
	if r.Failed() || len(l.Agent) == 0 {
		return Packet{}, errHeader
	}
	return l, nil
}

// Header returns the header.
func (l *Packet) Header() Header {
	return Header{From: metadata.Incarnation{Engine: string(l.Engine), Generation: l.generation}, Agent: string(l.Agent), To: string(l.To)}
}

// Is reports whether the header names the agent of this record as the sender.
func (l *Packet) Is(r *metadata.Record) bool {
	return string(l.Agent) == r.Agent && string(l.Engine) == r.Engine && l.generation == r.Generation
}
