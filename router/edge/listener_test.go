package edge

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// arrived is a connection as the server has it, and its client's end.
func arrived(t *testing.T) (server, client net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrivals := newListener(ln)
	ended := make(chan error, 1)
	go func() { ended <- arrivals.run() }()
	client, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server = <-arrivals.conns
	ln.Close()
	<-ended
	t.Cleanup(func() { server.Close(); client.Close() })
	return server, client
}

// A shutdown takes a connection for idle, and closes it, when a request has just come on it: the race detector sees what both look at.
func TestArrivalClosedAsIdle(t *testing.T) {
	server, _ := arrived(t)
	conn, closed := server.(*clientConn), make(chan error, 1)
	go func() { closed <- conn.Close() }()
	conn.finishRequest()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A client that reads later than the server writes gets every byte.
func TestArrivalWrites(t *testing.T) {
	server, client := arrived(t)
	want := bytes.Repeat([]byte("0123456789abcde\n"), 1<<20) // more than the kernel takes at once
	wrote := make(chan error, 1)
	go func() {
		defer server.Close()
		for _, part := range [][]byte{want[:1], nil, want[1:]} {
			if n, err := server.Write(part); n != len(part) || err != nil {
				wrote <- errors.Join(err, io.ErrShortWrite)
				return
			}
		}
		wrote <- nil
	}()
	got, err := io.ReadAll(client)
	if err := errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes of %d came, or others: %v", len(got), len(want), err)
	}
}

// A client that does not read holds a write up until its deadline, and what had left by then is told; one that has closed ends it.
func TestArrivalWriteEnds(t *testing.T) {
	server, client := arrived(t)
	much := make([]byte, 64<<20)
	begun := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(client, make([]byte, 1))
		begun <- errors.Join(err, server.SetWriteDeadline(time.Unix(1, 0)))
	}()
	n, err := server.Write(much)
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n >= len(much) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if err := server.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if n, err = server.Write(much); err == nil || n == len(much) {
		t.Fatalf("nobody reads: %d bytes, %v", n, err)
	}
	server.Close()
	if n, err = server.Write(much); !errors.Is(err, net.ErrClosed) || n != 0 {
		t.Fatalf("closed: %d bytes, %v", n, err)
	}
}

// What is to be joined leaves neither before what follows nor without it.
func TestArrivalJoins(t *testing.T) {
	server, client := arrived(t)
	a := server.(*clientConn)
	write := func(w io.Writer, text string) {
		t.Helper()
		if n, err := io.WriteString(w, text); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	for range 2 { // the second time in the memory of the first
		a.JoinNext()
		write(a, "0\r\n")
		write(a.Conn, "behind")
		write(a, "\r\n")
	}
	write(a, "end")
	server.Close()
	got, err := io.ReadAll(client)
	if want := "behind0\r\n\r\nbehind0\r\n\r\nend"; string(got) != want || err != nil {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if n, err := a.Write([]byte("x")); n != 0 || err == nil {
		t.Errorf("closed: %d, %v", n, err)
	}
}

// What is kept is bounded by the deadline that held then, though that is taken away before it leaves, and nothing behind it is.
func TestArrivalJoinsInTime(t *testing.T) {
	server, _ := arrived(t)
	a := server.(*clientConn)
	write := func(text string) error {
		_, err := io.WriteString(a, text)
		return err
	}
	a.JoinNext()
	if err := errors.Join(a.SetWriteDeadline(time.Unix(1, 0)), write("0\r\n"), a.SetWriteDeadline(time.Time{})); err != nil {
		t.Fatal(err)
	}
	if err := write("\r\n"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the end: %v; want it late", err)
	}
	if err := write("another answer"); err != nil {
		t.Errorf("behind it: %v", err)
	}
}

// TestArrivalsStopReading: a deadline that is set later does not have a connection read again.
func TestArrivalsStopReading(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(ln)
	ended := make(chan struct{})
	go func() { _ = l.run(); close(ended) }()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn := <-l.conns
	l.stopReading()
	_ = conn.SetReadDeadline(time.Now().Add(time.Hour))
	var late net.Error
	if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("read: %v; want a timeout", err)
	}
	if l.openCount() != 1 {
		t.Errorf("%d connections left; want 1", l.openCount())
	}
	_ = conn.Close()
	if l.openCount() != 0 {
		t.Errorf("%d connections left; want none", l.openCount())
	}
	_ = ln.Close()
	<-ended
}
