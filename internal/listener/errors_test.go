package listener

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

// TestListenerOutlivesErrors has a listener fail once in ways that pass.
func TestListenerOutlivesErrors(t *testing.T) {
	for _, e := range []error{syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.ECONNABORTED, syscall.EMFILE} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		d := New("listen.clients")
		d.Move("x", &fakeOnceBroken{Listener: ln, err: e})
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

// TestListenerClosesSilently closes a listener, and moves one, whose listener ends with an error that is not net.ErrClosed.
func TestListenerClosesSilently(t *testing.T) {
	for _, moved := range []bool{false, true} {
		var log bytes.Buffer
		d := New("listen.clients")
		d.Log = slog.New(slog.NewTextHandler(&log, nil))
		ln := &fakeShut{waits: make(chan struct{}, 1), shut: make(chan struct{})}
		d.Move("x", ln)
		<-ln.waits
		if moved {
			d.Move("", nil)
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
