package tcp

import (
	"bytes"
	"net"
	"testing"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport/transporttest"
)

// TestTCPFence: what a fenced writer had sent lands no more, though its connection was open. Over a new one it may speak,
// but write only when it has been admitted again.
func TestTCPFence(t *testing.T) {
	tr := New(Config{})
	d := transporttest.OpenNode(t, tr, "d@1", 8192, 0)
	secret := blobOf(t, d).Secret
	dial := func(session uint64) net.Conn {
		t.Helper()
		conn, err := dialSession(t, d, secret, session)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	put := func(conn net.Conn, head, body []byte) {
		t.Helper()
		if _, err := conn.Write(append(bytes.Clone(head), body...)); err != nil {
			t.Fatal(err)
		}
	}
	first := bytes.Repeat([]byte{7}, 100)
	chunk := chunkHead(1, transfer.Range{Remote: d.Base, Length: 4096})
	landed := func() {
		t.Helper()
		for deadline := time.Now().Add(transporttest.Patience); d.Mem[99] != 7; time.Sleep(transporttest.Idle) {
			if time.Now().After(deadline) {
				t.Fatal("the first bytes have not landed")
			}
		}
	}
	old := dial(1)
	put(old, chunk, first)
	landed()
	if err := tr.Fence("raw@1"); err != nil {
		t.Fatal(err)
	}
	clear(d.Mem)
	_, _ = old.Write(bytes.Repeat([]byte{7}, 3996)) // its end is cut
	closed(t, old)
	for session := range uint64(3) {
		next := dial(session + 2)
		put(next, frame{kind: frameMessage, length: 5}.append(nil), []byte("still"))
		d.AwaitMessage([]byte("still"))
		_, _ = next.Write(append(bytes.Clone(chunk), first...)) // refused
		closed(t, next)
	}
	if !bytes.Equal(d.Mem, make([]byte, 8192)) {
		t.Error("bytes landed after the fence")
	}
	if s := awaitStats(t, tr, func(s Stats) bool { return s.Inbound == 0 }); s.BadFrames+s.Strangers != 0 {
		t.Errorf("stats %+v; a fenced peer did nothing wrong", s)
	}
	last := dial(9)
	tr.Admit("raw@1")
	put(last, chunk, first)
	landed()
	if err := tr.Fence("nobody@1"); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Write(bytes.Repeat([]byte{7}, 3996)); err != nil { // not cut for another's sake
		t.Fatal(err)
	}
	awaitStats(t, tr, func(s Stats) bool { return s.Landed == 4096+100 })
}

// TestTCPSupersede: a new session of an agent fences its older ones, and an older one that comes late is refused.
func TestTCPSupersede(t *testing.T) {
	tr := New(Config{})
	d := transporttest.OpenNode(t, tr, "d@1", 8192, 0)
	secret := blobOf(t, d).Secret
	chunk := func(at uint64, b byte) []byte {
		head := chunkHead(1, transfer.Range{Remote: d.Base + at, Length: 2048})
		return append(head, bytes.Repeat([]byte{b}, 100)...) // not whole
	}
	landed := func(at int, b byte) {
		t.Helper()
		for deadline := time.Now().Add(transporttest.Patience); d.Mem[at+99] != b; time.Sleep(transporttest.Idle) {
			if time.Now().After(deadline) {
				t.Fatalf("the bytes at %d have not landed", at)
			}
		}
	}
	old, err := dialSession(t, d, secret, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Write(chunk(0, 7)); err != nil {
		t.Fatal(err)
	}
	landed(0, 7)
	next, err := dialSession(t, d, secret, 11)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.Write(chunk(4096, 8)); err != nil {
		t.Fatal(err)
	}
	landed(4096, 8) // so the old one was fenced before
	clear(d.Mem)
	_, _ = old.Write(bytes.Repeat([]byte{7}, 1948)) // its end is cut
	closed(t, old)
	late, err := dialSession(t, d, secret, 10)
	if err == nil {
		t.Error("the handshake of an old session passed")
	}
	_, _ = late.Write(chunk(0, 9)) // closed by now
	closed(t, late)
	if _, err := next.Write(bytes.Repeat([]byte{8}, 1948)); err != nil {
		t.Fatal(err)
	}
	landed(4096+1948, 8)
	if !bytes.Equal(d.Mem[:4096], make([]byte, 4096)) {
		t.Error("bytes of an old session landed")
	}
}
