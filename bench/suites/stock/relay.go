package stock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/bench/load"
)

// relay stands in front of an engine, hands bytes on as they come, and notes when the answer to a POST has passed.
type relay struct {
	address string
	ln      net.Listener
	to      string

	mu    sync.Mutex
	conns map[net.Conn]bool
	last  time.Time // bytes of an answer to a POST; zero if none came since expect
	group sync.WaitGroup
}

// openRelay starts one in front of an address.
func openRelay(to string) (*relay, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	r := &relay{address: ln.Addr().String(), ln: ln, to: to, conns: map[net.Conn]bool{}}
	r.group.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return // closed
			}
			r.group.Go(func() { r.serve(c) })
		}
	})
	return r, nil
}

// close ends it and all of its connections.
func (r *relay) close() {
	_ = r.ln.Close()
	r.mu.Lock()
	for c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.group.Wait()
}

// Expect forgets what has passed.
func (r *relay) Expect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Time{}
}

// Passed waits until an answer has passed since expect, and returns when its last bytes did.
func (r *relay) Passed(ctx context.Context) (time.Time, error) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		last := r.last
		r.mu.Unlock()
		switch {
		case !last.IsZero():
			return last, nil
		case ctx.Err() != nil:
			return last, ctx.Err()
		case time.Now().After(end):
			return last, fmt.Errorf("%w: prefill was not asked", load.ErrVoid)
		}
	}
}

// serve relays one connection.
func (r *relay) serve(client net.Conn) {
	engine, err := net.Dial("tcp", r.to)
	if err != nil {
		_ = client.Close()
		return
	}
	r.mu.Lock()
	r.conns[client], r.conns[engine] = true, true
	r.mu.Unlock()
	var posts atomic.Bool // the last request was a POST
	r.group.Go(func() {
		r.copy(engine, client, func(b []byte) {
			switch {
			case bytes.HasPrefix(b, []byte("POST ")):
				posts.Store(true)
			case bytes.HasPrefix(b, []byte("GET ")):
				posts.Store(false)
			}
		})
	})
	r.copy(client, engine, func([]byte) {
		if posts.Load() {
			now := time.Now()
			r.mu.Lock()
			r.last = now
			r.mu.Unlock()
		}
	})
}

// copy hands on what comes from one side until it ends, and then closes both.
func (r *relay) copy(to, from net.Conn, see func([]byte)) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			see(b[:n])
			if _, werr := to.Write(b[:n]); werr != nil {
				err = errors.Join(err, werr, io.EOF)
			}
		}
		if err != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close() // the other direction ends with them
	r.mu.Lock()
	delete(r.conns, to)
	delete(r.conns, from)
	r.mu.Unlock()
}
