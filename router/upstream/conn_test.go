package upstream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials, closed atomic.Int32
		u, err := newClient("http://fake", Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			near, far := net.Pipe()
			go func() {
				r := bufio.NewReader(far)
				for {
					if _, err := http.ReadRequest(r); err != nil {
						closed.Add(1)
						return
					}
					io.WriteString(far, okAnswer)
				}
			}()
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		for i, wait := range []time.Duration{0, 3 * time.Second, 3 * time.Second, 3999 * time.Millisecond, 4 * time.Second, time.Hour} {
			time.Sleep(wait)
			synctest.Wait()
			if _, got, err := ask(t.Context(), u, &Request{Path: "/"}); err != nil || got != "{}" {
				t.Fatalf("request %d: %q, %v", i, got, err)
			}
		}
		if got := dials.Load(); got != 3 {
			t.Errorf("%d connections were made, want 3", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := closed.Load(); got != 3 || len(u.idle.conns) != 0 {
			t.Errorf("%d connections were closed, %d are idle", got, len(u.idle.conns))
		}
		u.Close()
	})
}

func TestConcurrent(t *testing.T) {
	e := newFakeEngine(t, Config{MaxIdle: 2}, func(e *fakeEngine, _ int, c net.Conn, r *bufio.Reader) {
		for {
			b, ok := e.request(r)
			if !ok {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
		}
	})
	ctx := patience(t)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 200 {
				want := strings.Repeat(fmt.Sprint(g), i+1)
				mine, cancel := context.WithCancel(ctx)
				if i%10 == g {
					time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
				}
				if _, got, err := ask(mine, e.Client, post(want)); err == nil && got != want || err != nil && mine.Err() == nil {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if n := len(e.idle.conns); n > 2 {
		t.Errorf("%d idle connections", n)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	near := make(chan net.Conn, 1)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		near <- c
		buf := make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			io.WriteString(c, okAnswer)
		}
	}()
	u, err := newClient("http://"+ln.Addr().String(), Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer u.Close()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	req := post(strings.Repeat("x", 1024))
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		r, err := u.Do(ctx, req)
		if err != nil {
			b.Fatal(err)
		}
		if buf, err = r.ReadAll(buf[:0], 1<<20); err != nil {
			b.Fatal(err)
		}
		r.Close()
	}
	(<-near).Close()
}
