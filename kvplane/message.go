package kvplane

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"
)

// message is what two agents say to each other; docs/kvplane.md has the table. Which fields count depends on kind.
type message struct {
	kind    messageKind
	floor   uint64 // D to P: the lowest number that D has not settled
	seq     uint64
	id      TransferID
	need    [2]int
	wait    time.Duration // whole milliseconds
	groups  []BlockList
	digest  [16]byte // register: of the body; filled in by parseMessage
	status  status
	why     string   // cancel
	settled []uint64 // floor: numbers above the floor that D has settled
}

type messageKind uint8

const (
	msgRegister messageKind = iota + 1 // D → P: these blocks are mine, write them
	msgStatus                          // P → D: the state of one registration
	msgDone                            // P → D: a status that comes with the write itself
	msgCancel                          // D → P: I give up, what may still land?
	msgFloor                           // D → P: what I have settled
)

// status is P's word on one registration.
type status struct {
	state  statusState
	reason Reason
	detail string
	tokens int // done: tokens that P has computed
}

type statusState uint8

const (
	statusWaiting  statusState = iota + 1 // registered, not offered yet
	statusPairing                         // offered, D not reachable yet
	statusWriting                         // posted
	statusDone                            // final: every byte has landed
	statusNotBegun                        // final: nothing was ever posted
	statusFailed                          // final: something was posted, and its handle has ended
)

func (s statusState) String() string {
	switch s {
	case statusWaiting:
		return "waiting"
	case statusPairing:
		return "pairing"
	case statusWriting:
		return "writing"
	case statusDone:
		return "done"
	case statusNotBegun:
		return "not_begun"
	case statusFailed:
		return "failed"
	}
	return "none"
}

func (s statusState) final() bool { return s >= statusDone }

// Bounds on what a message may hold.
const (
	maxDetail  = 512
	maxBlocks  = 1 << 20 // blocks of a registration, all groups together
	maxSettled = 1 << 12 // numbers of a FLOOR
	maxTokens  = 1 << 40
	maxWait    = 24 * time.Hour
)

var errMessage = errors.New("kvplane: malformed message")

// appendMessage encodes m behind dst. Block ids travel as runs (start, count).
func appendMessage(dst []byte, m *message) []byte {
	dst = append(dst, byte(m.kind))
	dst = binary.AppendUvarint(dst, m.floor)
	if m.kind == msgFloor {
		dst = binary.AppendUvarint(dst, uint64(len(m.settled)))
		for _, seq := range m.settled {
			dst = binary.AppendUvarint(dst, seq)
		}
		return dst
	}
	dst = binary.AppendUvarint(dst, m.seq)
	switch m.kind {
	case msgRegister:
		dst = append(dst, m.id[:]...)
		dst = binary.AppendUvarint(dst, uint64(m.need[0]))
		dst = binary.AppendUvarint(dst, uint64(m.need[1]))
		dst = binary.AppendUvarint(dst, uint64(len(m.groups)))
		for _, g := range m.groups {
			dst = appendBlocks(dst, g)
		}
		dst = binary.AppendUvarint(dst, uint64(min(m.wait, maxWait)/time.Millisecond))
	case msgStatus, msgDone:
		dst = append(dst, byte(m.status.state), byte(m.status.reason))
		dst = binary.AppendUvarint(dst, uint64(m.status.tokens))
		dst = appendText(dst, cut(m.status.detail))
	case msgCancel:
		dst = append(dst, m.id[:]...)
		dst = appendText(dst, cut(m.why))
	}
	return dst
}

func cut(s string) string { return s[:min(len(s), maxDetail)] }

func appendBlocks(dst []byte, g BlockList) []byte {
	dst = binary.AppendUvarint(dst, uint64(g.First))
	runs := 0
	for i := range g.Blocks {
		if i == 0 || g.Blocks[i] != g.Blocks[i-1]+1 {
			runs++
		}
	}
	dst = binary.AppendUvarint(dst, uint64(runs))
	for i := 0; i < len(g.Blocks); {
		j := i + 1
		for j < len(g.Blocks) && g.Blocks[j] == g.Blocks[j-1]+1 {
			j++
		}
		dst = binary.AppendUvarint(dst, uint64(uint32(g.Blocks[i])))
		dst = binary.AppendUvarint(dst, uint64(j-i))
		i = j
	}
	return dst
}

// parseMessage decodes what a peer sent. Everything is bounded; anything that does not fit is an error.
func parseMessage(b []byte) (*message, error) {
	r := reader{b: b}
	m := &message{kind: messageKind(r.byte()), floor: r.uvarint(^uint64(0))}
	body := r.b
	if m.kind != msgFloor {
		m.seq = r.uvarint(^uint64(0))
		if m.seq == 0 {
			return nil, errMessage
		}
	}
	switch m.kind {
	case msgRegister:
		copy(m.id[:], r.bytes(len(m.id)))
		m.need[0] = int(r.uvarint(maxTokens))
		m.need[1] = int(r.uvarint(maxTokens))
		m.groups = r.groups()
		m.wait = time.Duration(r.uvarint(uint64(maxWait/time.Millisecond))) * time.Millisecond
		sum := sha256.Sum256(body)
		copy(m.digest[:], sum[:])
	case msgStatus, msgDone:
		m.status.state, m.status.reason = statusState(r.byte()), Reason(r.byte())
		m.status.tokens = int(r.uvarint(maxTokens))
		m.status.detail = r.text(maxDetail)
		if m.status.state < statusWaiting || m.status.state > statusFailed || m.kind == msgDone && m.status.state != statusDone {
			return nil, errMessage
		}
	case msgCancel:
		copy(m.id[:], r.bytes(len(m.id)))
		m.why = r.text(maxDetail)
	case msgFloor:
		n := r.uvarint(maxSettled)
		for range n {
			if r.bad {
				break
			}
			m.settled = append(m.settled, r.uvarint(^uint64(0)))
		}
	default:
		return nil, errMessage
	}
	if r.bad || len(r.b) > 0 {
		return nil, errMessage
	}
	return m, nil
}

func (r *reader) groups() []BlockList {
	n := r.uvarint(maxGroups)
	if r.bad || n == 0 {
		return nil
	}
	groups := make([]BlockList, n)
	left := uint64(maxBlocks)
	for i := range groups {
		groups[i].First = int(r.uvarint(maxTokens))
		for range r.uvarint(maxBlocks) {
			start, count := r.uvarint(1<<31-1), r.uvarint(left)
			if r.bad || count == 0 || start+count > 1<<31 {
				r.bad = true
				return nil
			}
			left -= count
			for id := range count {
				groups[i].Blocks = append(groups[i].Blocks, int32(start+id))
			}
		}
	}
	return groups
}
