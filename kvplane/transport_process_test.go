package kvplane

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// processes runs a test over every transport between two processes, NIXL over shared memory and over TCP.
func processes(t *testing.T, test func(t *testing.T, n *node, p *process)) {
	for _, c := range links {
		if namespaced() && !c.wired() {
			continue
		}
		t.Run(c.title, func(t *testing.T) { c.run(t, test) })
	}
}

// run opens an agent and a peer process, connected both ways.
func (l link) run(t *testing.T, test func(t *testing.T, n *node, p *process)) {
	t.Helper()
	l.prepare(t)
	n := l.open(t, "test@1", peerRoom, 0)
	p := startPeer(t, l.title)
	if err := n.tr.Connect(p.record); err != nil {
		t.Fatal(err)
	}
	p.do(order{Do: "connect", Record: n.record}, n)
	test(t, n, p)
}

func TestProcessesWrite(t *testing.T) {
	processes(t, func(t *testing.T, n *node, p *process) {
		image := make([]byte, peerRoom) // what the peer's memory must be
		for i, size := range []int{1, 4097, 3 << 20, peerRoom} {
			at := (peerRoom - size) / 2
			scribble(n.mem[at:at+size], uint64(i))
			n.store()
			copy(image[at:], n.mem[at:at+size])
			ranges := []Range{{Local: n.base + uint64(at), Remote: p.base + uint64(at), Length: uint64(size)}}
			if err := n.tr.Write("peer@1", uint64(i), ranges, []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
			if r := p.await("message", n); !bytes.Equal(r.Body, []byte{byte(i)}) {
				t.Fatalf("notification %v; want %d", r.Body, i)
			}
			if got := p.do(order{Do: "digest"}, n).Digest; got != digest(image) {
				t.Fatalf("%d bytes: the peer's memory differs when the notification has come", size)
			}
			if err := n.awaitEnd(uint64(i)); err != nil {
				t.Fatal(err)
			}
		}
		// And back: the peer's whole memory.
		p.do(order{Do: "fill", Seed: 77}, n)
		scribble(image, 77)
		p.do(order{Do: "write", ID: 9, Record: n.record, Body: []byte("back"),
			Ranges: []Range{{Local: p.base, Remote: n.base, Length: peerRoom}}}, n)
		n.awaitMessage([]byte("back"))
		n.load()
		if !bytes.Equal(n.mem, image) {
			t.Error("memory differs when the notification has come")
		}
		if r := p.await("ended", n); r.ID != 9 || r.Err != "" {
			t.Errorf("the peer's write ended as %+v", r)
		}
	})
}

// TestProcessReceiverKilled kills -9 the receiver in mid-write: each write ends once, the last ones in an error, the
// peer is lost, and closing leaves no goroutine and no descriptor behind. The receiver is stopped first: a write that is
// posted then cannot end well before the kill.
func TestProcessReceiverKilled(t *testing.T) {
	processes(t, func(t *testing.T, n *node, p *process) {
		const size = 4 << 20
		posted, ended, failed := uint64(0), uint64(0), 0
		var lost error
		post := func() {
			if err := n.tr.Write("peer@1", posted, []Range{{Local: n.base, Remote: p.base, Length: size}}, []byte("x")); err == nil {
				posted++
			} else if !errors.Is(err, ErrPeerLost) {
				t.Fatal(err)
			}
		}
		take := func() {
			n.poll()
			for _, in := range n.got {
				switch in.Kind {
				case WriteEnded:
					ended++
					if in.Err != nil {
						failed++
					} else if failed > 0 {
						t.Error("a write ended well after one had failed")
					}
				case PeerLost:
					if lost != nil {
						t.Error("the peer was lost twice")
					}
					lost = in.Err
				}
			}
			n.got = n.got[:0]
		}
		for ended < 3 { // under way
			if posted < ended+4 {
				post()
			}
			take()
		}
		p.stop()
		for range 4 {
			post()
		}
		p.kill()
		for deadline := time.Now().Add(patience); ended < posted || lost == nil; {
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
		if err := n.tr.Write("peer@1", 1, []Range{{Local: n.base, Remote: p.base, Length: 1}}, nil); !errors.Is(err, ErrPeerLost) {
			t.Errorf("write to the dead: %v; want ErrPeerLost", err)
		}
		n.tr.Disconnect("peer@1")
		if err := n.tr.Write("peer@1", 1, []Range{{Local: n.base, Remote: p.base, Length: 1}}, nil); !errors.Is(err, ErrUnknownPeer) {
			t.Errorf("write to the forgotten: %v; want ErrUnknownPeer", err)
		}
		if err := n.tr.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestProcessWriterKilled kills -9 the writer: after its death and two full passes nothing lands any more.
func TestProcessWriterKilled(t *testing.T) {
	processes(t, func(t *testing.T, n *node, p *process) {
		p.do(order{Do: "fill", Seed: 5}, n)
		p.do(order{Do: "flood", Record: n.record, Ranges: []Range{{Local: p.base, Remote: n.base, Length: peerRoom}}}, n)
		for deadline := time.Now().Add(patience); ; {
			n.poll()
			n.load()
			if !bytes.Equal(n.mem[:4096], make([]byte, 4096)) {
				break // bytes are coming
			}
			time.Sleep(idle)
			if time.Now().After(deadline) {
				t.Fatal("nothing has landed")
			}
		}
		p.kill()
		if tcp, ok := n.tr.(*TCP); ok {
			n.await("peer lost", func(in Incoming) bool { return in.Kind == PeerLost })
			if err := tcp.Fence("peer@1"); err != nil {
				t.Fatal(err)
			}
		}
		n.poll()
		n.poll()
		clear(n.mem)
		n.store()
		for range 20 {
			n.poll()
			time.Sleep(time.Millisecond)
		}
		n.load()
		if !bytes.Equal(n.mem, make([]byte, peerRoom)) {
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
				l.run(t, func(t *testing.T, n *node, p *process) {
					if err := n.tr.Write("peer@1", 1, []Range{{Local: n.base, Remote: p.base, Length: 4096}}, nil); err != nil {
						t.Fatal(err)
					}
					if err := n.awaitEnd(1); err != nil {
						t.Fatal(err)
					}
					whole := []Range{{Local: p.base, Remote: n.base, Length: peerRoom}}
					p.do(order{Do: "flood", Record: n.record, Ranges: whole}, n)
					for id := range uint64(4) {
						if err := n.tr.Write("peer@1", 10+id, []Range{{Local: n.base, Remote: p.base, Length: peerRoom}}, []byte("x")); err != nil {
							t.Fatal(err)
						}
					}
					p.kill()
					for id := range uint64(4) {
						_ = n.awaitEnd(10 + id) // it may have been fast enough
					}
					if _, ok := n.tr.(*TCP); ok { // found out without a write
						n.await("peer lost", func(in Incoming) bool { return in.Kind == PeerLost })
						awaitStats(t, n.tr.(*TCP), func(s TCPStats) bool { return s.Inbound == 0 && s.Memory == 0 })
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
			return goroutines == 0 || runtime.NumGoroutine() <= goroutines && openDescriptors(t) <= descriptors
		}
		for deadline := time.Now().Add(patience / 4); !settled() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if g, d := runtime.NumGoroutine(), openDescriptors(t); i == 2 && (g > goroutines || d > descriptors) {
			stacks := make([]byte, 1<<16)
			t.Errorf("%d goroutines and %d descriptors; the round before left %d and %d\n%s", g, d, goroutines, descriptors,
				stacks[:runtime.Stack(stacks, true)])
		}
		goroutines, descriptors = runtime.NumGoroutine(), openDescriptors(t)
	}
}

// TestIdleTransportCPU: a connected agent whose owner sleeps uses under 1 % of a core, in processor time.
func TestIdleTransportCPU(t *testing.T) {
	type side struct {
		title string
		n     *node
		p     *process
	}
	var sides []side
	for _, c := range links {
		if err := c.missing(); err != nil {
			t.Logf("SKIPPED, not run over %s: %v", c.title, err)
			continue
		}
		c.run(t, func(t *testing.T, n *node, p *process) {
			if err := n.tr.Write("peer@1", 1, []Range{{Local: n.base, Remote: p.base, Length: 4096}}, []byte("wired")); err != nil {
				t.Fatal(err)
			}
			p.await("message", n)
			if err := n.awaitEnd(1); err != nil {
				t.Fatal(err)
			}
			sides = append(sides, side{c.title, n, p})
		})
	}
	for _, s := range sides { // all at once, and no poll here: both sides are idle
		if err := s.p.in.Encode(order{Do: "idle"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range sides {
		r := <-s.p.out
		percent := 100 * r.CPU.Seconds() / 3
		t.Logf("%s: %v in 3 s, %.2f %% of a core", s.title, r.CPU, percent)
		if r.Kind != "done" || r.Err != "" || percent > 1 {
			t.Errorf("%s: an idle agent uses %.2f %% of a core (%+v); want under 1 %%", s.title, percent, r)
		}
	}
}

// TestProcessReceiverPaused: a receiver that is stopped ends no write and is not lost; the sender can still close.
func TestProcessReceiverPaused(t *testing.T) {
	processes(t, func(t *testing.T, n *node, p *process) {
		for id := range uint64(4) {
			if err := n.tr.Write("peer@1", id, []Range{{Local: n.base, Remote: p.base, Length: peerRoom}}, []byte("x")); err != nil {
				t.Fatal(err)
			}
			if id == 0 {
				if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 200 {
			n.poll()
			time.Sleep(idle)
		}
		for _, in := range n.got {
			if in.Kind == PeerLost || in.Err != nil {
				t.Errorf("silence was taken for death: %v", in)
			}
		}
		if err := n.tr.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestProcessPeerDeadBeforeConnect: over TCP a NIXL peer that has died is connected to in the background, and is lost as
// one that dies later. UCX may end the process where it finds that out in the middle of a blocking call.
func TestProcessPeerDeadBeforeConnect(t *testing.T) {
	l := linkNamed(t, "nixl-tcp")
	l.prepare(t)
	n, p := l.open(t, "test@1", peerRoom, 0), startPeer(t, l.title)
	p.kill()
	if err := n.tr.Connect(p.record); err != nil {
		t.Fatalf("connecting to the dead: %v; want that it is lost later", err)
	}
	for deadline, lost := time.Now().Add(patience), false; !lost; {
		if time.Now().After(deadline) {
			t.Fatal("the dead peer was not lost")
		}
		_ = n.tr.Send("peer@1", []byte("x")) // NIXL learns of a death by sending
		n.poll()
		lost = slices.ContainsFunc(n.got, func(in Incoming) bool { return in.Kind == PeerLost })
	}
	n.tr.Disconnect("peer@1")
}

// TestProcessPeerReplaced: after a peer's death, Disconnect and the Connect of its successor make everything work.
func TestProcessPeerReplaced(t *testing.T) {
	processes(t, func(t *testing.T, n *node, p *process) {
		p.kill()
		for deadline, lost := time.Now().Add(patience), false; !lost; {
			if time.Now().After(deadline) {
				t.Fatal("the peer was not lost")
			}
			_ = n.tr.Write("peer@1", 1, []Range{{Local: n.base, Remote: p.base, Length: 4096}}, nil) // NIXL learns of a death by a write
			n.poll()
			for _, in := range n.got {
				lost = lost || in.Kind == PeerLost
			}
			time.Sleep(idle)
		}
		n.tr.Disconnect("peer@1")
		n.poll()
		n.got = nil
		next := startPeer(t, p.title)
		if err := n.tr.Connect(next.record); err != nil {
			t.Fatal(err)
		}
		next.do(order{Do: "connect", Record: n.record}, n)
		scribble(n.mem[:4096], 8)
		n.store()
		if err := n.tr.Write("peer@1", 2, []Range{{Local: n.base, Remote: next.base, Length: 4096}}, []byte("again")); err != nil {
			t.Fatal(err)
		}
		next.await("message", n)
		if err := n.awaitEnd(2); err != nil {
			t.Fatal(err)
		}
		if next.do(order{Do: "digest"}, n).Digest != digest(n.mem) {
			t.Error("the successor's memory differs")
		}
	})
}
