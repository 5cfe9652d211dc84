package kvplane

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"time"
)

var errMessage = errors.New("kvplane: malformed message")

// appendMessage encodes m behind dst. Block ids travel as runs (start, count).
func appendMessage(dst []byte, m *message) []byte {
	dst = append(dst, byte(m.kind))
	dst = binary.AppendUvarint(dst, m.floor)
	if m.kind.numbered() {
		dst = binary.AppendUvarint(dst, m.seq)
	}
	switch m.kind {
	case msgRegister:
		dst = append(dst, m.id[:]...)
		dst = binary.AppendUvarint(dst, uint64(m.need[0]))
		dst = binary.AppendUvarint(dst, uint64(m.need[1]))
		dst = binary.AppendUvarint(dst, uint64(len(m.groups)))
		for _, g := range m.groups {
			dst = appendBlocks(dst, g)
		}
		dst = append(dst, m.ticket[:]...)
		dst = append(dst, m.hash[:]...)
		dst = binary.AppendUvarint(dst, uint64(min(m.wait, maxWait)/time.Millisecond))
	case msgStatus, msgDone:
		dst = append(dst, byte(m.status.state), byte(m.status.reason))
		dst = binary.AppendUvarint(dst, uint64(m.status.tokens))
		dst = appendText(dst, cut(m.status.detail))
	case msgCancel:
		dst = append(dst, m.id[:]...)
		dst = appendText(dst, cut(m.why))
	case msgFloor:
		dst = binary.AppendUvarint(dst, uint64(len(m.settled)))
		for _, seq := range m.settled {
			dst = binary.AppendUvarint(dst, seq)
		}
	case msgBeat:
		dst = binary.AppendUvarint(dst, uint64(len(m.beats)))
		for i := range m.beats {
			dst = binary.AppendUvarint(dst, m.beats[i].seq)
			dst = append(dst, m.beats[i].id[:]...)
		}
	case msgBeatAck:
		dst = binary.AppendUvarint(dst, uint64(len(m.beats)))
		for i := range m.beats {
			dst = appendAnswer(dst, &m.beats[i])
		}
	}
	return dst
}

// numbered says that messages of this kind are about one registration.
func (k messageKind) numbered() bool { return k <= msgCancel }

func appendAnswer(dst []byte, b *beat) []byte {
	dst = binary.AppendUvarint(dst, b.seq)
	if b.seq == 0 {
		dst = append(dst, b.id[:]...)
	}
	dst = append(dst, byte(b.status.state))
	if b.status.state == 0 {
		return dst
	}
	dst = append(dst, byte(b.status.reason))
	return binary.AppendUvarint(dst, uint64(b.status.tokens))
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
func parseMessage(b []byte) (*message, error) { return parseWithin(b, nil) }

// parseWithin refuses block ids that the sender does not have, before they are expanded. room is its blocks by group;
// nil takes any.
func parseWithin(b []byte, room []int) (*message, error) {
	r := reader{b: b}
	m := &message{kind: messageKind(r.byte()), floor: r.uvarint(^uint64(0))}
	body := r.b
	if m.kind.numbered() {
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
		m.groups = r.groups(room)
		copy(m.ticket[:], r.bytes(len(m.ticket)))
		copy(m.hash[:], r.bytes(len(m.hash)))
		sum := sha256.Sum256(body[:len(body)-len(r.b)])
		copy(m.digest[:], sum[:])
		m.wait = time.Duration(r.uvarint(uint64(maxWait/time.Millisecond))) * time.Millisecond
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
		if n <= uint64(len(r.b)) { // each takes a byte at least
			m.settled = make([]uint64, 0, n)
		}
		for i := uint64(0); i < n && !r.bad; i++ {
			m.settled = append(m.settled, r.uvarint(^uint64(0)))
		}
	case msgBeat, msgBeatAck:
		n := r.uvarint(maxBeats)
		if n <= uint64(len(r.b)) {
			m.beats = make([]beat, 0, n)
		}
		for i := uint64(0); i < n && !r.bad; i++ {
			m.beats = append(m.beats, r.beat(m.kind))
		}
	case msgBye:
	default:
		return nil, errMessage
	}
	if r.bad || len(r.b) > 0 {
		return nil, errMessage
	}
	return m, nil
}

func (r *reader) beat(kind messageKind) beat {
	b := beat{seq: r.uvarint(^uint64(0))}
	if kind == msgBeat || b.seq == 0 {
		copy(b.id[:], r.bytes(len(b.id)))
	}
	if kind == msgBeat {
		return b
	}
	b.status.state = statusState(r.byte())
	if b.status.state == 0 {
		return b
	}
	b.status.reason = Reason(r.byte())
	b.status.tokens = int(r.uvarint(maxTokens))
	r.bad = r.bad || b.status.state > statusFailed
	return b
}

func (r *reader) groups(room []int) []BlockList {
	n := r.uvarint(maxGroups)
	if r.bad || n == 0 {
		return nil
	}
	if room != nil && n > uint64(len(room)) {
		r.bad = true
		return nil
	}
	groups := make([]BlockList, n)
	left := uint64(maxBlocks)
	for i := range groups {
		groups[i].First = int(r.uvarint(maxTokens))
		ids := uint64(1 << 31)
		own := left
		if room != nil {
			ids = uint64(room[i])
			own = min(left, ids)
		}
		runs := r.uvarint(maxBlocks)
		groups[i].Blocks = slices.Grow(groups[i].Blocks, int(min(runs, own, uint64(len(r.b))/2))) // of shuffled ids each is a run, of two bytes or more
		for range runs {
			start, count := r.uvarint(1<<31-1), r.uvarint(own)
			if r.bad || count == 0 || start+count > ids {
				r.bad = true
				return nil
			}
			left, own = left-count, own-count
			groups[i].Blocks = slices.Grow(groups[i].Blocks, int(count))
			for id := range count {
				groups[i].Blocks = append(groups[i].Blocks, int32(start+id))
			}
		}
	}
	return groups
}
