package listener

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestListenerClosesWithoutReset closes listeners while clients connect all the time: each connection that a client has is answered.
// Without a filter on the listener some of them are reset.
func TestListenerClosesWithoutReset(t *testing.T) {
	for range 3 {
		var log bytes.Buffer
		d := New("listen.clients")
		d.Log = slog.New(slog.NewTextHandler(&log, nil))
		ln, err := d.Open("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		d.Move("127.0.0.1:0", ln)
		address := ln.Addr().String()
		var answered atomic.Int64
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for {
					c, err := net.DialTimeout("tcp", address, 10*time.Second)
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
					_ = c.Close()
				}
			})
		}
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			for {
				c, err := d.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("x"))
				_ = c.Close()
			}
		}()
		for answered.Load() < 200 {
			time.Sleep(time.Millisecond)
		}
		_ = d.Close()
		clients.Wait()
		<-accepted
		if log.Len() > 0 {
			t.Errorf("logged %s", &log)
		}
	}
}
