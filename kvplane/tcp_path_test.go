package kvplane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/memory"
)

// TestTCPPath: which way the bytes take, and that the statistics and the log say so.
func TestTCPPath(t *testing.T) {
	if err := memoryPermitted(); err != nil {
		t.Skip("SKIPPED:", err)
	}
	for _, c := range []struct{ writer, receiver, want, log string }{
		{"", "", pathMemory, "the peer may read this process"},
		{pathMemory, "", pathMemory, "the peer may read this process"},
		{"", pathMemory, pathMemory, "the peer may read this process"},
		{pathSocket, "", pathSocket, "configured"},
		{"", pathSocket, pathSocket, "the peer takes none"},
		{pathMemory, pathSocket, "", ""},
	} {
		t.Run(fmt.Sprintf("%q to %q", c.writer, c.receiver), func(t *testing.T) {
			var said bytes.Buffer
			log := slog.New(slog.NewTextHandler(&said, nil))
			p := openNode(t, NewTCP(TCPConfig{Path: c.writer, Log: log}), "p@1", 8192, 5)
			d := openNode(t, NewTCP(TCPConfig{Path: c.receiver}), "d@1", 8192, 0)
			p.connect(d)
			if c.want == "" {
				lost := p.await("peer lost", func(in Incoming) bool { return in.Kind == PeerLost })
				if !errors.Is(lost.Err, errNoMemoryPath) {
					t.Errorf("lost: %v; want that there is no way through memory", lost.Err)
				}
				return
			}
			if err := p.tr.Write("d@1", 1, []Range{{Local: p.base, Remote: d.base, Length: 8192}}, []byte("x")); err != nil {
				t.Fatal(err)
			}
			d.awaitMessage([]byte("x"))
			if err := p.awaitEnd(1); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(d.mem, p.mem) {
				t.Error("memory differs")
			}
			own, s := p.tr.(*TCP).Stats(), d.tr.(*TCP).Stats()
			memory := c.want == pathMemory
			if s.Landed != 8192 || (s.MemoryBytes == 8192) != memory || (s.SocketBytes == 8192) == memory || (own.Memory == 1) != memory {
				t.Errorf("stats %+v and %+v; want the path %s", own, s, c.want)
			}
			if line := said.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, "path="+c.want) || !strings.Contains(line, c.log) {
				t.Errorf("the log says %q; want one line with %s and %q", line, c.want, c.log)
			}
		})
	}
}

// TestTCPPathForbidden: where the kernel lets the receiver not read the writer's memory, the bytes come through the
// socket, and only a writer that insists on memory loses its peer.
func TestTCPPathForbidden(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can start a process of another user")
	}
	for _, path := range []string{"", pathMemory} {
		t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
			var said bytes.Buffer
			tr := NewTCP(TCPConfig{Path: path, Log: slog.New(slog.NewTextHandler(&said, nil))})
			n := openNode(t, tr, "test@1", peerRoom, 7)
			p := startPeerAs(t, "tcp", asNobody)
			n.connect(&node{record: p.record})
			if path == pathMemory {
				lost := n.await("peer lost", func(in Incoming) bool { return in.Kind == PeerLost })
				if !errors.Is(lost.Err, errNoMemoryPath) || !strings.Contains(lost.Err.Error(), "operation not permitted") {
					t.Errorf("lost: %v; want that it is not permitted", lost.Err)
				}
				return
			}
			if err := n.tr.Write("peer@1", 1, []Range{{Local: n.base, Remote: p.base, Length: peerRoom}}, []byte("x")); err != nil {
				t.Fatal(err)
			}
			p.await("message", n)
			if err := n.awaitEnd(1); err != nil {
				t.Fatal(err)
			}
			r := p.do(order{Do: "stats"}, n)
			if r.Stats.SocketBytes != peerRoom || r.Stats.MemoryBytes != 0 {
				t.Errorf("the peer's stats %+v; want its bytes through the socket", r.Stats)
			}
			if !strings.Contains(said.String(), "operation not permitted") {
				t.Errorf("the log says %q", said.String())
			}
		})
	}
}

// offering is a raw writer that has offered its memory.
type offering struct {
	conn   net.Conn
	mem    []byte
	pledge *pledge
}

// offerRaw connects, and offers memory with what change makes of the offer; it returns the verdict.
func offerRaw(t *testing.T, d *node, session uint64, change func(*tcpOffer)) (offering, string) {
	t.Helper()
	conn, err := net.Dial("tcp", blobOf(t, d).Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	word, err := greet(conn, greeting{agent: "raw@1", session: session, streams: 1}, d.record.Agent, blobOf(t, d).Secret)
	if err != nil {
		t.Fatal(err)
	}
	pledged, err := newPledge(word)
	if err != nil {
		t.Fatal(err)
	}
	r := newRoom(t, "", 8192)
	paint(r.bytes, 7)
	o := tcpOffer{Process: procid.Self(), Word: pledged.address(), Memory: packSpans(memory.Set{r.memory})}
	change(&o)
	body, err := o.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append(frame{kind: frameOffer, length: uint32(len(body))}.append(nil), body...)); err != nil {
		t.Fatal(err)
	}
	var header [frameBytes]byte
	f, err := readFrame(conn, header[:])
	if err != nil {
		t.Fatal(err)
	}
	why := make([]byte, f.length)
	if _, err := io.ReadFull(conn, why); err != nil || f.kind != frameVerdict {
		t.Fatalf("%+v: %v", f, err)
	}
	return offering{conn, r.bytes, pledged}, string(why)
}

// TestTCPOfferRefused: an offer that does not prove whose memory it is.
func TestTCPOfferRefused(t *testing.T) {
	if err := memoryPermitted(); err != nil {
		t.Skip("SKIPPED:", err)
	}
	other := newRoom(t, "", 4096)
	for name, c := range map[string]struct {
		change func(*tcpOffer)
		want   string
	}{
		"true":            {func(*tcpOffer) {}, ""},
		"another word":    {func(o *tcpOffer) { o.Word = other.memory.Base }, "another process"},
		"no word":         {func(o *tcpOffer) { o.Word = 8 }, "copy from process"},
		"another process": {func(o *tcpOffer) { o.Process.PID = os.Getppid() }, "copy from process"},
		"another start":   {func(o *tcpOffer) { o.Process.Started++ }, "copy from process"},
		"no process":      {func(o *tcpOffer) { o.Process.PID = 0 }, "do not share"},
		"another boot":    {func(o *tcpOffer) { o.Process.Boot = "x" }, "do not share"},
		"another space":   {func(o *tcpOffer) { o.Process.Namespaces = "x" }, "do not share"},
	} {
		t.Run(name, func(t *testing.T) {
			d := openNode(t, NewTCP(TCPConfig{}), "d@1", 8192, 0)
			_, why := offerRaw(t, d, 1, c.change)
			if (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
				t.Errorf("the verdict is %q; want %q", why, c.want)
			}
		})
	}
}

// TestTCPOfferTakenBack: bytes that are copied after the writer has wiped its word are never taken for a write's, and
// a writer that was fenced has nothing copied.
func TestTCPOfferTakenBack(t *testing.T) {
	if err := memoryPermitted(); err != nil {
		t.Skip("SKIPPED:", err)
	}
	pull := func(t *testing.T, o offering, d *node, seq, at uint64) {
		t.Helper()
		head := stripsHead(framePull, seq, Range{Local: memory.Of(o.mem).Base, Remote: d.base + at, Length: 4096})
		end := frame{kind: frameEnd, seq: seq, count: 4096, length: 1}.append(head)
		_, _ = o.conn.Write(append(end, byte('0'+seq))) // refused is as good
	}
	for name, stop := range map[string]func(t *testing.T, o offering, d *node){
		"wiped": func(t *testing.T, o offering, _ *node) { clear(o.pledge.page) },
		"unmapped": func(t *testing.T, o offering, _ *node) {
			if err := o.pledge.revoke(); err != nil {
				t.Fatal(err)
			}
		},
		"fenced": func(t *testing.T, _ offering, d *node) {
			if err := d.tr.(*TCP).Fence("raw@1"); err != nil {
				t.Fatal(err)
			}
			clear(d.mem)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := openNode(t, NewTCP(TCPConfig{}), "d@1", 8192, 0)
			o, why := offerRaw(t, d, 1, func(*tcpOffer) {})
			if why != "" {
				t.Fatal(why)
			}
			pull(t, o, d, 1, 0)
			d.awaitMessage([]byte("1"))
			if !bytes.Equal(d.mem[:4096], o.mem[:4096]) {
				t.Fatal("the bytes differ")
			}
			stop(t, o, d)
			paint(o.mem, 9) // the blocks have another owner
			pull(t, o, d, 2, 4096)
			closed(t, o.conn)
			awaitStats(t, d.tr.(*TCP), func(s TCPStats) bool { return s.Inbound == 0 })
			if d.poll(); len(d.got) > 0 {
				t.Errorf("taken in: %v", d.got)
			}
			if name == "fenced" && !bytes.Equal(d.mem, make([]byte, 8192)) {
				t.Error("bytes landed after the fence")
			}
		})
	}
	for name, r := range map[string]func(o offering, d *node) Range{
		"from outside": func(o offering, d *node) Range {
			return Range{Local: memory.Of(o.mem).Base + 8192 - 15, Remote: d.base, Length: 16}
		},
		"to outside": func(o offering, d *node) Range {
			return Range{Local: memory.Of(o.mem).Base, Remote: d.base + 8192 - 15, Length: 16}
		},
		"too long": func(o offering, d *node) Range {
			return Range{Local: memory.Of(o.mem).Base, Remote: d.base, Length: maxPull + 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := openNode(t, NewTCP(TCPConfig{}), "d@1", 8192, 0)
			o, _ := offerRaw(t, d, 1, func(*tcpOffer) {})
			if _, err := o.conn.Write(stripsHead(framePull, 1, r(o, d))); err != nil {
				t.Fatal(err)
			}
			closed(t, o.conn)
			awaitStats(t, d.tr.(*TCP), func(s TCPStats) bool { return s.BadFrames == 1 && s.Landed == 0 })
		})
	}
}
