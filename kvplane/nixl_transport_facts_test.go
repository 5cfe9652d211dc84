package kvplane

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"pdrouter/kvplane/nixl"
)

// The protocol of docs/kvplane.md rests on how NIXL was measured to behave, over UCX and TCP between two processes. A
// NIXL that behaves otherwise fails here.

// overTCP starts an agent and a peer process, wired up, over UCX's TCP.
func overTCP(t *testing.T) (*node, *process) {
	t.Setenv("UCX_TLS", "tcp")
	n := openNode(t, newTransport(t, "nixl"), "test@1", peerRoom, 0)
	p := startPeer(t, "nixl")
	if err := n.tr.Connect(p.record); err != nil {
		t.Fatal(err)
	}
	p.do(order{Do: "connect", Record: n.record}, n)
	if err := n.tr.Write("peer@1", 1, []Range{{Local: n.base, Remote: p.base, Length: 1}}, []byte("wired")); err != nil {
		t.Fatal(err)
	}
	p.await("message", n)
	if err := n.awaitEnd(1); err != nil {
		t.Fatal(err)
	}
	p.do(order{Do: "write", ID: 2, Record: n.record, Ranges: []Range{{Local: p.base, Remote: n.base, Length: 1}}, Body: []byte("back")}, n)
	n.awaitMessage([]byte("back"))
	p.await("ended", n)
	return n, p
}

// F1: releasing a handle that is in progress is no abort; the bytes land all the same.
func TestNIXLFactReleaseIsNoAbort(t *testing.T) {
	n, p := overTCP(t)
	scribble(n.mem, 1)
	p.do(order{Do: "hold"}, n) // the peer takes in nothing, so the write cannot end
	whole := func(base uint64) nixl.Memory {
		return nixl.Memory{Regions: []nixl.Region{{Address: base, Length: peerRoom}}}
	}
	agent := n.tr.(*NIXL).agent
	tr, err := agent.NewTransfer(nixl.Write, whole(n.base), whole(p.base), "peer@1", []byte("never"))
	if err != nil {
		t.Fatal(err)
	}
	status, err := tr.Post()
	for i := 0; i < 20 && err == nil && status == nixl.InProgress; i++ {
		status, err = tr.Status()
	}
	if err != nil || status != nixl.InProgress {
		t.Fatalf("status %v, %v; want in progress under a peer that takes in nothing", status, err)
	}
	if err := tr.Close(); err == nil {
		t.Fatal("Close released a handle in progress")
	}
	if err := tr.Abandon(); err != nil {
		t.Fatal(err)
	}
	want := digest(n.mem)
	if p.do(order{Do: "digest"}, nil).Digest == want {
		t.Fatal("everything was there before the release")
	}
	p.do(order{Do: "poll"}, n)
	for deadline := time.Now().Add(patience); p.do(order{Do: "digest"}, n).Digest != want; {
		if time.Now().After(deadline) {
			t.Fatal("the bytes of a released handle did not land: F1 has changed")
		}
		for range 200 {
			n.poll()
			time.Sleep(idle)
		}
	}
}

// F2, F4: after the writer's death the first full pass takes in what is left, the second nothing.
func TestNIXLFactDrain(t *testing.T) {
	n, p := overTCP(t)
	p.do(order{Do: "fill", Seed: 3}, n)
	p.do(order{Do: "flood", Record: n.record, Ranges: []Range{{Local: p.base, Remote: n.base, Length: peerRoom}}}, nil)
	time.Sleep(50 * time.Millisecond) // the peer writes into the sockets' buffers; nobody polls here
	p.kill()
	clear(n.mem)
	n.poll()
	after := bytes.Clone(n.mem)
	landed := len(after) - bytes.Count(after, []byte{0})
	t.Logf("the first pass after the death took in about %d bytes", landed)
	for i := range 10 {
		n.poll()
		if !bytes.Equal(after, n.mem) {
			t.Fatalf("pass %d took in bytes: F4 has changed", i+2)
		}
		time.Sleep(time.Millisecond)
	}
}

// F5: the notification of a write is sent by the writer's own poll, after the bytes; without it they land in silence.
// The post drives UCX too and now and then finishes so small a write itself, so one silent write of ten is proof.
func TestNIXLFactWriterSendsNotification(t *testing.T) {
	n, p := overTCP(t)
	p.do(order{Do: "fill", Seed: 4}, n)
	image := make([]byte, 4096)
	scribble(image, 4)
	for attempt := range uint64(10) {
		clear(n.mem[:len(image)])
		n.got = nil
		p.do(order{Do: "write and hold", ID: 3 + attempt, Record: n.record, Body: []byte("landed"),
			Ranges: []Range{{Local: p.base, Remote: n.base, Length: uint64(len(image))}}}, n)
		for deadline := time.Now().Add(patience); !bytes.Equal(n.mem[:len(image)], image); n.poll() {
			if time.Now().After(deadline) {
				t.Fatal("the bytes have not landed")
			}
			time.Sleep(idle)
		}
		for range 100 {
			n.poll()
			time.Sleep(time.Millisecond)
		}
		silent := !slices.ContainsFunc(n.got, func(in Incoming) bool { return in.Kind == MessageReceived })
		p.do(order{Do: "poll"}, n)
		n.awaitMessage([]byte("landed"))
		if silent {
			return
		}
		t.Log("the post itself finished the write")
	}
	t.Fatal("every notification came without the writer's poll: F5 has changed")
}

// F10: metadata under a name that is loaded already is refused, so a name must contain the generation.
func TestNIXLFactNameIsTaken(t *testing.T) {
	a := openNode(t, newTransport(t, "nixl"), "a@1", 4096, 0)
	first := openNode(t, newTransport(t, "nixl"), "same@1", 4096, 0)
	second := openNode(t, newTransport(t, "nixl"), "same@1", 8192, 0)
	load := func(n *node) error {
		md, err := n.tr.(*NIXL).agent.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.tr.(*NIXL).agent.Load(md)
		return err
	}
	if err := load(first); err != nil {
		t.Fatal(err)
	}
	if err := load(second); err == nil {
		t.Error("another agent of the same name was loaded: F10 has changed")
	}
}
