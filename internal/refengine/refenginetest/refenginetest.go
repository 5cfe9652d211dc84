// Package refenginetest runs reference engines in the process of a test.
package refenginetest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/refengine"
)

// Start serves an engine until the test ends, and returns its host and port.
func Start(t testing.TB, c refengine.Config) string {
	t.Helper()
	return Run(t, c).Addr
}

// Served is an engine that is served.
type Served struct {
	*refengine.Engine
	Addr string // host and port
	end  func(at context.Context) error
}

// Kill ends the engine at once: its answers under way break off, and what it holds is gone.
func (s *Served) Kill() error {
	at, cancel := context.WithCancel(context.Background())
	cancel()
	return s.end(at)
}

// Run serves an engine until the test ends or Kill is called.
func Run(t testing.TB, c refengine.Config) *Served {
	t.Helper()
	return RunAt(t, "127.0.0.1:0", c)
}

// RunAt is Run at an address, such as that of an engine that was killed.
func RunAt(t testing.TB, address string, c refengine.Config) *Served {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return RunOn(t, ln, c)
}

// RunOn is Run on a listener, such as that of a network in virtual time.
func RunOn(t testing.TB, ln net.Listener, c refengine.Config) *Served {
	t.Helper()
	e, err := refengine.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- refengine.NewServer(e).Serve(ctx, ln, 5*time.Second) }()
	var once sync.Once
	s := &Served{Engine: e, Addr: ln.Addr().String()}
	s.end = func(at context.Context) (err error) {
		once.Do(func() {
			if at.Err() != nil {
				_ = e.Close(at)
			}
			stop()
			if err = <-ended; err == nil {
				err = e.Close(at)
			}
		})
		return err
	}
	t.Cleanup(func() {
		if err := s.end(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}
