package sched

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// packer encodes into memory, where nothing can fail.
type packer struct {
	buf bytes.Buffer
	enc *msgpack.Encoder
}

func newPacker() *packer {
	p := &packer{}
	p.enc = msgpack.NewEncoder(&p.buf)
	return p
}

func (p *packer) list(n int)     { _ = p.enc.EncodeArrayLen(n) } // bytes.Buffer takes everything
func (p *packer) uint(v uint64)  { _ = p.enc.EncodeUint(v) }
func (p *packer) int(v int64)    { _ = p.enc.EncodeInt(v) }
func (p *packer) bytes(b []byte) { _ = p.enc.EncodeBytes(b) }
func (p *packer) text(s string)  { _ = p.enc.EncodeString(s[:min(len(s), maxText)]) }

func (p *packer) id(id kvplane.TransferID) { p.bytes(id[:]) }

func (p *packer) incarnation(inc metadata.Incarnation) {
	p.text(inc.Engine)
	p.uint(inc.Generation)
}

func (p *packer) rank(r metadata.Rank) {
	p.list(3)
	p.int(int64(r.DP))
	p.int(int64(r.PP))
	p.int(int64(r.TP))
}

func (p *packer) groups(groups []kvplane.BlockList) {
	pack(p, groups, func(g *kvplane.BlockList) {
		p.list(2)
		p.int(int64(g.First))
		pack(p, g.Blocks, func(b *int32) { p.int(int64(*b)) })
	})
}

func pack[T any](p *packer, list []T, each func(*T)) {
	p.list(len(list))
	for i := range list {
		each(&list[i])
	}
}

// unpacker decodes until the first thing that does not fit; after that everything is zero.
type unpacker struct {
	src    bytes.Reader
	dec    *msgpack.Decoder
	err    error
	blocks int // still allowed
}

var errForm = errors.New("not the form that is expected")

func newUnpacker(b []byte) *unpacker {
	u := &unpacker{blocks: maxListed}
	u.src.Reset(b)
	u.dec = msgpack.NewDecoder(&u.src)
	return u
}

func (u *unpacker) fail(err error) {
	if u.err == nil {
		u.err = err
	}
}

// head takes the outer array and the version.
func (u *unpacker) head(what string, n int) {
	u.exactly(n)
	if v := u.uint(math.MaxUint64); u.err == nil && v != ordersVersion {
		u.fail(fmt.Errorf("%s of version %d; want %d", what, v, ordersVersion))
	}
}

// end says what did not fit; bytes after the form do not.
func (u *unpacker) end() error {
	if u.err == nil && u.src.Len() > 0 {
		u.fail(errForm)
	}
	return u.err
}

// length takes the head of an array of at most limit elements. It cannot have more than bytes are left.
func (u *unpacker) length(limit int) int {
	if u.err != nil {
		return 0
	}
	n, err := u.dec.DecodeArrayLen()
	if err != nil || n < 0 || n > limit || n > u.src.Len() {
		u.fail(errors.Join(errForm, err))
		return 0
	}
	return n
}

func (u *unpacker) exactly(n int) {
	if u.length(n) != n {
		u.fail(errForm)
	}
}

func (u *unpacker) uint(limit uint64) uint64 {
	if u.err != nil {
		return 0
	}
	c, err := u.dec.PeekCode()
	if err != nil {
		u.fail(errors.Join(errForm, err))
		return 0
	}
	var v uint64
	switch {
	case c <= msgpcode.PosFixedNumHigh, c >= msgpcode.Uint8 && c <= msgpcode.Uint64:
		v, err = u.dec.DecodeUint64()
	case c >= msgpcode.Int8 && c <= msgpcode.Int64:
		var n int64
		if n, err = u.dec.DecodeInt64(); n < 0 {
			err = errForm
		}
		v = uint64(n)
	default:
		err = errForm
	}
	if err != nil || v > limit {
		u.fail(errors.Join(errForm, err))
		return 0
	}
	return v
}

func (u *unpacker) int(least, most int) int {
	v := u.uint(uint64(most))
	if u.err == nil && v < uint64(least) {
		u.fail(errForm)
		return 0
	}
	return int(v)
}

// raw takes bytes or text of at most limit bytes.
func (u *unpacker) raw(limit int) []byte {
	if u.err != nil {
		return nil
	}
	n, err := u.dec.DecodeBytesLen()
	if err != nil || n < 0 || n > limit || n > u.src.Len() {
		u.fail(errors.Join(errForm, err))
		return nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(u.dec.Buffered(), b); err != nil {
		u.fail(err)
	}
	return b
}

func (u *unpacker) fill(to []byte) {
	if copy(to, u.raw(len(to))) != len(to) {
		u.fail(errForm)
	}
}

func (u *unpacker) text() string { return string(u.raw(maxText)) }

func (u *unpacker) id() (id kvplane.TransferID) {
	u.fill(id[:])
	if id == (kvplane.TransferID{}) {
		u.fail(errForm)
	}
	return id
}

func (u *unpacker) incarnation() metadata.Incarnation {
	return metadata.Incarnation{Engine: u.text(), Generation: u.uint(math.MaxUint64)}
}

func (u *unpacker) rank() metadata.Rank {
	u.exactly(3)
	return metadata.Rank{DP: u.int(0, plan.MaxExtent), PP: u.int(0, plan.MaxExtent), TP: u.int(0, plan.MaxExtent)}
}

func (u *unpacker) groups() []kvplane.BlockList {
	return unpack(u, metadata.MaxGroups, func(g *kvplane.BlockList) {
		u.exactly(2)
		g.First = u.int(0, transfer.MaxTokens)
		g.Blocks = unpack(u, u.blocks, func(b *int32) { *b = int32(u.int(0, maxCount)) })
		u.blocks -= len(g.Blocks)
	})
}

// unpack takes an array of at most limit elements. An array of none is nil.
func unpack[T any](u *unpacker, limit int, each func(*T)) []T {
	n := u.length(limit)
	if n == 0 {
		return nil
	}
	out := make([]T, 0, min(n, 64))
	for range n {
		var x T
		if each(&x); u.err != nil {
			return nil
		}
		out = append(out, x)
	}
	return out
}
