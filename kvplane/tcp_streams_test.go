package kvplane

import (
	"bytes"
	"net"
	"testing"
	"time"
)

// streamRaw dials one connection of a session of several.
func streamRaw(t *testing.T, d *node, session uint64, stream, streams int) (net.Conn, error) {
	t.Helper()
	conn, err := net.Dial("tcp", blobOf(t, d).Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, err = greet(conn, greeting{agent: "raw@1", session: session, stream: stream, streams: streams}, d.record.Agent, blobOf(t, d).Secret)
	return conn, err
}

func streamsRaw(t *testing.T, d *node, session uint64, streams int) []net.Conn {
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
	d := openNode(t, NewTCP(TCPConfig{}), "d@1", 8192, 0)
	put := func(conn net.Conn, b []byte) {
		t.Helper()
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	chunk := func(seq, at uint64) []byte {
		return append(chunkHead(seq, Range{Remote: d.base + at, Length: 4096}), bytes.Repeat([]byte{7}, 4096)...)
	}
	end := func(seq uint64) []byte {
		return append(frame{kind: frameEnd, seq: seq, count: 8192, length: 4}.append(nil), "done"...)
	}
	in := streamsRaw(t, d, 1, 2)
	put(in[0], append(chunk(1, 0), end(1)...))
	awaitStats(t, d.tr.(*TCP), func(s TCPStats) bool { return s.Landed == 4096 })
	last := chunk(1, 4096)
	put(in[1], last[:len(last)-1])
	awaitStats(t, d.tr.(*TCP), func(s TCPStats) bool { return s.Landed == 4096 })
	for range 50 {
		if d.poll(); len(d.got) > 0 {
			t.Fatal("the notification did not wait for the last byte")
		}
		time.Sleep(idle)
	}
	put(in[1], last[len(last)-1:])
	d.awaitMessage([]byte("done"))
	var header [frameBytes]byte
	if f, err := readFrame(in[0], header[:]); err != nil || f.kind != frameAnswer || f.seq != 1 {
		t.Errorf("%+v, %v; want the answer to write 1", f, err)
	}
	// The second write waits for its other half when the fence comes.
	put(in[0], append(chunk(2, 0), end(2)...))
	awaitStats(t, d.tr.(*TCP), func(s TCPStats) bool { return s.Landed == 3*4096 })
	if err := d.tr.(*TCP).Fence("raw@1"); err != nil {
		t.Fatal(err)
	}
	clear(d.mem)
	_, _ = in[1].Write(chunk(2, 4096))
	closed(t, in[0])
	closed(t, in[1])
	awaitStats(t, d.tr.(*TCP), func(s TCPStats) bool { return s.Inbound == 0 && s.BadFrames == 0 })
	if d.poll(); len(d.got) > 0 || !bytes.Equal(d.mem, make([]byte, 8192)) {
		t.Errorf("after the fence: %v, or bytes landed", d.got)
	}
}

// TestTCPStreamsTogether: the connections of a session end together, and none joins it afterwards.
func TestTCPStreamsTogether(t *testing.T) {
	for lost := range 3 {
		d := openNode(t, NewTCP(TCPConfig{}), "d@1", 8192, 0)
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
		awaitStats(t, d.tr.(*TCP), func(s TCPStats) bool { return s.Inbound == 0 })
		if _, err := streamRaw(t, d, 1, 1, 3); err == nil {
			t.Error("a connection has joined a session that is over")
		}
	}
}

// TestTCPStreamLost: for a writer the loss of one of its connections is the loss of the peer.
func TestTCPStreamLost(t *testing.T) {
	cfg := TCPConfig{Path: pathSocket, Streams: 3}
	p, d := openNode(t, NewTCP(cfg), "p@1", 1<<20, 7), openNode(t, NewTCP(cfg), "d@1", 1<<20, 0)
	p.connect(d)
	if err := p.tr.Write("d@1", 1, []Range{{Local: p.base, Remote: d.base, Length: 4096}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.awaitEnd(1); err != nil { // so every connection has its place
		t.Fatal(err)
	}
	tr := d.tr.(*TCP)
	tr.mu.Lock()
	for c := range tr.inbound {
		if c.stream == 2 {
			_ = c.conn.Close()
		}
	}
	tr.mu.Unlock()
	p.await("peer lost", func(in Incoming) bool { return in.Kind == PeerLost })
	awaitStats(t, tr, func(s TCPStats) bool { return s.Inbound == 0 })
}
