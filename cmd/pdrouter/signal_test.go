package main

import (
	"errors"
	"net"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestFault66SecondSignalEndsTheProcess keeps a request under way, so that the first SIGTERM only begins to drain.
func TestFault66SecondSignalEndsTheProcess(t *testing.T) {
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
	p, address := startGateway(t, "models: [{name: m, engines: [{name: e, url: \"http://"+engine.Addr().String()+"\"}]}]\ntimeouts: {health: 1h}\n")
	client := dialSoon(t, address, p)
	defer client.Close()
	body := `{"model":"m","prompt":"hello"}`
	_, err = client.Write([]byte("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n" + body))
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	<-asked // the health check and the request
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for { // it drains: the listener is closed, the process lives
		c, err := net.Dial("tcp", address)
		if err != nil {
			break
		}
		_ = c.Close()
		time.Sleep(5 * time.Millisecond)
	}
	if ended, how := p.Ended(); ended {
		t.Fatalf("the first signal ended it: %v\n%s", how, p.Tail(10))
	}
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done:
	case <-time.After(20 * time.Second): // a third of what draining may take
		t.Fatal("the second signal did not end it")
	}
	var exit *exec.ExitError
	if !errors.As(p.Err, &exit) {
		t.Fatalf("ended with %v; want signal: terminated", p.Err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("ended with %v; want signal: terminated", p.Err)
	}
}
