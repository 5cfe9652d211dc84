// Package zmtp is one connection of ZeroMQ's wire protocol: ZMTP 3.0 over TCP without security, as stock engines speak it
// (https://rfc.zeromq.org/spec/23). metadata/vllm asks side channels over it, router/kvevents hears what engines publish.
//
// It is no socket: it does not reconnect, queue or run goroutines, so its callers see when a connection breaks. A library's socket hides
// that, and makes room for any length that a peer announces.
package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Conn is one connection. One goroutine may send while another receives.
type Conn struct {
	nc   net.Conn
	r    *bufio.Reader
	stop func() bool // of what ends reads and writes with the context

	buf    []byte // of the message that Receive has returned
	frames [][]byte
}

// The flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// The greeting: signature, version 3.0, mechanism, as-server, filler.
const (
	greetingBytes  = 64
	mechanismStart = 12
	mechanismEnd   = 32
)

// maxCommand bounds the commands of a peer, in bytes.
const maxCommand = 4096

// maxFrames bounds the frames of one message, commands between them included.
const maxFrames = 16

// keptBuffer is the largest buffer that is kept for the next message.
const keptBuffer = 1 << 20

func greeting() []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[mechanismStart:mechanismEnd], "NULL")
	return g
}

// Dial connects to a peer and shakes hands as a socket of this type, such as REQ. Everything that is read or written afterwards fails when
// ctx ends.
func Dial(ctx context.Context, address, socketType string) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return Open(ctx, nc, socketType)
}

// Open is Dial on a connection that is there. It closes nc on an error.
func Open(ctx context.Context, nc net.Conn, socketType string) (*Conn, error) {
	c := &Conn{nc: nc, r: bufio.NewReader(nc)}
	c.stop = context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	if err := c.handshake(socketType); err != nil {
		c.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() {
	c.stop()
	_ = c.nc.Close()
}

func (c *Conn) handshake(socketType string) error {
	ready := append([]byte{flagCommand, 0, 5}, "READY"...)
	ready = appendProperty(ready, "Socket-Type", socketType)
	ready = appendProperty(ready, "Identity", "")
	ready[1] = byte(len(ready) - 2)
	if _, err := c.nc.Write(greeting()); err != nil {
		return err
	}
	var theirs [greetingBytes]byte
	if _, err := io.ReadFull(c.r, theirs[:]); err != nil {
		return err
	}
	want := greeting()
	switch {
	case theirs[0] != want[0] || theirs[9] != want[9]:
		return errors.New("the peer does not speak ZMTP")
	case theirs[10] < 3:
		return fmt.Errorf("the peer speaks ZMTP %d; want 3", theirs[10])
	case !bytes.Equal(theirs[mechanismStart:mechanismEnd], want[mechanismStart:mechanismEnd]):
		return fmt.Errorf("the peer wants mechanism %q", bytes.TrimRight(theirs[mechanismStart:mechanismEnd], "\x00"))
	}
	if _, err := c.nc.Write(ready); err != nil {
		return err
	}
	flags, body, err := c.frame(nil, maxCommand)
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || !bytes.HasPrefix(body, []byte("\x05READY")) {
		return fmt.Errorf("the peer answers %.40q", body)
	}
	return nil
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// Send sends one message of these frames, at least one. It is for short messages: they are copied.
func (c *Conn) Send(frames ...[]byte) error {
	var out []byte
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		if len(f) > 255 {
			out = binary.BigEndian.AppendUint64(append(out, flags|flagLong), uint64(len(f)))
		} else {
			out = append(out, flags, byte(len(f)))
		}
		out = append(out, f...)
	}
	_, err := c.nc.Write(out)
	return err
}

// Receive returns the frames of the next message, at least one, of at most limit bytes together. They hold until the next call. It blocks
// until the message is complete. Commands of the peer are skipped.
func (c *Conn) Receive(limit int) ([][]byte, error) {
	if cap(c.buf) > keptBuffer {
		c.buf = nil
	}
	c.buf, c.frames = c.buf[:0], c.frames[:0]
	var ends [maxFrames]int
	n := 0
	for range maxFrames {
		from := len(c.buf)
		flags, all, err := c.frame(c.buf, limit-from)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			c.buf = all[:from]
			continue
		}
		c.buf, ends[n] = all, len(all)
		n++
		if flags&flagMore != 0 {
			continue
		}
		from = 0
		for _, to := range ends[:n] { // only now, as the buffer has moved while it grew
			c.frames = append(c.frames, c.buf[from:to:to])
			from = to
		}
		return c.frames, nil
	}
	return nil, fmt.Errorf("more than %d frames", maxFrames)
}

// readAtOnce is how much room is made for a frame before its bytes have come.
const readAtOnce = 64 << 10

// frame reads one frame of at most limit bytes behind what is in buf.
func (c *Conn) frame(buf []byte, limit int) (flags byte, all []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c.r, head[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	if head[0]&flagLong != 0 {
		if _, err := io.ReadFull(c.r, head[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if head[0]&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("frame with flags %#x", head[0])
	}
	if size > uint64(max(limit, 0)) {
		return 0, nil, fmt.Errorf("frame of %d bytes; want at most %d", size, limit)
	}
	for left := int(size); left > 0; {
		n := min(left, max(readAtOnce, cap(buf)-len(buf), len(buf))) // it grows by as much as has come
		from := len(buf)
		buf = append(buf, make([]byte, n)...)
		if _, err := io.ReadFull(c.r, buf[from:]); err != nil {
			return 0, nil, err
		}
		left -= n
	}
	return head[0], buf, nil
}
