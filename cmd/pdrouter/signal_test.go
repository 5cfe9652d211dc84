package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestFault66SecondSignalEndsTheProcess keeps a request under way, so that the first SIGTERM only begins to drain.
func TestFault66SecondSignalEndsTheProcess(t *testing.T) {
	t.Setenv(actAsPdrouter, "1")
	engine, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	asked := make(chan struct{}, 16)
	go func() {
		for {
			c, err := engine.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			asked <- struct{}{}
		}
	}()
	addresses, err := freeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	err = os.WriteFile(file, []byte("listen: {clients: \""+addresses[0]+"\", operations: \""+addresses[1]+"\"}\n"+
		"models: [{name: m, engines: [{name: e, url: \"http://"+engine.Addr().String()+"\"}]}]\ntimeouts: {health: 1h}\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p, err := startProcess(dir, "gateway", "serve", "-c", file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.cmd.Process.Kill(); <-p.done }()
	client := dialSoon(t, addresses[0], p)
	defer client.Close()
	body := `{"model":"m","prompt":"hello"}`
	_, err = client.Write([]byte("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n" + body))
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	<-asked // the health check and the request
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for { // it drains: the listener is closed, the process lives
		c, err := net.Dial("tcp", addresses[0])
		if err != nil {
			break
		}
		_ = c.Close()
		time.Sleep(5 * time.Millisecond)
	}
	if ended, how := p.ended(); ended {
		t.Fatalf("the first signal ended it: %v\n%s", how, p.tail(10))
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(20 * time.Second): // a third of what draining may take
		t.Fatal("the second signal did not end it")
	}
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) {
		t.Fatalf("ended with %v; want signal: terminated", p.err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("ended with %v; want signal: terminated", p.err)
	}
}

// dialSoon connects as soon as the process listens.
func dialSoon(t *testing.T, address string, p *process) net.Conn {
	t.Helper()
	for range 2000 {
		if c, err := net.Dial("tcp", address); err == nil {
			return c
		}
		if ended, err := p.ended(); ended {
			t.Fatalf("ended: %v\n%s", err, p.tail(10))
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("never listened")
	return nil
}
