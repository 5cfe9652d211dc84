package listener

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestRefuseNew closes listeners under clients that connect all the time: each connection that a client has is answered. Without
// RefuseNew some of them are reset.
func TestRefuseNew(t *testing.T) {
	for range 3 {
		ln, err := Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var answered atomic.Int64
		var stop atomic.Bool
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for !stop.Load() {
					c, err := net.DialTimeout("tcp", ln.Addr().String(), 2*time.Second)
					if errors.Is(err, syscall.ECONNREFUSED) {
						return
					}
					if err != nil {
						t.Errorf("connect: %v", err)
						return
					}
					if b, err := io.ReadAll(c); err != nil || string(b) != "x" {
						t.Errorf("got %q, %v", b, err)
					}
					answered.Add(1)
					c.Close()
				}
			})
		}
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("x"))
				c.Close()
			}
		}()
		for answered.Load() < 200 {
			time.Sleep(time.Millisecond)
		}
		if !RefuseNew(ln) {
			t.Fatal("new connections are not refused")
		}
		time.Sleep(Settle)
		ln.Close()
		<-accepted
		clients.Wait()
		stop.Store(true)
	}
}

func TestRefuseNewOfOthers(t *testing.T) {
	ln, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if RefuseNew(ln) {
		t.Error("a Unix socket has no SYN")
	}
}
