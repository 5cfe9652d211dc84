package agent

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/varint"
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
		dst = binary.AppendUvarint(dst, uint64(min(m.wait, kvplane.MaxWait)/time.Millisecond))
	case msgStatus, msgDone:
		dst = append(dst, byte(m.status.state), byte(m.status.reason))
		dst = binary.AppendUvarint(dst, uint64(m.status.tokens))
		dst = varint.AppendText(dst, cut(m.status.detail))
	case msgCancel:
		dst = append(dst, m.id[:]...)
		dst = varint.AppendText(dst, cut(m.why))
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

func appendBlocks(dst []byte, g kvplane.BlockList) []byte {
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
	r := varint.Read(b)
	m := &message{kind: messageKind(r.Byte()), floor: r.Uvarint(^uint64(0))}
	body := r.Rest()
	if m.kind.numbered() {
		m.seq = r.Uvarint(^uint64(0))
		if m.seq == 0 {
			return nil, errMessage
		}
	}
	switch m.kind {
	case msgRegister:
		copy(m.id[:], r.Bytes(len(m.id)))
		m.need[0] = int(r.Uvarint(maxTokens))
		m.need[1] = int(r.Uvarint(maxTokens))
		m.groups = readGroups(&r, room)
		copy(m.ticket[:], r.Bytes(len(m.ticket)))
		copy(m.hash[:], r.Bytes(len(m.hash)))
		sum := sha256.Sum256(body[:len(body)-len(r.Rest())])
		copy(m.digest[:], sum[:])
		m.wait = time.Duration(r.Uvarint(uint64(kvplane.MaxWait/time.Millisecond))) * time.Millisecond
	case msgStatus, msgDone:
		m.status.state, m.status.reason = statusState(r.Byte()), kvplane.Reason(r.Byte())
		m.status.tokens = int(r.Uvarint(maxTokens))
		m.status.detail = r.Text(maxDetail)
		if m.status.state < statusWaiting || m.status.state > statusFailed || m.kind == msgDone && m.status.state != statusDone {
			return nil, errMessage
		}
	case msgCancel:
		copy(m.id[:], r.Bytes(len(m.id)))
		m.why = r.Text(maxDetail)
	case msgFloor:
		n := r.Uvarint(maxSettled)
		if n <= uint64(len(r.Rest())) { // each takes a byte at least
			m.settled = make([]uint64, 0, n)
		}
		for i := uint64(0); i < n && !r.Failed(); i++ {
			m.settled = append(m.settled, r.Uvarint(^uint64(0)))
		}
	case msgBeat, msgBeatAck:
		n := r.Uvarint(maxBeats)
		if n <= uint64(len(r.Rest())) {
			m.beats = make([]beat, 0, n)
		}
		for i := uint64(0); i < n && !r.Failed(); i++ {
			m.beats = append(m.beats, readBeat(&r, m.kind))
		}
	case msgBye:
	default:
		return nil, errMessage
	}
	if r.Failed() || len(r.Rest()) > 0 {
		return nil, errMessage
	}
	return m, nil
}

func readBeat(r *varint.Reader, kind messageKind) beat {
	b := beat{seq: r.Uvarint(^uint64(0))}
	if kind == msgBeat || b.seq == 0 {
		copy(b.id[:], r.Bytes(len(b.id)))
	}
	if kind == msgBeat {
		return b
	}
	b.status.state = statusState(r.Byte())
	if b.status.state == 0 {
		return b
	}
	b.status.reason = kvplane.Reason(r.Byte())
	b.status.tokens = int(r.Uvarint(maxTokens))
	if b.status.state > statusFailed {
		r.Fail()
	}
	return b
}

func readGroups(r *varint.Reader, room []int) []kvplane.BlockList {
	n := r.Uvarint(maxGroups)
	if r.Failed() || n == 0 {
		return nil
	}
	if room != nil && n > uint64(len(room)) {
		r.Fail()
		return nil
	}
	groups := make([]kvplane.BlockList, n)
	left := uint64(maxBlocks)
	for i := range groups {
		groups[i].First = int(r.Uvarint(maxTokens))
		ids := uint64(1 << 31)
		own := left
		if room != nil {
			ids = uint64(room[i])
			own = min(left, ids)
		}
		runs := r.Uvarint(maxBlocks)
		groups[i].Blocks = slices.Grow(groups[i].Blocks, int(min(runs, own, uint64(len(r.Rest()))/2))) // of shuffled ids each is a run, of two bytes or more
		for range runs {
			start, count := r.Uvarint(1<<31-1), r.Uvarint(own)
			if r.Failed() || count == 0 || start+count > ids {
				r.Fail()
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
