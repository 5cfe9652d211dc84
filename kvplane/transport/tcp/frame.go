package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transfer"
)

// A frame is a header of frameBytes, little-endian, and length bytes of body.
//
//	kind 1 | 3 zero bytes | length uint32 | seq uint64 | count uint64
//
// Writes of one session are numbered from 1 and follow each other: the bytes of one, cut into chunks or pulls, and then its end. Messages
// may stand between them.
type frame struct {
	kind   frameKind
	length uint32
	seq    uint64 // chunk, pull, end, answer: the write's number in this session
	count  uint64 // chunk, pull: ranges; end: bytes of the whole write; taken: bytes
}

type frameKind uint8

const (
	frameMessage frameKind = iota + 1 // body: the message
	frameChunk                        // body: ranges, and then their bytes
	frameEnd                          // body: the write's notification, may be empty
	frameAnswer                       // from the receiver: every byte of write seq has landed
	framePull                         // body: ranges, whose bytes the receiver copies from the writer's memory
	frameTaken                        // from the receiver: a pull is done
	frameOffer                        // body: a memoryOffer
	frameVerdict                      // from the receiver. body: why it takes no offer, empty if it does
)

const (
	frameBytes = 24
	stripBytes = 24
	maxStrips  = 512       // of a chunk or a pull; with the word a call to the kernel takes at most 1,024 of them
	maxChunk   = 512 << 10 // bytes of a chunk; messages wait no longer than one chunk
	maxPull    = 2 << 20   // bytes of a pull: a fence waits no longer than one
)

// errFrame is the cause when a peer sent what this protocol does not allow.
var errFrame = errors.New("bad frame")

func (f frame) append(b []byte) []byte {
	b = append(b, byte(f.kind), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, f.length)
	b = binary.LittleEndian.AppendUint64(b, f.seq)
	return binary.LittleEndian.AppendUint64(b, f.count)
}

// readFrame reads one header into scratch, which has frameBytes bytes.
func readFrame(r io.Reader, scratch []byte) (frame, error) {
	if _, err := io.ReadFull(r, scratch); err != nil {
		return frame{}, err
	}
	if scratch[1]|scratch[2]|scratch[3] != 0 {
		return frame{}, fmt.Errorf("%w: padding is not zero", errFrame)
	}
	return frame{
		kind:   frameKind(scratch[0]),
		length: binary.LittleEndian.Uint32(scratch[4:]),
		seq:    binary.LittleEndian.Uint64(scratch[8:]),
		count:  binary.LittleEndian.Uint64(scratch[16:]),
	}, nil
}

// A strip of a frame is a Range of stripBytes, little-endian: where it goes, its length, and in a pull where it lies
// in the writer's memory (in a chunk 0).
//
//	remote uint64 | length uint64 | local uint64
func appendStrip(b []byte, r transfer.Range) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.Remote)
	b = binary.LittleEndian.AppendUint64(b, r.Length)
	return binary.LittleEndian.AppendUint64(b, r.Local)
}

// strips returns how many bytes of the body of a chunk or a pull are its ranges, and how many those ranges must have
// together, 0 for a pull: its frame does not say.
func (f frame) strips() (table int, payload uint64, err error) {
	switch {
	case f.count == 0 || f.count > maxStrips:
		return 0, 0, fmt.Errorf("%w: %d ranges", errFrame, f.count)
	case uint64(f.length) < f.count*stripBytes:
		return 0, 0, fmt.Errorf("%w: %d ranges in %d bytes", errFrame, f.count, f.length)
	}
	table, payload = int(f.count)*stripBytes, uint64(f.length)-f.count*stripBytes
	if f.kind == framePull && payload != 0 || f.kind == frameChunk && (payload == 0 || payload > maxChunk) {
		return 0, 0, fmt.Errorf("%w: %d bytes after the ranges", errFrame, payload)
	}
	return table, payload, nil
}

// parseStrips checks the ranges of a chunk or a pull against the memory of both sides (from is nil for a chunk),
// appends them to out and returns them with the sum of their lengths.
func parseStrips(f frame, table []byte, payload uint64, into, from memory.Set, out []transfer.Range) ([]transfer.Range, uint64, error) {
	most, sum := uint64(maxPull), uint64(0)
	if f.kind == frameChunk {
		most = payload
	}
	for ; len(table) >= stripBytes; table = table[stripBytes:] {
		r := transfer.Range{
			Remote: binary.LittleEndian.Uint64(table),
			Length: binary.LittleEndian.Uint64(table[8:]),
			Local:  binary.LittleEndian.Uint64(table[16:]),
		}
		switch {
		case r.Length == 0 || r.Length > most-sum:
			return nil, 0, fmt.Errorf("%w: a range of %d bytes after %d of at most %d", errFrame, r.Length, sum, most)
		case !into.Holds(r.Remote, r.Length):
			return nil, 0, fmt.Errorf("%w: %d bytes at %#x, outside registered memory", errFrame, r.Length, r.Remote)
		case f.kind == frameChunk && r.Local != 0, f.kind == framePull && !from.Holds(r.Local, r.Length):
			return nil, 0, fmt.Errorf("%w: %d bytes from %#x, outside the writer's registered memory", errFrame, r.Length, r.Local)
		}
		sum += r.Length
		out = append(out, r)
	}
	if f.kind == frameChunk && sum != payload {
		return nil, 0, fmt.Errorf("%w: ranges of %d bytes and %d bytes", errFrame, sum, payload)
	}
	return out, sum, nil
}
