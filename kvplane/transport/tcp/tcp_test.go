package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// blobOf decodes the blob of an agent under test.
func blobOf(t testing.TB, n *transporttest.Node) contact {
	t.Helper()
	b, err := parseContact(n.Record.Blob)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dialRaw connects to an agent without the transport and, with a secret, passes the handshake.
func dialRaw(t testing.TB, n *transporttest.Node, secret []byte) (net.Conn, error) {
	t.Helper()
	return dialSession(t, n, secret, 1)
}

func dialSession(t testing.TB, n *transporttest.Node, secret []byte, session uint64) (net.Conn, error) {
	t.Helper()
	conn := connectRaw(t, n)
	_, err := greet(conn, greeting{agent: "raw@1", session: session}, n.Record.Agent, secret)
	return conn, err
}

// connectRaw connects to an agent, and says nothing.
func connectRaw(t testing.TB, n *transporttest.Node) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", blobOf(t, n).Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(transporttest.Patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// closed waits until the other side has closed the connection.
func closed(t testing.TB, conn net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, conn); err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("the connection is still open: %v", err)
		}
	}
}

func awaitStats(t testing.TB, tr *Transport, want func(Stats) bool) Stats {
	t.Helper()
	for deadline := time.Now().Add(transporttest.Patience); !want(tr.Stats()); time.Sleep(transporttest.Idle) {
		if time.Now().After(deadline) {
			t.Fatalf("stats stay %+v", tr.Stats())
		}
	}
	return tr.Stats()
}

// TestTCPBadFrames: what a peer with the secret may not send closes its connection, is counted, and lands nothing.
func TestTCPBadFrames(t *testing.T) {
	const room = 8192
	for name, bytesOf := range map[string]func(base uint64) []byte{
		"unknown kind":     func(uint64) []byte { return frame{kind: 9}.append(nil) },
		"no kind":          func(uint64) []byte { return make([]byte, frameBytes) },
		"an answer":        func(uint64) []byte { return frame{kind: frameAnswer, seq: 1}.append(nil) },
		"padding":          func(uint64) []byte { b := frame{kind: frameMessage}.append(nil); b[2] = 1; return b },
		"message too long": func(uint64) []byte { return frame{kind: frameMessage, length: transport.MaxMessage + 1}.append(nil) },
		"below":            chunkAt(func(base uint64) uint64 { return base - 1 }, 16, 1),
		"past the end":     chunkAt(func(base uint64) uint64 { return base + room - 15 }, 16, 1),
		"after the end":    chunkAt(func(base uint64) uint64 { return base + room }, 16, 1),
		"wraps":            chunkAt(func(uint64) uint64 { return ^uint64(0) - 3 }, 16, 1),
		"address zero":     chunkAt(func(uint64) uint64 { return 0 }, 16, 1),
		"chunk too long":   chunkAt(func(base uint64) uint64 { return base }, maxChunk+1, 1),
		"chunk empty":      chunkAt(func(base uint64) uint64 { return base }, 0, 1),
		"seq zero":         chunkAt(func(base uint64) uint64 { return base }, 16, 0),
		"seq ahead":        chunkAt(func(base uint64) uint64 { return base }, 16, 2),
		"end of no write":  func(uint64) []byte { return frame{kind: frameEnd, seq: 2}.append(nil) },
		"end claims more":  func(uint64) []byte { return frame{kind: frameEnd, seq: 1, count: 5}.append(nil) },
		"no ranges":        func(uint64) []byte { return frame{kind: frameChunk, seq: 1, length: 16}.append(nil) },
		"too many ranges": func(base uint64) []byte {
			return chunkHead(1, make([]transfer.Range, maxStrips+1)...)
		},
		"ranges longer than the frame": func(uint64) []byte {
			return frame{kind: frameChunk, seq: 1, count: 2, length: 2*stripBytes - 1}.append(nil)
		},
		"ranges shorter than the bytes": func(base uint64) []byte {
			b := append(chunkHead(1, transfer.Range{Remote: base, Length: 16}), make([]byte, 16)...)
			binary.LittleEndian.PutUint64(b[frameBytes+8:], 15)
			return b
		},
		"second range outside": func(base uint64) []byte {
			b := chunkHead(1, transfer.Range{Remote: base, Length: 16}, transfer.Range{Remote: base + room, Length: 1})
			return append(b, make([]byte, 17)...)
		},
		"a chunk out of memory": func(base uint64) []byte {
			return append(chunkHead(1, transfer.Range{Remote: base, Length: 16, Local: base}), make([]byte, 16)...)
		},
		"a pull without an offer": func(base uint64) []byte {
			return stripsHead(framePull, 1, transfer.Range{Remote: base, Length: 16, Local: base})
		},
		"taken":        func(uint64) []byte { return frame{kind: frameTaken}.append(nil) },
		"a verdict":    func(uint64) []byte { return frame{kind: frameVerdict}.append(nil) },
		"broken offer": func(uint64) []byte { return append(frame{kind: frameOffer, length: 3}.append(nil), 0xc1, 0, 0) },
		"end too long": func(uint64) []byte {
			return frame{kind: frameEnd, seq: 1, length: transport.MaxMessage + 1}.append(nil)
		},
		"end twice": func(uint64) []byte {
			return frame{kind: frameEnd, seq: 1}.append(frame{kind: frameEnd, seq: 1}.append(nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := New(Config{})
			n := transporttest.OpenNode(t, tr, "d@1", room, 0xee)
			conn, err := dialRaw(t, n, blobOf(t, n).Secret)
			if err != nil {
				t.Fatal(err)
			}
			// It may be judged and closed before all of it is written.
			if _, err := conn.Write(bytesOf(n.Base)); err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Fatal(err)
			}
			closed(t, conn)
			s := awaitStats(t, tr, func(s Stats) bool { return s.Inbound == 0 })
			if d := cmp.Diff(Stats{BadFrames: 1}, s); d != "" {
				t.Errorf("stats (-want +got):\n%s", d)
			}
			if !bytes.Equal(n.Mem, bytes.Repeat([]byte{0xee}, room)) {
				t.Error("memory was changed")
			}
			if n.Poll(); len(n.Got) != 0 {
				t.Errorf("taken in: %v", n.Got)
			}
		})
	}
}

// chunkAt is a chunk of one range and as many bytes.
func chunkAt(address func(base uint64) uint64, length int, seq uint64) func(base uint64) []byte {
	return func(base uint64) []byte {
		return append(chunkHead(seq, transfer.Range{Remote: address(base), Length: uint64(length)}), make([]byte, length)...)
	}
}

// chunkHead is the frame of a chunk up to its bytes.
func chunkHead(seq uint64, ranges ...transfer.Range) []byte {
	return stripsHead(frameChunk, seq, ranges...)
}

func stripsHead(kind frameKind, seq uint64, ranges ...transfer.Range) []byte {
	f := frame{kind: kind, seq: seq, count: uint64(len(ranges)), length: uint32(stripBytes * len(ranges))}
	for _, r := range ranges {
		if kind == frameChunk {
			f.length += uint32(r.Length)
		}
	}
	b := f.append(nil)
	for _, r := range ranges {
		b = appendStrip(b, r)
	}
	return b
}

// TestTCPUnreachable: a peer that does not answer is lost, and what was queued for it has ended.
func TestTCPUnreachable(t *testing.T) {
	p := transporttest.OpenNode(t, New(Config{}), "p@1", 4096, 1)
	d := transporttest.OpenNode(t, New(Config{}), "d@1", 4096, 1)
	if err := d.Transport.Close(); err != nil {
		t.Fatal(err)
	}
	p.Connect(d)
	_ = p.Transport.Write("d@1", 1, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 1}}, nil) // refused only if it was lost already
	lost := p.Await("peer lost", func(in transport.Incoming) bool { return in.Kind == transport.PeerLost })
	if lost.Err == nil {
		t.Error("lost without why")
	}
}

// TestTCPFullQueue: a receiver that does not poll holds back its senders without holding more than its share, Fence
// and Close get through, and nothing is lost that was not refused.
func TestTCPFullQueue(t *testing.T) {
	p, d := transporttest.Pair(t, func(testing.TB) transport.Transport { return New(Config{}) }, 4096)
	body := make([]byte, 64<<10)
	sent := 0
	for refused := 0; refused < 50; {
		switch err := p.Transport.Send("d@1", body); {
		case err == nil:
			sent++
			refused = 0
		case !errors.Is(err, transport.ErrBusy):
			t.Fatal(err)
		default:
			refused++
			time.Sleep(time.Millisecond)
		}
		if sent > 1<<16 {
			t.Fatal("the queue has no end")
		}
	}
	d.Poll()
	if held := len(d.Got) * len(body); held > maxQueuedBytes {
		t.Errorf("%d bytes were held; at most %d", held, maxQueuedBytes)
	}
	for deadline := time.Now().Add(transporttest.Patience); len(d.Got) < sent; d.Poll() {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d messages have come", len(d.Got), sent)
		}
	}
	for range 300 { // full again
		_ = p.Transport.Send("d@1", body) // refused is as good
	}
	if err := d.Transport.(*Transport).Fence("p@1"); err != nil {
		t.Fatal(err)
	}
}

// TestTCPMessagesOvertakeWrites: a message does not wait for the end of a large write.
func TestTCPMessagesOvertakeWrites(t *testing.T) {
	const size = 16 << 20
	p, d := transporttest.Pair(t, func(testing.TB) transport.Transport { return New(Config{}) }, size)
	for id := range uint64(8) {
		if err := p.Transport.Write("d@1", id, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: size}}, []byte("written")); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Transport.Send("d@1", []byte("urgent")); err != nil {
		t.Fatal(err)
	}
	for before := 0; ; before++ { // the first writes may have ended before it was sent
		in := d.Await("message", func(in transport.Incoming) bool { return in.Kind == transport.MessageReceived }, p)
		if string(in.Body) == "urgent" {
			break
		}
		if before == 7 {
			t.Fatal("the message came after all eight writes")
		}
	}
	for id := range uint64(8) {
		if err := p.AwaitEnd(id, d); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTCPOpenRefuses(t *testing.T) {
	page, free, err := memory.Allocate(8192)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = free() }()
	m := memory.Of(page)
	for name, c := range map[string]struct {
		cfg    Config
		agent  string
		memory []memory.Region
	}{
		"no name":        {agent: ""},
		"long name":      {agent: string(make([]byte, maxAgentName+1))},
		"empty memory":   {agent: "a", memory: []memory.Region{{Base: m.Base}}},
		"wraps around":   {agent: "a", memory: []memory.Region{{Base: ^uint64(0) - 5, Length: 100}}},
		"overlap":        {agent: "a", memory: []memory.Region{m, {Base: m.Base + 100, Length: 5}}},
		"on a GPU":       {agent: "a", memory: []memory.Region{{Base: m.Base, Length: 4096, Type: "vram"}}},
		"path":           {agent: "a", cfg: Config{Path: "air"}},
		"all interfaces": {agent: "a", cfg: Config{Listen: "0.0.0.0:0"}},
		"bad address":    {agent: "a", cfg: Config{Listen: "nonsense"}},
	} {
		t.Run(name, func(t *testing.T) {
			tr := New(c.cfg)
			_, _, err := tr.Open(c.agent, c.memory)
			if err == nil {
				t.Error("opened")
			}
			if name == "on a GPU" && (err == nil || !strings.Contains(err.Error(), `is of type "vram"; tcp moves dram only`)) {
				t.Errorf("refused as %v", err)
			}
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	tr := New(Config{Listen: "0.0.0.0:0", Advertise: []string{"127.0.0.1", "127.0.0.1:9"}})
	n := transporttest.OpenNode(t, tr, "a@1", 4096, 0)
	addresses := blobOf(t, n).Addresses
	if len(addresses) != 2 || addresses[0] == "127.0.0.1" || addresses[1] != "127.0.0.1:9" {
		t.Errorf("advertised %v", addresses)
	}
	if _, _, err := tr.Open("a@1", nil); err == nil {
		t.Error("opened twice")
	}
}
