package tcp

import (
	"bytes"
	"net"
	"testing"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// streamRaw dials one connection of a session of several.
func streamRaw(t *testing.T, d *transporttest.Node, session uint64, stream, streams int) (net.Conn, error) {
	t.Helper()
	conn, err := net.Dial("tcp", blobOf(t, d).Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(transporttest.Patience)); err != nil {
		t.Fatal(err)
	}
	_, err = greet(conn, greeting{agent: "raw@1", session: session, stream: stream, streams: streams}, d.Record.Agent, blobOf(t, d).Secret)
	return conn, err
}

func streamsRaw(t *testing.T, d *transporttest.Node, session uint64, streams int) []net.Conn {
	t.Helper()
	var out []net.Conn
	for i := range streams {
		conn, err := streamRaw(t, d, session, i, streams)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, conn)
	}
	return out
}

// TestTCPStreamsLast: a notification waits for the last byte of every connection, and a fence does not wait for it.
func TestTCPStreamsLast(t *testing.T) {
	d := transporttest.OpenNode(t, New(Config{}), "d@1", 8192, 0)
	put := func(conn net.Conn, b []byte) {
		t.Helper()
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	chunk := func(seq, at uint64) []byte {
		return append(chunkHead(seq, transfer.Range{Remote: d.Base + at, Length: 4096}), bytes.Repeat([]byte{7}, 4096)...)
	}
	end := func(seq uint64) []byte {
		return append(frame{kind: frameEnd, seq: seq, count: 8192, length: 4}.append(nil), "done"...)
	}
	in := streamsRaw(t, d, 1, 2)
	put(in[0], append(chunk(1, 0), end(1)...))
	awaitStats(t, d.Transport.(*Transport), func(s Stats) bool { return s.Landed == 4096 })
	last := chunk(1, 4096)
	put(in[1], last[:len(last)-1])
	awaitStats(t, d.Transport.(*Transport), func(s Stats) bool { return s.Landed == 4096 })
	for range 50 {
		if d.Poll(); len(d.Got) > 0 {
			t.Fatal("the notification did not wait for the last byte")
		}
		time.Sleep(transporttest.Idle)
	}
	put(in[1], last[len(last)-1:])
	d.AwaitMessage([]byte("done"))
	var header [frameBytes]byte
	if f, err := readFrame(in[0], header[:]); err != nil || f.kind != frameAnswer || f.seq != 1 {
		t.Errorf("%+v, %v; want the answer to write 1", f, err)
	}
	// The second write waits for its other half when the fence comes.
	put(in[0], append(chunk(2, 0), end(2)...))
	awaitStats(t, d.Transport.(*Transport), func(s Stats) bool { return s.Landed == 3*4096 })
	if err := d.Transport.(*Transport).Fence("raw@1"); err != nil {
		t.Fatal(err)
	}
	clear(d.Mem)
	_, _ = in[1].Write(chunk(2, 4096))
	closed(t, in[0])
	closed(t, in[1])
	awaitStats(t, d.Transport.(*Transport), func(s Stats) bool { return s.Inbound == 0 && s.BadFrames == 0 })
	if d.Poll(); len(d.Got) > 0 || !bytes.Equal(d.Mem, make([]byte, 8192)) {
		t.Errorf("after the fence: %v, or bytes landed", d.Got)
	}
}

// TestTCPStreamsTogether: the connections of a session end together, and none joins it afterwards.
func TestTCPStreamsTogether(t *testing.T) {
	for lost := range 3 {
		d := transporttest.OpenNode(t, New(Config{}), "d@1", 8192, 0)
		in := streamsRaw(t, d, 1, 3)
		if _, err := streamRaw(t, d, 1, 1, 3); err == nil {
			t.Error("a place was given twice")
		}
		if _, err := streamRaw(t, d, 1, 1, 4); err == nil {
			t.Error("a session has changed its size")
		}
		_ = in[lost].Close()
		for i, conn := range in {
			if i != lost {
				closed(t, conn)
			}
		}
		awaitStats(t, d.Transport.(*Transport), func(s Stats) bool { return s.Inbound == 0 })
		if _, err := streamRaw(t, d, 1, 1, 3); err == nil {
			t.Error("a connection has joined a session that is over")
		}
	}
}

// TestTCPStreamLost: for a writer the loss of one of its connections is the loss of the peer.
func TestTCPStreamLost(t *testing.T) {
	cfg := Config{Path: PathSocket, Streams: 3}
	p, d := transporttest.OpenNode(t, New(cfg), "p@1", 1<<20, 7), transporttest.OpenNode(t, New(cfg), "d@1", 1<<20, 0)
	p.Connect(d)
	if err := p.Transport.Write("d@1", 1, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 4096}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitEnd(1); err != nil { // so every connection has its place
		t.Fatal(err)
	}
	tr := d.Transport.(*Transport)
	tr.mu.Lock()
	for c := range tr.inbound {
		if c.stream == 2 {
			_ = c.conn.Close()
		}
	}
	tr.mu.Unlock()
	p.Await("peer lost", func(in transport.Incoming) bool { return in.Kind == transport.PeerLost })
	awaitStats(t, tr, func(s Stats) bool { return s.Inbound == 0 })
}
