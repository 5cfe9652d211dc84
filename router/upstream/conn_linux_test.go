package upstream

import (
	"io"
	"net"
	"sync"
	"testing"

	"pdrouter/internal/nonblock"
)

// TestAskSendsTheRest asks with a body that the socket's send buffer does not hold: all of the request is sent.
func TestAskSendsTheRest(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	var bufs sync.Pool
	c := &conn{nc: nc, bufs: &bufs, raw: nonblock.NewConn(nc, &bufs), out: []byte("head")}
	body := make([]byte, 32<<20)
	asked := make(chan error, 1)
	go func() {
		asked <- c.ask(body)
		nc.Close()
	}()
	got, err := io.Copy(io.Discard, peer)
	if askErr := <-asked; askErr != nil {
		t.Error(askErr)
	}
	if err != nil || got != int64(len("head")+len(body)) || got != c.put {
		t.Errorf("the engine has %d bytes, %v; want %d, as many as were counted (%d)", got, err, len("head")+len(body), c.put)
	}
}
