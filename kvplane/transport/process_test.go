package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/kvplane/transport/transporttest"
)

// processes runs a test over every transport between two processes, NIXL over shared memory and over TCP.
func processes(t *testing.T, test func(t *testing.T, n *transporttest.Node, p *transporttest.Process)) {
	for _, c := range links {
		if namespaced() && !c.wired() {
			continue
		}
		t.Run(c.title, func(t *testing.T) { c.run(t, test) })
	}
}

// run opens an agent and a peer process, connected both ways.
func (l link) run(t *testing.T, test func(t *testing.T, n *transporttest.Node, p *transporttest.Process)) {
	t.Helper()
	l.prepare(t)
	n := l.open(t, "test@1", transporttest.PeerRoom, 0)
	p := startPeer(t, l.title)
	if err := n.Transport.Connect(p.Record); err != nil {
		t.Fatal(err)
	}
	p.Do(transporttest.Order{Do: "connect", Record: n.Record}, n)
	test(t, n, p)
}

func TestProcessesWrite(t *testing.T) {
	processes(t, func(t *testing.T, n *transporttest.Node, p *transporttest.Process) {
		image := make([]byte, transporttest.PeerRoom) // what the peer's memory must be
		for i, size := range []int{1, 4097, 3 << 20, transporttest.PeerRoom} {
			at := (transporttest.PeerRoom - size) / 2
			transporttest.Scribble(n.Mem[at:at+size], uint64(i))
			n.Store()
			copy(image[at:], n.Mem[at:at+size])
			ranges := []transfer.Range{{Local: n.Base + uint64(at), Remote: p.Base + uint64(at), Length: uint64(size)}}
			if err := n.Transport.Write("peer@1", uint64(i), ranges, []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
			if r := p.Await("message", n); !bytes.Equal(r.Body, []byte{byte(i)}) {
				t.Fatalf("notification %v; want %d", r.Body, i)
			}
			if got := p.Do(transporttest.Order{Do: "digest"}, n).Digest; got != transporttest.Digest(image) {
				t.Fatalf("%d bytes: the peer's memory differs when the notification has come", size)
			}
			if err := n.AwaitEnd(uint64(i)); err != nil {
				t.Fatal(err)
			}
		}
		// And back: the peer's whole memory.
		p.Do(transporttest.Order{Do: "fill", Seed: 77}, n)
		transporttest.Scribble(image, 77)
		p.Do(transporttest.Order{Do: "write", ID: 9, Record: n.Record, Body: []byte("back"),
			Ranges: []transfer.Range{{Local: p.Base, Remote: n.Base, Length: transporttest.PeerRoom}}}, n)
		n.AwaitMessage([]byte("back"))
		n.Load()
		if !bytes.Equal(n.Mem, image) {
			t.Error("memory differs when the notification has come")
		}
		if r := p.Await("ended", n); r.ID != 9 || r.Err != "" {
			t.Errorf("the peer's write ended as %+v", r)
		}
	})
}

// TestProcessReceiverKilled kills -9 the receiver in mid-write: each write ends once, the last ones in an error, the
// peer is lost, and closing leaves no goroutine and no descriptor behind. The receiver is stopped first: a write that is
// posted then cannot end well before the kill.
func TestProcessReceiverKilled(t *testing.T) {
	processes(t, func(t *testing.T, n *transporttest.Node, p *transporttest.Process) {
		const size = 4 << 20
		posted, ended, failed := uint64(0), uint64(0), 0
		var lost error
		post := func() {
			if err := n.Transport.Write("peer@1", posted, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: size}}, []byte("x")); err == nil {
				posted++
			} else if !errors.Is(err, transport.ErrPeerLost) {
				t.Fatal(err)
			}
		}
		take := func() {
			n.Poll()
			for _, in := range n.Got {
				switch in.Kind {
				case transport.WriteEnded:
					ended++
					if in.Err != nil {
						failed++
					} else if failed > 0 {
						t.Error("a write ended well after one had failed")
					}
				case transport.PeerLost:
					if lost != nil {
						t.Error("the peer was lost twice")
					}
					lost = in.Err
				}
			}
			n.Got = n.Got[:0]
		}
		for ended < 3 { // under way
			if posted < ended+4 {
				post()
			}
			take()
		}
		p.Stop()
		for range 4 {
			post()
		}
		p.Kill()
		for deadline := time.Now().Add(transporttest.Patience); ended < posted || lost == nil; {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d writes have ended, the peer is lost: %v", ended, posted, lost)
			}
			take()
			if lost == nil && posted < ended+64 {
				post() // NIXL learns of a death by a write
			}
		}
		if failed == 0 {
			t.Error("no write failed")
		}
		if err := n.Transport.Write("peer@1", 1, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: 1}}, nil); !errors.Is(err, transport.ErrPeerLost) {
			t.Errorf("write to the dead: %v; want ErrPeerLost", err)
		}
		n.Transport.Disconnect("peer@1")
		if err := n.Transport.Write("peer@1", 1, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: 1}}, nil); !errors.Is(err, transport.ErrUnknownPeer) {
			t.Errorf("write to the forgotten: %v; want ErrUnknownPeer", err)
		}
		if err := n.Transport.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestProcessWriterKilled kills -9 the writer: after its death and two full passes nothing lands any more.
func TestProcessWriterKilled(t *testing.T) {
	processes(t, func(t *testing.T, n *transporttest.Node, p *transporttest.Process) {
		p.Do(transporttest.Order{Do: "fill", Seed: 5}, n)
		p.Do(transporttest.Order{Do: "flood", Record: n.Record, Ranges: []transfer.Range{{Local: p.Base, Remote: n.Base, Length: transporttest.PeerRoom}}}, n)
		for deadline := time.Now().Add(transporttest.Patience); ; {
			n.Poll()
			n.Load()
			if !bytes.Equal(n.Mem[:4096], make([]byte, 4096)) {
				break // bytes are coming
			}
			time.Sleep(transporttest.Idle)
			if time.Now().After(deadline) {
				t.Fatal("nothing has landed")
			}
		}
		p.Kill()
		if tcp, ok := n.Transport.(*tcp.Transport); ok {
			n.Await("peer lost", func(in transport.Incoming) bool { return in.Kind == transport.PeerLost })
			if err := tcp.Fence("peer@1"); err != nil {
				t.Fatal(err)
			}
		}
		n.Poll()
		n.Poll()
		clear(n.Mem)
		n.Store()
		for range 20 {
			n.Poll()
			time.Sleep(time.Millisecond)
		}
		n.Load()
		if !bytes.Equal(n.Mem, make([]byte, transporttest.PeerRoom)) {
			t.Error("bytes landed after the drain")
		}
	})
}

// TestTransportLeavesNothing: after a peer was killed in the middle of writes both ways and everything is closed, the
// process has as many goroutines and descriptors as before.
func TestTransportLeavesNothing(t *testing.T) {
	for _, l := range links {
		if l.tls != "" {
			continue
		}
		t.Run(l.title, func(t *testing.T) {
			l.prepare(t)
			leavesNothing(t, func(t *testing.T) {
				l.run(t, func(t *testing.T, n *transporttest.Node, p *transporttest.Process) {
					if err := n.Transport.Write("peer@1", 1, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: 4096}}, nil); err != nil {
						t.Fatal(err)
					}
					if err := n.AwaitEnd(1); err != nil {
						t.Fatal(err)
					}
					whole := []transfer.Range{{Local: p.Base, Remote: n.Base, Length: transporttest.PeerRoom}}
					p.Do(transporttest.Order{Do: "flood", Record: n.Record, Ranges: whole}, n)
					for id := range uint64(4) {
						if err := n.Transport.Write("peer@1", 10+id, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: transporttest.PeerRoom}}, []byte("x")); err != nil {
							t.Fatal(err)
						}
					}
					p.Kill()
					for id := range uint64(4) {
						_ = n.AwaitEnd(10 + id) // it may have been fast enough
					}
					if tr, ok := n.Transport.(*tcp.Transport); ok { // found out without a write
						n.Await("peer lost", func(in transport.Incoming) bool { return in.Kind == transport.PeerLost })
						for deadline := time.Now().Add(transporttest.Patience); tr.Stats().Inbound+tr.Stats().Memory > 0; time.Sleep(transporttest.Idle) {
							if time.Now().After(deadline) {
								t.Fatalf("the killed peer is still counted: %+v", tr.Stats())
							}
						}
					}
				})
			})
		})
	}
}

// leavesNothing runs a test thrice; after the first, which may make what a library makes once, it leaves nothing.
func leavesNothing(t *testing.T, round func(t *testing.T)) {
	t.Helper()
	var goroutines, descriptors int
	for i := range 3 {
		t.Run(fmt.Sprint(i), round) // with its cleanups
		runtime.GC()                // os.File and exec.Cmd close some by finalizers
		settled := func() bool {
			return goroutines == 0 || runtime.NumGoroutine() <= goroutines && transporttest.OpenDescriptors(t) <= descriptors
		}
		for deadline := time.Now().Add(transporttest.Patience / 4); !settled() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if g, d := runtime.NumGoroutine(), transporttest.OpenDescriptors(t); i == 2 && (g > goroutines || d > descriptors) {
			stacks := make([]byte, 1<<16)
			t.Errorf("%d goroutines and %d descriptors; the round before left %d and %d\n%s", g, d, goroutines, descriptors,
				stacks[:runtime.Stack(stacks, true)])
		}
		goroutines, descriptors = runtime.NumGoroutine(), transporttest.OpenDescriptors(t)
	}
}

// TestIdleTransportCPU: a connected agent whose owner sleeps uses under 1 % of a core, in processor time.
func TestIdleTransportCPU(t *testing.T) {
	type side struct {
		title string
		n     *transporttest.Node
		p     *transporttest.Process
	}
	var sides []side
	for _, c := range links {
		if err := c.missing(); err != nil {
			t.Logf("SKIPPED, not run over %s: %v", c.title, err)
			continue
		}
		c.run(t, func(t *testing.T, n *transporttest.Node, p *transporttest.Process) {
			if err := n.Transport.Write("peer@1", 1, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: 4096}}, []byte("wired")); err != nil {
				t.Fatal(err)
			}
			p.Await("message", n)
			if err := n.AwaitEnd(1); err != nil {
				t.Fatal(err)
			}
			sides = append(sides, side{c.title, n, p})
		})
	}
	for _, s := range sides { // all at once, and no poll here: both sides are idle
		if err := s.p.In.Encode(transporttest.Order{Do: "idle"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range sides {
		r := <-s.p.Out
		percent := 100 * r.CPU.Seconds() / 3
		t.Logf("%s: %v in 3 s, %.2f %% of a core", s.title, r.CPU, percent)
		if r.Kind != "done" || r.Err != "" || percent > 1 {
			t.Errorf("%s: an idle agent uses %.2f %% of a core (%+v); want under 1 %%", s.title, percent, r)
		}
	}
}

// TestProcessReceiverPaused: a receiver that is stopped ends no write and is not lost; the sender can still close.
func TestProcessReceiverPaused(t *testing.T) {
	processes(t, func(t *testing.T, n *transporttest.Node, p *transporttest.Process) {
		for id := range uint64(4) {
			if err := n.Transport.Write("peer@1", id, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: transporttest.PeerRoom}}, []byte("x")); err != nil {
				t.Fatal(err)
			}
			if id == 0 {
				if err := p.Cmd.Process.Signal(unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 200 {
			n.Poll()
			time.Sleep(transporttest.Idle)
		}
		for _, in := range n.Got {
			if in.Kind == transport.PeerLost || in.Err != nil {
				t.Errorf("silence was taken for death: %v", in)
			}
		}
		if err := n.Transport.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestProcessPeerDeadBeforeConnect: over TCP a NIXL peer that has died is connected to in the background, and is lost as
// one that dies later. UCX may end the process where it finds that out in the middle of a blocking call.
func TestProcessPeerDeadBeforeConnect(t *testing.T) {
	l := linkNamed(t, "nixl-tcp")
	l.prepare(t)
	n, p := l.open(t, "test@1", transporttest.PeerRoom, 0), startPeer(t, l.title)
	p.Kill()
	if err := n.Transport.Connect(p.Record); err != nil {
		t.Fatalf("connecting to the dead: %v; want that it is lost later", err)
	}
	for deadline, lost := time.Now().Add(transporttest.Patience), false; !lost; {
		if time.Now().After(deadline) {
			t.Fatal("the dead peer was not lost")
		}
		_ = n.Transport.Send("peer@1", []byte("x")) // NIXL learns of a death by sending
		n.Poll()
		lost = slices.ContainsFunc(n.Got, func(in transport.Incoming) bool { return in.Kind == transport.PeerLost })
	}
	n.Transport.Disconnect("peer@1")
}

// TestProcessPeerReplaced: after a peer's death, Disconnect and the Connect of its successor make everything work.
func TestProcessPeerReplaced(t *testing.T) {
	processes(t, func(t *testing.T, n *transporttest.Node, p *transporttest.Process) {
		p.Kill()
		for deadline, lost := time.Now().Add(transporttest.Patience), false; !lost; {
			if time.Now().After(deadline) {
				t.Fatal("the peer was not lost")
			}
			_ = n.Transport.Write("peer@1", 1, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: 4096}}, nil) // NIXL learns of a death by a write
			n.Poll()
			for _, in := range n.Got {
				lost = lost || in.Kind == transport.PeerLost
			}
			time.Sleep(transporttest.Idle)
		}
		n.Transport.Disconnect("peer@1")
		n.Poll()
		n.Got = nil
		next := startPeer(t, p.Title)
		if err := n.Transport.Connect(next.Record); err != nil {
			t.Fatal(err)
		}
		next.Do(transporttest.Order{Do: "connect", Record: n.Record}, n)
		transporttest.Scribble(n.Mem[:4096], 8)
		n.Store()
		if err := n.Transport.Write("peer@1", 2, []transfer.Range{{Local: n.Base, Remote: next.Base, Length: 4096}}, []byte("again")); err != nil {
			t.Fatal(err)
		}
		next.Await("message", n)
		if err := n.AwaitEnd(2); err != nil {
			t.Fatal(err)
		}
		if next.Do(transporttest.Order{Do: "digest"}, n).Digest != transporttest.Digest(n.Mem) {
			t.Error("the successor's memory differs")
		}
	})
}
