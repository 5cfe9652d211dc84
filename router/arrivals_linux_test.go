package router_test

import (
	"io"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// segmentsIn is how many segments with bytes a connection has got.
func segmentsIn(t *testing.T, conn net.Conn) (n uint32) {
	t.Helper()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Data_segs_in
		}
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return n
}

// A streamed answer ends in one write: the kernel says how many segments with bytes the client has had.
func TestStreamEndsInOneWrite(t *testing.T) {
	engine, client := heldStream(t)
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(client, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	const done = "e\r\ndata: [DONE]\n\n\r\n"
	before := segmentsIn(t, client)
	if _, err := io.WriteString(engine, done+"0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	read(done + "0\r\n\r\n")
	if n := segmentsIn(t, client) - before; n != 2 {
		t.Errorf("the last event and the end came in %d writes, want 2", n)
	}
}
