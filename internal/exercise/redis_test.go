package exercise

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// TestCutOffKeepsNoConnection: while the gateway is cut off, its attempts leave no connections with Redis.
func TestCutOffKeepsNoConnection(t *testing.T) {
	r := &redis{socket: filepath.Join(t.TempDir(), "redis"), off: true, conns: map[net.Conn]bool{}}
	ln, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	from, _ := net.Pipe()
	r.forward(from)
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%v; want the end of the connection", err)
	}
}
