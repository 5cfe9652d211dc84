package tcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// TestTCPStrangers: who does not know the secret writes nothing, learns nothing, and is counted.
func TestTCPStrangers(t *testing.T) {
	wrong := bytes.Repeat([]byte{1}, secretBytes)
	for name, approach := range map[string]func(t *testing.T, n *transporttest.Node){
		"wrong secret": func(t *testing.T, n *transporttest.Node) {
			if conn, err := dialRaw(t, n, wrong); err == nil {
				t.Error("the handshake passed")
			} else {
				_, _ = conn.Write(chunkAt(func(base uint64) uint64 { return base }, 16, 1)(n.Base)) // closed by now
				closed(t, conn)
			}
		},
		"no handshake": func(t *testing.T, n *transporttest.Node) {
			conn := connectRaw(t, n)
			_, _ = conn.Write(bytes.Repeat(chunkAt(func(base uint64) uint64 { return base }, 4096, 1)(n.Base), 4)) // closed by now
			closed(t, conn)
		},
		"HTTP": func(t *testing.T, n *transporttest.Node) {
			conn := connectRaw(t, n)
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: something quite long to fill a hello\r\n\r\n")
			closed(t, conn)
		},
		"replayed proof": func(t *testing.T, n *transporttest.Node) {
			// A proof for one connection's nonce does not open another.
			secret := blobOf(t, n).Secret
			conn := connectRaw(t, n)
			nonce := make([]byte, helloBytes)
			b := binary.LittleEndian.AppendUint16(bytes.Clone(nonce), uint16(len("raw@1")))
			b = append(append(b, "raw@1"...), make([]byte, claimBytes)...)
			b = append(b, proof(secret, "dial", "d@1", "raw@1", nonce[:nonceBytes], nonce)...)
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
			closed(t, conn)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := New(Config{})
			n := transporttest.OpenNode(t, tr, "d@1", 8192, 0xee)
			approach(t, n)
			s := awaitStats(t, tr, func(s Stats) bool { return s.Inbound == 0 && s.Strangers > 0 })
			if d := cmp.Diff(Stats{Strangers: 1}, s); d != "" {
				t.Errorf("stats (-want +got):\n%s", d)
			}
			if !bytes.Equal(n.Mem, bytes.Repeat([]byte{0xee}, 8192)) {
				t.Error("memory was changed")
			}
		})
	}
}

// TestTCPImpostor: who took over a peer's address but does not know its secret gets no byte of a write.
func TestTCPImpostor(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	heard := make(chan int64, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			heard <- -1
			return
		}
		defer conn.Close()
		greeted := int64(helloBytes + 2 + len("p@1") + claimBytes + sha256.Size)
		_, _ = conn.Write(append([]byte(magic), make([]byte, nonceBytes)...)) // the dialler will say
		hello, _ := io.CopyN(io.Discard, conn, greeted)                       // its proof
		_, _ = conn.Write(make([]byte, sha256.Size))                          // a wrong one
		rest, _ := io.Copy(io.Discard, conn)                                  // until it closes
		heard <- rest + hello - greeted
	}()
	p := transporttest.OpenNode(t, New(Config{}), "p@1", 4096, 1)
	blob, err := contact{Version: blobVersion, Addresses: []string{ln.Addr().String()}, Secret: make([]byte, secretBytes),
		Memory: packSpans(memory.Set{{Base: 1 << 20, Length: 4096}})}.encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Transport.Connect(metadata.Record{Agent: "d@1", Transport: "tcp", Blob: blob}); err != nil {
		t.Fatal(err)
	}
	err = p.Transport.Write("d@1", 7, []transfer.Range{{Local: p.Base, Remote: 1 << 20, Length: 4096}}, nil)
	if err == nil { // not lost yet
		err = p.AwaitEnd(7)
	}
	if !errors.Is(err, transport.ErrPeerLost) {
		t.Errorf("the write ended as %v; want ErrPeerLost", err)
	}
	if n := <-heard; n != 0 {
		t.Errorf("the impostor was sent %d bytes after its proof", n)
	}
}
