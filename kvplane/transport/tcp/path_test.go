package tcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// TestTCPPath: which way the bytes take, and that the statistics and the log say so.
func TestTCPPath(t *testing.T) {
	if err := transporttest.MemoryPermitted(); err != nil {
		t.Skip("SKIPPED:", err)
	}
	for _, c := range []struct{ writer, receiver, want, log string }{
		{"", "", PathMemory, "the peer may read this process"},
		{PathMemory, "", PathMemory, "the peer may read this process"},
		{"", PathMemory, PathMemory, "the peer may read this process"},
		{PathSocket, "", PathSocket, "configured"},
		{"", PathSocket, PathSocket, "the peer takes none"},
		{PathMemory, PathSocket, "", ""},
	} {
		t.Run(fmt.Sprintf("%q to %q", c.writer, c.receiver), func(t *testing.T) {
			var said bytes.Buffer
			log := slog.New(slog.NewTextHandler(&said, nil))
			p := transporttest.OpenNode(t, New(Config{Path: c.writer, Log: log}), "p@1", 8192, 5)
			d := transporttest.OpenNode(t, New(Config{Path: c.receiver}), "d@1", 8192, 0)
			p.Connect(d)
			if c.want == "" {
				lost := p.Await("peer lost", func(in transport.Incoming) bool { return in.Kind == transport.PeerLost })
				if !errors.Is(lost.Err, errNoMemoryPath) {
					t.Errorf("lost: %v; want that there is no way through memory", lost.Err)
				}
				return
			}
			if err := p.Transport.Write("d@1", 1, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 8192}}, []byte("x")); err != nil {
				t.Fatal(err)
			}
			d.AwaitMessage([]byte("x"))
			if err := p.AwaitEnd(1); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(d.Mem, p.Mem) {
				t.Error("memory differs")
			}
			own, s := p.Transport.(*Transport).Stats(), d.Transport.(*Transport).Stats()
			memory := c.want == PathMemory
			if s.Landed != 8192 || (s.MemoryBytes == 8192) != memory || (s.SocketBytes == 8192) == memory || (own.Memory == 1) != memory {
				t.Errorf("stats %+v and %+v; want the path %s", own, s, c.want)
			}
			if line := said.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, "path="+c.want) || !strings.Contains(line, c.log) {
				t.Errorf("the log says %q; want one line with %s and %q", line, c.want, c.log)
			}
		})
	}
}

// peerVariable makes the test binary a peer process over tcp.
const peerVariable = "PDROUTER_TEST_TCP_PEER"

// TestTCPPeerProcess is the peer process of the test below; on its own it does nothing.
func TestTCPPeerProcess(t *testing.T) {
	if os.Getenv(peerVariable) == "" {
		t.Skip("only as the peer process of another test")
	}
	tr := New(Config{})
	n := transporttest.OpenNode(t, tr, "peer@1", transporttest.PeerRoom, 0)
	n.Stats = func() any { return tr.Stats() }
	n.Serve()
}

// TestTCPPathForbidden: where the kernel lets the receiver not read the writer's memory, the bytes come through the
// socket, and only a writer that insists on memory loses its peer.
func TestTCPPathForbidden(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can start a process of another user")
	}
	for _, path := range []string{"", PathMemory} {
		t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
			var said bytes.Buffer
			tr := New(Config{Path: path, Log: slog.New(slog.NewTextHandler(&said, nil))})
			n := transporttest.OpenNode(t, tr, "test@1", transporttest.PeerRoom, 7)
			p := transporttest.StartProcessAs(t, "TestTCPPeerProcess", transporttest.AsNobody, peerVariable+"=1")
			n.Connect(&transporttest.Node{Record: p.Record})
			if path == PathMemory {
				lost := n.Await("peer lost", func(in transport.Incoming) bool { return in.Kind == transport.PeerLost })
				if !errors.Is(lost.Err, errNoMemoryPath) || !strings.Contains(lost.Err.Error(), "operation not permitted") {
					t.Errorf("lost: %v; want that it is not permitted", lost.Err)
				}
				return
			}
			if err := n.Transport.Write("peer@1", 1, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: transporttest.PeerRoom}}, []byte("x")); err != nil {
				t.Fatal(err)
			}
			p.Await("message", n)
			if err := n.AwaitEnd(1); err != nil {
				t.Fatal(err)
			}
			r := p.Do(transporttest.Order{Do: "stats"}, n)
			var stats Stats
			if err := json.Unmarshal(r.Stats, &stats); err != nil || stats.SocketBytes != transporttest.PeerRoom || stats.MemoryBytes != 0 {
				t.Errorf("the peer's stats %+v, %v; want its bytes through the socket", stats, err)
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
func offerRaw(t *testing.T, d *transporttest.Node, session uint64, change func(*memoryOffer)) (offering, string) {
	t.Helper()
	conn := connectRaw(t, d)
	word, err := greet(conn, greeting{agent: "raw@1", session: session}, d.Record.Agent, blobOf(t, d).Secret)
	if err != nil {
		t.Fatal(err)
	}
	pledged, err := newPledge(word)
	if err != nil {
		t.Fatal(err)
	}
	r := transporttest.NewRoom(t, "", 8192)
	transporttest.Paint(r.Bytes, 7)
	o := memoryOffer{Process: procid.Self(), Word: pledged.address(), Memory: packSpans(memory.Set{r.Memory})}
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
	return offering{conn, r.Bytes, pledged}, string(why)
}

// TestTCPOfferRefused: an offer that does not prove whose memory it is.
func TestTCPOfferRefused(t *testing.T) {
	if err := transporttest.MemoryPermitted(); err != nil {
		t.Skip("SKIPPED:", err)
	}
	other := transporttest.NewRoom(t, "", 4096)
	for name, c := range map[string]struct {
		change func(*memoryOffer)
		want   string
	}{
		"true":            {func(*memoryOffer) {}, ""},
		"another word":    {func(o *memoryOffer) { o.Word = other.Memory.Base }, "another process"},
		"no word":         {func(o *memoryOffer) { o.Word = 8 }, "copy from process"},
		"another process": {func(o *memoryOffer) { o.Process.PID = os.Getppid() }, "copy from process"},
		"another start":   {func(o *memoryOffer) { o.Process.Started++ }, "copy from process"},
		"no process":      {func(o *memoryOffer) { o.Process.PID = 0 }, "do not share"},
		"another boot":    {func(o *memoryOffer) { o.Process.Boot = "x" }, "do not share"},
		"another space":   {func(o *memoryOffer) { o.Process.Namespaces = "x" }, "do not share"},
	} {
		t.Run(name, func(t *testing.T) {
			d := transporttest.OpenNode(t, New(Config{}), "d@1", 8192, 0)
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
	if err := transporttest.MemoryPermitted(); err != nil {
		t.Skip("SKIPPED:", err)
	}
	pull := func(t *testing.T, o offering, d *transporttest.Node, seq, at uint64) {
		t.Helper()
		head := stripsHead(framePull, seq, transfer.Range{Local: memory.Of(o.mem).Base, Remote: d.Base + at, Length: 4096})
		end := frame{kind: frameEnd, seq: seq, count: 4096, length: 1}.append(head)
		_, _ = o.conn.Write(append(end, byte('0'+seq))) // refused is as good
	}
	for name, stop := range map[string]func(t *testing.T, o offering, d *transporttest.Node){
		"wiped": func(t *testing.T, o offering, _ *transporttest.Node) { clear(o.pledge.page) },
		"unmapped": func(t *testing.T, o offering, _ *transporttest.Node) {
			if err := o.pledge.revoke(); err != nil {
				t.Fatal(err)
			}
		},
		"fenced": func(t *testing.T, _ offering, d *transporttest.Node) {
			if err := d.Transport.(*Transport).Fence("raw@1"); err != nil {
				t.Fatal(err)
			}
			clear(d.Mem)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := transporttest.OpenNode(t, New(Config{}), "d@1", 8192, 0)
			o, why := offerRaw(t, d, 1, func(*memoryOffer) {})
			if why != "" {
				t.Fatal(why)
			}
			pull(t, o, d, 1, 0)
			d.AwaitMessage([]byte("1"))
			if !bytes.Equal(d.Mem[:4096], o.mem[:4096]) {
				t.Fatal("the bytes differ")
			}
			stop(t, o, d)
			transporttest.Paint(o.mem, 9) // the blocks have another owner
			pull(t, o, d, 2, 4096)
			closed(t, o.conn)
			awaitStats(t, d.Transport.(*Transport), func(s Stats) bool { return s.Inbound == 0 })
			if d.Poll(); len(d.Got) > 0 {
				t.Errorf("taken in: %v", d.Got)
			}
			if name == "fenced" && !bytes.Equal(d.Mem, make([]byte, 8192)) {
				t.Error("bytes landed after the fence")
			}
		})
	}
	for name, r := range map[string]func(o offering, d *transporttest.Node) transfer.Range{
		"from outside": func(o offering, d *transporttest.Node) transfer.Range {
			return transfer.Range{Local: memory.Of(o.mem).Base + 8192 - 15, Remote: d.Base, Length: 16}
		},
		"to outside": func(o offering, d *transporttest.Node) transfer.Range {
			return transfer.Range{Local: memory.Of(o.mem).Base, Remote: d.Base + 8192 - 15, Length: 16}
		},
		"too long": func(o offering, d *transporttest.Node) transfer.Range {
			return transfer.Range{Local: memory.Of(o.mem).Base, Remote: d.Base, Length: maxPull + 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := transporttest.OpenNode(t, New(Config{}), "d@1", 8192, 0)
			o, _ := offerRaw(t, d, 1, func(*memoryOffer) {})
			if _, err := o.conn.Write(stripsHead(framePull, 1, r(o, d))); err != nil {
				t.Fatal(err)
			}
			closed(t, o.conn)
			awaitStats(t, d.Transport.(*Transport), func(s Stats) bool { return s.BadFrames == 1 && s.Landed == 0 })
		})
	}
}
