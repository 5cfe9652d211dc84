package zmtp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// quiet keeps the library's sockets out of the tests' output.
func quiet() zmq4.Option { return zmq4.WithLogger(log.New(io.Discard, "", 0)) }

// TestSubscriber hears a PUB socket of another implementation: messages of several frames, one of them large, in the memory of the last.
func TestSubscriber(t *testing.T) {
	pub := zmq4.NewPub(t.Context(), quiet())
	defer pub.Close()
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), pub.Addr().String(), "SUB")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Send([]byte{1}); err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("0123456789"), 300_000)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ { // until the subscription has come, and then some
			_ = pub.SendMulti(zmq4.NewMsgFrom([]byte("topic"), []byte(fmt.Sprint(i)), large))
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	first := -1
	for i := range 5 {
		frames, err := c.Receive(4 << 20)
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if _, err := fmt.Sscan(string(frames[1]), &n); err != nil || len(frames) != 3 || string(frames[0]) != "topic" || !bytes.Equal(frames[2], large) {
			t.Fatalf("message %d: %d frames, %.20q", i, len(frames), frames)
		}
		if first < 0 {
			first = n
		}
		if n != first+i {
			t.Errorf("message %d; want %d", n, first+i)
		}
	}
	close(stop)
	c.Close()
	<-stopped
}

// TestDealer asks a ROUTER socket of another implementation, and a peer that connects to us is served as well.
func TestDealer(t *testing.T) {
	router := zmq4.NewRouter(t.Context(), quiet())
	defer router.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled := make(chan error, 1)
	go func() { dialled <- router.Dial("tcp://" + ln.Addr().String()) }()
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), nc, "DEALER")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	long := bytes.Repeat([]byte("a"), 300)
	if err := c.Send(nil, long); err != nil {
		t.Fatal(err)
	}
	m, err := router.Recv()
	if err != nil || len(m.Frames) != 3 || len(m.Frames[1]) != 0 || !bytes.Equal(m.Frames[2], long) {
		t.Fatalf("asked %q, %v", m.Frames, err)
	}
	if err := router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, []byte("answer"))); err != nil {
		t.Fatal(err)
	}
	frames, err := c.Receive(100)
	if err != nil || len(frames) != 2 || string(frames[1]) != "answer" {
		t.Errorf("answer %q, %v", frames, err)
	}
}

const ready = "\x04\x06\x05READY"

// hello is the greeting of ZMTP 3.0 without security.
var hello = "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL" + strings.Repeat("\x00", 48)

// peer listens, and says this to whoever connects. It returns its address.
func peer(t *testing.T, says string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(nc, says)
		_ = nc.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, nc)
		_ = nc.Close()
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln.Addr().String()
}

// hear returns what a connection to a peer that says this receives first.
func hear(t *testing.T, says string, limit int) (frames [][]byte, c *Conn, err error) {
	t.Helper()
	if c, err = Dial(t.Context(), peer(t, says), "SUB"); err != nil {
		return nil, nil, err
	}
	defer c.Close()
	frames, err = c.Receive(limit)
	return frames, c, err
}

// TestPeersThatBreakRules are refused, in little memory; commands between messages are skipped.
func TestPeersThatBreakRules(t *testing.T) {
	for _, row := range []struct{ name, says, want string }{
		{"not ZMTP", strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 4), "does not speak ZMTP"},
		{"an old version", hello[:10] + "\x01" + hello[11:], "ZMTP 1"},
		{"a secured peer", hello[:12] + "CURVE" + hello[17:], `mechanism "CURVE`},
		{"an error", hello + "\x04\x06\x05ERROR", "answers"},
		{"a large command", hello + "\x06\x00\x00\x00\x00\x00\x01\x00\x00", "frame of 65536 bytes"},
		{"a frame of 2^62 bytes", hello + ready + "\x02\x40\x00\x00\x00\x00\x00\x00\x00", "frame of 4611686018427387904 bytes"},
		{"frames that are too large together", hello + ready + "\x01\x50" + strings.Repeat("a", 80) + "\x00\x50", "frame of 80 bytes; want at most 20"},
		{"frames without end", hello + ready + strings.Repeat("\x01\x00", 100), "more than 16 frames"},
		{"reserved flags", hello + ready + "\xf0\x00", "flags 0xf0"},
		{"half a frame", hello + ready + "\x00\x20abc", "unexpected EOF"},
	} {
		if _, _, err := hear(t, row.says, 100); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v; want %q", row.name, err, row.want)
		}
	}
	frames, _, err := hear(t, hello+ready+"\x04\x03\x02ab"+"\x01\x01x"+"\x04\x03\x02ab"+"\x00\x02yz", 100)
	if err != nil || len(frames) != 2 || string(frames[0]) != "x" || string(frames[1]) != "yz" {
		t.Errorf("commands between frames: %q, %v", frames, err)
	}
}

// TestAnnouncedLengths: a peer that announces a large frame and sends little of it makes us keep little.
func TestAnnouncedLengths(t *testing.T) {
	_, c, err := hear(t, hello+ready+"\x02\x00\x00\x00\x00\x40\x00\x00\x00"+strings.Repeat("a", 1000), 2<<30)
	if err == nil || cap(c.buf) > 2*readAtOnce {
		t.Errorf("%v, %d bytes kept", err, cap(c.buf))
	}
}

// TestContext: a receive ends with the context of the connection.
func TestContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if nc, err := ln.Accept(); err == nil {
			_, _ = io.WriteString(nc, hello+ready)
			_, _ = io.Copy(io.Discard, nc)
			_ = nc.Close()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := Dial(ctx, ln.Addr().String(), "SUB")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := c.Receive(10); err == nil {
		t.Error("no error after the context has ended")
	}
	c.Close()
	<-done
}
