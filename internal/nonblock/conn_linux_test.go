package nonblock_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/nonblock"
)

// dial returns both ends of a TCP connection.
func dial(t *testing.T) (near, far net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if near, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// TestConn writes and reads, with a deadline and to the end, and finds bytes that were not requested.
func TestConn(t *testing.T) {
	var bufs sync.Pool
	near, far := dial(t)
	c, idle := nonblock.NewConn(near, &bufs), nonblock.NewIdleCheck(near)
	if !c.Available() || !idle.Idle() {
		t.Fatal("a new TCP connection is not available, or not idle")
	}
	go func() {
		in := make([]byte, 4)
		_, _ = io.ReadFull(far, in)
		_, _ = far.Write([]byte("re: " + string(in)))
	}()
	buf, n, put, err := c.WriteRead([]byte("ping"))
	if err != nil || put != 4 || string(buf[:n]) != "re: ping" {
		t.Fatalf("%d bytes are written, %q is read, %v", put, buf[:n], err)
	}
	_ = near.SetReadDeadline(time.Unix(1, 0))
	if _, _, err = c.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	_ = near.SetReadDeadline(time.Time{})

	_, _ = far.Write([]byte("x"))
	far.Close()
	if buf, n, err = c.Read(); err != nil || string(buf[:n]) != "x" {
		t.Errorf("got %d bytes, %v; want x", n, err)
	}
	if _, _, err = c.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if _, _, put, err = c.WriteRead([]byte("ping")); put != 0 || !errors.Is(err, nonblock.ErrNotIdle) {
		t.Errorf("on a closed connection %d bytes are written, %v", put, err)
	}
	if idle.Idle() {
		t.Error("a closed connection is idle")
	}
	pipe, _ := net.Pipe()
	if nonblock.NewConn(pipe, &bufs).Available() || !nonblock.NewIdleCheck(pipe).Idle() {
		t.Error("a pipe is available, or not idle")
	}
}
