package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/internal/varint"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// ErrMalformed says that bytes are no message.
var ErrMalformed = errors.New("kvplane: malformed message")

// Append encodes m to dst. Block ids travel as runs (start, count).
func Append(dst []byte, m *Message) []byte {
	dst = append(dst, byte(m.Kind))
	dst = binary.AppendUvarint(dst, m.LowWater)
	if m.Kind.numbered() {
		dst = binary.AppendUvarint(dst, m.Seq)
	}
	switch m.Kind {
	case KindWriteRequest:
		dst = append(dst, m.ID[:]...)
		dst = binary.AppendUvarint(dst, uint64(m.Need[0]))
		dst = binary.AppendUvarint(dst, uint64(m.Need[1]))
		dst = binary.AppendUvarint(dst, uint64(len(m.Groups)))
		for _, g := range m.Groups {
			dst = appendBlocks(dst, g)
		}
		dst = append(dst, m.Ticket[:]...)
		dst = append(dst, m.Hash[:]...)
		dst = binary.AppendUvarint(dst, uint64(min(m.Wait, kvplane.MaxWait)/time.Millisecond))
	case KindStatus, KindDone:
		dst = append(dst, byte(m.Status.State), byte(m.Status.Reason))
		dst = binary.AppendUvarint(dst, uint64(m.Status.Tokens))
		dst = varint.AppendText(dst, cut(m.Status.Detail))
	case KindCancel:
		dst = append(dst, m.ID[:]...)
		dst = varint.AppendText(dst, cut(m.Why))
	case KindAck:
		dst = binary.AppendUvarint(dst, uint64(len(m.Settled)))
		for _, seq := range m.Settled {
			dst = binary.AppendUvarint(dst, seq)
		}
	case KindHeartbeat:
		dst = binary.AppendUvarint(dst, uint64(len(m.Lines)))
		for i := range m.Lines {
			dst = binary.AppendUvarint(dst, m.Lines[i].Seq)
			dst = append(dst, m.Lines[i].ID[:]...)
		}
	case KindHeartbeatAck:
		dst = binary.AppendUvarint(dst, uint64(len(m.Lines)))
		for i := range m.Lines {
			dst = appendAnswer(dst, &m.Lines[i])
		}
	}
	return dst
}

// numbered says that messages of this kind have a Seq: they are about one write request.
func (k Kind) numbered() bool { return k <= KindCancel }

func appendAnswer(dst []byte, b *HeartbeatLine) []byte {
	dst = binary.AppendUvarint(dst, b.Seq)
	if b.Seq == 0 {
		dst = append(dst, b.ID[:]...)
	}
	dst = append(dst, byte(b.Status.State))
	if b.Status.State == 0 {
		return dst
	}
	dst = append(dst, byte(b.Status.Reason))
	return binary.AppendUvarint(dst, uint64(b.Status.Tokens))
}

func cut(s string) string { return s[:min(len(s), MaxDetail)] }

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

// Parse decodes what a peer sent. Everything is bounded; anything that does not fit is an error.
func Parse(b []byte) (*Message, error) { return ParseWithin(b, nil) }

// ParseWithin refuses block ids that the sender does not have, before they are expanded. room is its blocks by group;
// nil takes any.
func ParseWithin(b []byte, room []int) (*Message, error) {
	r := varint.Read(b)
	m := &Message{Kind: Kind(r.Byte()), LowWater: r.Uvarint(^uint64(0))}
	body := r.Rest()
	if m.Kind.numbered() {
		m.Seq = r.Uvarint(^uint64(0))
		if m.Seq == 0 {
			return nil, ErrMalformed
		}
	}
	switch m.Kind {
	case KindWriteRequest:
		copy(m.ID[:], r.Bytes(len(m.ID)))
		m.Need[0] = int(r.Uvarint(transfer.MaxTokens))
		m.Need[1] = int(r.Uvarint(transfer.MaxTokens))
		m.Groups = readGroups(&r, room)
		copy(m.Ticket[:], r.Bytes(len(m.Ticket)))
		copy(m.Hash[:], r.Bytes(len(m.Hash)))
		sum := sha256.Sum256(body[:len(body)-len(r.Rest())])
		copy(m.Digest[:], sum[:])
		m.Wait = time.Duration(r.Uvarint(uint64(kvplane.MaxWait/time.Millisecond))) * time.Millisecond
	case KindStatus, KindDone:
		m.Status.State, m.Status.Reason = State(r.Byte()), kvplane.Reason(r.Byte())
		m.Status.Tokens = int(r.Uvarint(transfer.MaxTokens))
		m.Status.Detail = r.Text(MaxDetail)
		if m.Status.State < Waiting || m.Status.State > Failed || m.Kind == KindDone && m.Status.State != Done {
			return nil, ErrMalformed
		}
	case KindCancel:
		copy(m.ID[:], r.Bytes(len(m.ID)))
		m.Why = r.Text(MaxDetail)
	case KindAck:
		n := r.Uvarint(MaxSettled)
		if n <= uint64(len(r.Rest())) { // each takes a byte at least
			m.Settled = make([]uint64, 0, n)
		}
		for i := uint64(0); i < n && !r.Failed(); i++ {
			m.Settled = append(m.Settled, r.Uvarint(^uint64(0)))
		}
	case KindHeartbeat, KindHeartbeatAck:
		n := r.Uvarint(MaxLines)
		if n <= uint64(len(r.Rest())) {
			m.Lines = make([]HeartbeatLine, 0, n)
		}
		for i := uint64(0); i < n && !r.Failed(); i++ {
			m.Lines = append(m.Lines, readLine(&r, m.Kind))
		}
	case KindBye:
	default:
		return nil, ErrMalformed
	}
	if r.Failed() || len(r.Rest()) > 0 {
		return nil, ErrMalformed
	}
	return m, nil
}

func readLine(r *varint.Reader, kind Kind) HeartbeatLine {
	b := HeartbeatLine{Seq: r.Uvarint(^uint64(0))}
	if kind == KindHeartbeat || b.Seq == 0 {
		copy(b.ID[:], r.Bytes(len(b.ID)))
	}
	if kind == KindHeartbeat {
		return b
	}
	b.Status.State = State(r.Byte())
	if b.Status.State == 0 {
		return b
	}
	b.Status.Reason = kvplane.Reason(r.Byte())
	b.Status.Tokens = int(r.Uvarint(transfer.MaxTokens))
	if b.Status.State > Failed {
		r.Fail()
	}
	return b
}

func readGroups(r *varint.Reader, room []int) []kvplane.BlockList {
	n := r.Uvarint(metadata.MaxGroups)
	if r.Failed() || n == 0 {
		return nil
	}
	if room != nil && n > uint64(len(room)) {
		r.Fail()
		return nil
	}
	groups := make([]kvplane.BlockList, n)
	left := uint64(MaxBlocks)
	for i := range groups {
		groups[i].First = int(r.Uvarint(transfer.MaxTokens))
		ids := uint64(1 << 31)
		own := left
		if room != nil {
			ids = uint64(room[i])
			own = min(left, ids)
		}
		runs := r.Uvarint(MaxBlocks)
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
