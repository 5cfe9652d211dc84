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

const channelVersion = 1

var errEnvelope = errors.New("kvplane: malformed envelope")

// seal puts an envelope around a body, appended to dst. This pair of functions is where messages are authenticated:
// a code over envelope and body belongs behind the body.
func seal(dst []byte, e envelope, body []byte) []byte {
	dst = append(dst, channelVersion)
	dst = appendText(dst, e.from.Engine)
	dst = binary.AppendUvarint(dst, e.from.Generation)
	dst = appendText(dst, e.agent)
	dst = appendText(dst, e.to)
	return append(dst, body...)
}

// unseal is the inverse of seal. The body shares b's memory.
func unseal(b []byte) (envelope, []byte, error) {
	r := reader{b: b}
	if len(b) > MaxMessage || r.byte() != channelVersion {
		return envelope{}, nil, errEnvelope
	}
	var e envelope
	e.from.Engine = r.text(maxName)
	e.from.Generation = r.uvarint(^uint64(0))
	e.agent = r.text(maxName)
	e.to = r.text(maxName)
	if r.bad || e.agent == "" {
		return envelope{}, nil, errEnvelope
	}
	return e, r.b, nil
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
	if r.bad || n > len(r.b) {
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
