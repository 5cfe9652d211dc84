package main

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fakeOnceBroken is a listener that fails once.
type fakeOnceBroken struct {
	net.Listener
	broke atomic.Bool
	err   error
}

func (f *fakeOnceBroken) Accept() (net.Conn, error) {
	if f.broke.CompareAndSwap(false, true) {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", f.err)}
	}
	return f.Listener.Accept()
}

// TestDoorOutlivesErrors has a listener fail once in ways that pass.
func TestDoorOutlivesErrors(t *testing.T) {
	for _, e := range []error{syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.ECONNABORTED, syscall.EMFILE} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		d := newDoor("listen.clients")
		d.move("x", &fakeOnceBroken{Listener: ln, err: e})
		client, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { _, err := d.Accept(); got <- err }()
		select {
		case err := <-got:
			if err != nil {
				t.Errorf("%v: %v", e, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%v: nobody accepts any more", e)
		}
		_ = client.Close()
		_ = d.Close()
	}
}

// fakeShut is a listener that says while it is closed what Linux says of one that was shut down.
type fakeShut struct {
	net.Listener
	waits, shut chan struct{}
}

func (f *fakeShut) Accept() (net.Conn, error) {
	select {
	case f.waits <- struct{}{}:
	default:
	}
	<-f.shut
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EINVAL)}
}

func (f *fakeShut) Close() error { close(f.shut); return nil }

// TestDoorClosesSilently closes a door, and moves one, whose listener ends with an error that is not net.ErrClosed.
func TestDoorClosesSilently(t *testing.T) {
	for _, moved := range []bool{false, true} {
		var log bytes.Buffer
		d := newDoor("listen.clients")
		d.log = slog.New(slog.NewTextHandler(&log, nil))
		ln := &fakeShut{waits: make(chan struct{}, 1), shut: make(chan struct{})}
		d.move("x", ln)
		<-ln.waits
		if moved {
			d.move("", nil)
			<-ln.shut
		}
		_ = d.Close()
		got := make(chan error, 1)
		go func() { _, err := d.Accept(); got <- err }()
		select {
		case err := <-got:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("moved %v: %v", moved, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("moved %v: it does not end", moved)
		}
		if log.Len() > 0 {
			t.Errorf("moved %v: logged %s", moved, &log)
		}
	}
}
