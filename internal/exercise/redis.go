package exercise

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"pdrouter/internal/proc"
)

// findRedis returns the path of redis-server; "" if it is not on PATH.
func findRedis() string {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return ""
	}
	return path
}

// redis is a Redis server that keeps nothing, and a forwarder to it.
type redis struct {
	server *proc.Process
	socket string
	ln     net.Listener

	mu    sync.Mutex
	off   bool // the gateway is cut off
	conns map[net.Conn]bool
}

func startRedis(dir, path string) (*redis, error) {
	r := &redis{socket: filepath.Join(dir, "redis"), conns: map[net.Conn]bool{}}
	var err error
	if r.server, err = proc.Begin("redis", exec.Command(path, "--port", "0", "--unixsocket", r.socket, "--save", "", "--appendonly", "no")); err != nil {
		return nil, err
	}
	if r.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, r.server.Stop(time.Second))
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("unix", r.socket); err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("%s does not answer:\n%s", path, r.server.Tail(5)), r.close())
		}
	}
	go r.accept()
	return r, nil
}

func (r *redis) address() string { return r.ln.Addr().String() }

func (r *redis) accept() {
	for {
		c, err := r.ln.Accept()
		if err != nil {
			return
		}
		go r.forward(c)
	}
}

// forward moves bytes between a connection of the gateway and the server, until one of them ends or the gateway is cut off.
func (r *redis) forward(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("unix", r.socket)
	if err != nil {
		return
	}
	defer to.Close()
	if !r.keep(from, true) {
		return
	}
	defer r.keep(from, false)
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}()
	_, _ = io.Copy(from, to)
}

// keep notes a connection, or that it is over. It reports false if the gateway is cut off.
func (r *redis) keep(c net.Conn, on bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if on && !r.off {
		r.conns[c] = true
	} else {
		delete(r.conns, c)
	}
	return !r.off
}

// cut cuts the gateway off: its connections end, and further ones end at once.
func (r *redis) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.off = true
	for c := range r.conns {
		_ = c.Close()
	}
}

func (r *redis) close() error {
	r.cut()
	return errors.Join(r.ln.Close(), r.server.Stop(5*time.Second))
}
