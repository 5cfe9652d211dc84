package tcp

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// openNamed opens an agent that asks its peers for proofs of their names. Its key's private half is agree.
func openNamed(t *testing.T, name string, cfg Config, fill byte) (n *transporttest.Node, agree transport.Agreement) {
	t.Helper()
	public, agree, err := transport.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	tr := New(cfg)
	transport.Introduce(tr, public, agree)
	n = transporttest.OpenNode(t, tr, name, 8192, fill)
	n.Record.Key, n.Record.Process = public, procid.Self()
	return n, agree
}

// dialNamed connects as whoever g says.
func dialNamed(t *testing.T, d *transporttest.Node, g greeting) (net.Conn, error) {
	t.Helper()
	conn := connectRaw(t, d)
	_, err := greet(conn, g, d.Record.Agent, blobOf(t, d).Secret)
	return conn, err
}

// TestTCPNames: who knows the blob but not an agent's key does not pass for that agent: nothing of it lands, and the
// agent's own connections stay. It does not matter whether the agent is known when the impostor dials.
func TestTCPNames(t *testing.T) {
	for _, c := range []struct {
		name  string
		known bool // before the impostor dials
	}{{"known before", true}, {"known after", false}} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := openNamed(t, "p@1", Config{}, 7)
			d, _ := openNamed(t, "d@1", Config{}, 0xee)
			x, xAgree := openNamed(t, "x@1", Config{}, 9)
			tr := d.Transport.(*Transport)
			if c.known {
				d.Connect(p)
			}
			p.Connect(d)
			if err := p.Transport.Send("d@1", []byte("first")); err != nil {
				t.Fatal(err)
			}
			d.AwaitMessage([]byte("first"), p)
			secret, err := xAgree(d.Record.Key)
			if err != nil {
				t.Fatal(err)
			}
			own, err := nameKey(secret, "p@1", x.Record.Key, "d@1", d.Record.Key)
			if err != nil {
				t.Fatal(err)
			}
			var impostors []net.Conn
			for i, key := range [][]byte{nil, own} {
				for _, session := range []uint64{uint64(1 + i), ^uint64(i)} {
					conn, err := dialNamed(t, d, greeting{agent: "p@1", session: session, key: key})
					if (err == nil) == c.known {
						t.Errorf("session %d: %v", session, err)
					}
					if session < 3 { // the others wait
						_, _ = conn.Write(append(chunkHead(1, transfer.Range{Remote: d.Base, Length: 16}), make([]byte, 16)...))
						closed(t, conn)
					}
					impostors = append(impostors, conn)
				}
			}
			if !bytes.Equal(d.Mem, bytes.Repeat([]byte{0xee}, 8192)) {
				t.Error("bytes of an impostor have landed")
			}
			if !c.known {
				d.Connect(p)
			}
			for _, conn := range impostors {
				closed(t, conn)
			}
			// On the connection that it had from the beginning.
			if err := p.Transport.Write("d@1", 1, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 8192}}, []byte("written")); err != nil {
				t.Fatal(err)
			}
			d.AwaitMessage([]byte("written"), p)
			if err := p.AwaitEnd(1, d); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(d.Mem, p.Mem) {
				t.Error("the agent's own bytes have not landed")
			}
			for _, in := range append(p.Got, d.Got...) {
				if in.Kind == transport.PeerLost {
					t.Errorf("%s was lost: %v", in.Agent, in.Err)
				}
			}
			if transporttest.MemoryPermitted() == nil && tr.Stats().MemoryBytes != 8192 {
				t.Errorf("stats %+v; want the bytes through memory", tr.Stats())
			}
		})
	}
}

// TestTCPNameOfTheFenced: a fenced agent writes under no other name either.
func TestTCPNameOfTheFenced(t *testing.T) {
	x, agree := openNamed(t, "x@1", Config{Path: PathSocket}, 9)
	d, _ := openNamed(t, "d@1", Config{}, 0)
	d.Connect(x)
	secret, err := agree(d.Record.Key)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(name string, session uint64) (net.Conn, error) {
		key, err := nameKey(secret, name, x.Record.Key, "d@1", d.Record.Key)
		if err != nil {
			t.Fatal(err)
		}
		return dialNamed(t, d, greeting{agent: name, session: session, key: key})
	}
	chunk := append(chunkHead(1, transfer.Range{Remote: d.Base, Length: 16}), bytes.Repeat([]byte{9}, 16)...)
	conn, err := dial("x@1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(chunk); err != nil {
		t.Fatal(err)
	}
	awaitStats(t, d.Transport.(*Transport), func(s Stats) bool { return s.Landed == 16 })
	if err := d.Transport.(*Transport).Fence("x@1"); err != nil {
		t.Fatal(err)
	}
	clear(d.Mem)
	for session, name := range []string{"x@1", "y@1", "x@1 ", "d@1"} {
		conn, err := dial(name, uint64(session+2))
		if err != nil {
			t.Fatalf("%q: %v; messages may come", name, err)
		}
		_, _ = conn.Write(chunk) // refused
		closed(t, conn)
	}
	if !bytes.Equal(d.Mem, make([]byte, 8192)) || d.Transport.(*Transport).Stats().Landed != 16 {
		t.Error("bytes landed after the fence")
	}

	// Its run is superseded: no name is kept for it, and it writes all the same nothing.
	early, err := dial("x@1", 8)
	if err != nil {
		t.Fatalf("%v; messages may come", err)
	}
	d.Transport.Disconnect("x@1")
	d.Transport.(*Transport).Forget("x@1")
	if tr := d.Transport.(*Transport); len(tr.known)+len(tr.barred) > 0 {
		t.Errorf("%d names are known and %d barred; want none", len(tr.known), len(tr.barred))
	}
	if conn, err = dial("x@1", 9); err != nil {
		t.Fatalf("%v; messages may come", err)
	}
	for _, conn := range []net.Conn{early, conn} { // opened before it was forgotten, and after
		_, _ = conn.Write(chunk) // refused
		closed(t, conn)
	}
	if !bytes.Equal(d.Mem, make([]byte, 8192)) || d.Transport.(*Transport).Stats().Landed != 16 {
		t.Error("bytes landed of an agent that was forgotten")
	}
}

// TestTCPNeedsAKey: no connection is made to an agent that could not prove its name.
func TestTCPNeedsAKey(t *testing.T) {
	d, _ := openNamed(t, "d@1", Config{}, 0)
	p := transporttest.OpenNode(t, New(Config{}), "p@1", 4096, 0)
	for _, key := range [][]byte{nil, make([]byte, 32), {1, 2, 3}} {
		p.Record.Key = key
		if err := d.Transport.Connect(p.Record); !errors.Is(err, transport.ErrNoKey) {
			t.Errorf("key %x: %v; want that there is none", key, err)
		}
	}
}

// TestTCPOfferOfAnother: memory is copied only out of the process that the peer's record names, whichever of the two is
// known first.
func TestTCPOfferOfAnother(t *testing.T) {
	if err := transporttest.MemoryPermitted(); err != nil {
		t.Skip("SKIPPED:", err)
	}
	d := transporttest.OpenNode(t, New(Config{}), "d@1", 8192, 0)
	raw := transporttest.OpenNode(t, New(Config{}), "raw@1", 8192, 0)
	raw.Record.Process = procid.Self()
	raw.Record.Process.PID = os.Getppid()
	o, why := offerRaw(t, d, 1, func(*memoryOffer) {})
	if why != "" {
		t.Fatal(why)
	}
	d.Connect(raw)
	closed(t, o.conn)
	if _, why = offerRaw(t, d, 2, func(*memoryOffer) {}); !strings.Contains(why, "not the one of the peer's record") {
		t.Errorf("the verdict is %q", why)
	}
	d.Transport.Disconnect("raw@1")
	raw.Record.Process = metadata.Process{}
	d.Connect(raw)
	if _, why = offerRaw(t, d, 3, func(*memoryOffer) {}); why != "" {
		t.Errorf("the verdict is %q; the record does not say", why)
	}
}

// TestTCPLateBytes: bytes of a write that has ended, and a second connection of the same session, are refused.
func TestTCPLateBytes(t *testing.T) {
	tr := New(Config{})
	d := transporttest.OpenNode(t, tr, "d@1", 8192, 0)
	secret := blobOf(t, d).Secret
	conn, err := dialSession(t, d, secret, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialSession(t, d, secret, 1); err == nil {
		t.Error("two connections have one session")
	}
	chunk := append(chunkHead(1, transfer.Range{Remote: d.Base, Length: 4096}), bytes.Repeat([]byte{7}, 4096)...)
	if _, err := conn.Write(append(frame{kind: frameEnd, seq: 1, count: 4096, length: 4}.append(bytes.Clone(chunk)), "done"...)); err != nil {
		t.Fatal(err)
	}
	d.AwaitMessage([]byte("done"))
	clear(d.Mem)
	if _, err := conn.Write(chunk); err != nil {
		t.Fatal(err)
	}
	closed(t, conn)
	awaitStats(t, tr, func(s Stats) bool { return s.Inbound == 0 && s.BadFrames == 2 })
	if !bytes.Equal(d.Mem, make([]byte, 8192)) {
		t.Error("bytes have landed after the end of their write")
	}
}
