package tcp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"syscall"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/memory/view"
	"pdrouter/kvplane/transfer"
)

// readBuffer is how many bytes are read ahead of a frame's header; the ranges of a frame fit in it.
const readBuffer = 16 << 10

// lander takes in the frames of one connection; its goroutine alone uses it.
type lander struct {
	in      *bufio.Reader
	raw     syscall.RawConn
	table   []byte // the ranges of a frame as they came
	ranges  []transfer.Range
	into    [][]byte // where its bytes go
	source  *source  // the writer's memory; nil: not offered, or refused
	low     uint64   // the write that ends next
	sum     uint64   // bytes of it that have landed
	answers []byte   // not sent yet
	taken   uint64   // bytes of the pulls among them
}

// land takes in one chunk or pull. Everything about it is checked before the first byte lands.
func (c *inbound) land(f frame) error {
	l := &c.lander
	if err := c.lands(f.seq); err != nil {
		return err
	}
	if f.seq != l.low {
		return fmt.Errorf("%w: bytes of write %d during write %d", errFrame, f.seq, l.low)
	}
	table, payload, err := f.strips()
	if err != nil {
		return err
	}
	var from memory.Set
	if f.kind == framePull {
		if l.source == nil {
			return fmt.Errorf("%w: a pull without an offer", errFrame)
		}
		from = l.source.memory
	}
	if l.table == nil {
		l.table = make([]byte, maxStrips*stripBytes)
	}
	if _, err := io.ReadFull(l.in, l.table[:table]); err != nil {
		return err
	}
	var sum uint64
	l.ranges, sum, err = parseStrips(f, l.table[:table], payload, c.t.memory, from, l.ranges[:0])
	if err != nil {
		return err
	}
	l.into = l.into[:0]
	for _, r := range l.ranges {
		l.into = append(l.into, view.Bytes(r.Remote, r.Length))
	}
	if f.kind == frameChunk {
		n, err := l.read(l.into)
		c.landed(f.kind, n)
		if err == nil {
			l.sum += n
		}
		return err
	}
	if l.taken+sum > pullWindow/2 { // the writer names what comes next while this is copied, and is not woken for each pull
		if err := c.flush(); err != nil {
			return err
		}
	}
	if err := l.source.copy(l.into, l.ranges); err != nil {
		return err
	}
	c.landed(f.kind, sum)
	l.sum += sum
	l.answers = frame{kind: frameTaken, seq: f.seq, count: sum}.append(l.answers)
	l.taken += sum
	return nil
}

// flush sends the answers that have gathered.
func (c *inbound) flush() error {
	if len(c.lander.answers) == 0 {
		return nil
	}
	_, err := c.conn.Write(c.lander.answers)
	c.lander.answers, c.lander.taken = c.lander.answers[:0], 0
	return err
}

// read fills the buffers, which it uses up, and returns how many bytes have come: first those that were read ahead,
// then straight from the socket.
func (l *lander) read(into [][]byte) (uint64, error) {
	var total uint64
	advance := func(n int) {
		total += uint64(n)
		for len(into) > 0 && n >= len(into[0]) {
			n -= len(into[0])
			into = into[1:]
		}
		if n > 0 {
			into[0] = into[0][n:]
		}
	}
	for len(into) > 0 && l.in.Buffered() > 0 {
		n, err := l.in.Read(into[0][:min(len(into[0]), l.in.Buffered())])
		if err != nil {
			return total, err
		}
		advance(n)
	}
	for len(into) > 0 {
		var n int
		var err error
		rawErr := l.raw.Read(func(fd uintptr) bool {
			n, err = readVector(int(fd), into)
			return !errors.Is(err, syscall.EAGAIN)
		})
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case rawErr != nil || err != nil:
			return total, errors.Join(rawErr, err)
		case n == 0:
			return total, io.ErrUnexpectedEOF
		}
		advance(n)
	}
	return total, nil
}
