package routertest_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/internal/routertest"
)

// TestMemNet holds the network of the tests in virtual time to what they build on: bytes in order, bounded, deadlines, both ends.
func TestMemNet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := routertest.NewNetwork()
		ln := n.Listen()
		far := make(chan net.Conn, 1)
		go func() {
			c, _ := ln.Accept()
			far <- c
		}()
		c, err := n.Dial(t.Context(), "tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s := <-far
		begun := time.Now()
		_ = c.SetReadDeadline(begun.Add(time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("%v behind %v", err, time.Since(begun))
		}
		_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
		if m, err := c.Write(make([]byte, 2*routertest.ConnBuffer)); m != routertest.ConnBuffer || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d, %v; want as much as there is room", m, err)
		}
		_ = c.SetWriteDeadline(time.Time{})
		_ = c.Close()
		if all, err := io.ReadAll(s); len(all) != routertest.ConnBuffer || err != nil {
			t.Errorf("read %d, %v", len(all), err)
		}
		if _, err := s.Write([]byte("a")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("written to a closed end: %v", err)
		}
		_ = s.Close()
		_ = ln.Close()
		if _, err := n.Dial(t.Context(), "tcp", ln.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialled where nobody listens: %v", err)
		}
	})
}
