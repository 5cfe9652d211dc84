package main

import (
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
