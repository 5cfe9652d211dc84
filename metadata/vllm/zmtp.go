package vllm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Bounds of what a peer may send.
const (
	maxAnswer = 1 << 20 // bytes of one message, all its frames together
	maxFrames = 16      // of one message, commands between them included
)

// conn is one connection of a REQ socket: ZMTP 3.0 without security. A socket of a whole library would reconnect, queue
// and run goroutines of its own, and make room for any length that a peer announces; one question needs none of that.
type conn struct {
	nc   net.Conn
	stop func() bool // of what ends reads and writes with the context
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

func greeting() []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[mechanismStart:mechanismEnd], "NULL")
	return g
}

// dial connects and shakes hands. Everything that is read or written afterwards fails when ctx ends.
func dial(ctx context.Context, address string) (*conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &conn{nc: nc}
	c.stop = context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	if err := c.handshake(); err != nil {
		c.close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return c, nil
}

func (c *conn) close() {
	c.stop()
	_ = c.nc.Close()
}

func (c *conn) handshake() error {
	ready := append([]byte{flagCommand, 0, 5}, "READY"...)
	ready = appendProperty(ready, "Socket-Type", "REQ")
	ready = appendProperty(ready, "Identity", "")
	ready[1] = byte(len(ready) - 2)
	if _, err := c.nc.Write(greeting()); err != nil {
		return err
	}
	var theirs [greetingBytes]byte
	if _, err := io.ReadFull(c.nc, theirs[:]); err != nil {
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
	flags, body, err := c.frame(maxAnswer)
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

// request sends a short message, and returns the parts of the answer, at least one.
func (c *conn) request(body []byte) ([][]byte, error) {
	out := append([]byte{flagMore, 0, 0, byte(len(body))}, body...) // an empty frame stands before the message
	if _, err := c.nc.Write(out); err != nil {
		return nil, err
	}
	var parts [][]byte
	room := maxAnswer
	for range maxFrames {
		flags, body, err := c.frame(room)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			continue
		}
		room -= len(body)
		parts = append(parts, body)
		if flags&flagMore != 0 {
			continue
		}
		if len(parts) < 2 || len(parts[0]) != 0 {
			return nil, errors.New("no answer to a request")
		}
		return parts[1:], nil
	}
	return nil, fmt.Errorf("more than %d frames", maxFrames)
}

// frame reads one frame of at most limit bytes.
func (c *conn) frame(limit int) (flags byte, body []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c.nc, head[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	if head[0]&flagLong != 0 {
		if _, err := io.ReadFull(c.nc, head[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if head[0]&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("frame with flags %#x", head[0])
	}
	if size > uint64(limit) {
		return 0, nil, fmt.Errorf("frame of %d bytes; want at most %d", size, limit)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c.nc, body)
	return head[0], body, err
}
