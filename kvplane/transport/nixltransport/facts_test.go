package nixltransport

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// The protocol of docs/kvplane.md rests on how NIXL was measured to behave, over UCX and TCP between two processes. A
// NIXL that behaves otherwise fails here.

// peerVariable makes the test binary a peer process over NIXL.
const peerVariable = "PDROUTER_TEST_NIXL_PEER"

// TestNIXLPeerProcess is the peer process of the tests below; on its own it does nothing.
func TestNIXLPeerProcess(t *testing.T) {
	if os.Getenv(peerVariable) == "" {
		t.Skip("only as the peer process of another test")
	}
	transporttest.OpenNode(t, newNIXL(t), "peer@1", transporttest.PeerRoom, 0).Serve()
}

// overTCP starts an agent and a peer process, wired up, over UCX's TCP.
func overTCP(t *testing.T) (*transporttest.Node, *transporttest.Process) {
	t.Setenv("UCX_TLS", "tcp")
	n := transporttest.OpenNode(t, newNIXL(t), "test@1", transporttest.PeerRoom, 0)
	p := transporttest.StartProcess(t, "TestNIXLPeerProcess", peerVariable+"=1")
	if err := n.Transport.Connect(p.Record); err != nil {
		t.Fatal(err)
	}
	p.Do(transporttest.Order{Do: "connect", Record: n.Record}, n)
	if err := n.Transport.Write("peer@1", 1, []transfer.Range{{Local: n.Base, Remote: p.Base, Length: 1}}, []byte("wired")); err != nil {
		t.Fatal(err)
	}
	p.Await("message", n)
	if err := n.AwaitEnd(1); err != nil {
		t.Fatal(err)
	}
	p.Do(transporttest.Order{Do: "write", ID: 2, Record: n.Record, Ranges: []transfer.Range{{Local: p.Base, Remote: n.Base, Length: 1}}, Body: []byte("back")}, n)
	n.AwaitMessage([]byte("back"))
	p.Await("ended", n)
	return n, p
}

// F1: releasing a handle that is in progress is no abort; the bytes land all the same.
func TestNIXLFactReleaseIsNoAbort(t *testing.T) {
	n, p := overTCP(t)
	transporttest.Scribble(n.Mem, 1)
	p.Do(transporttest.Order{Do: "hold"}, n) // the peer takes in nothing, so the write cannot end
	whole := func(base uint64) nixl.Memory {
		return nixl.Memory{Regions: []nixl.Region{{Address: base, Length: transporttest.PeerRoom}}}
	}
	agent := n.Transport.(*Transport).agent
	tr, err := agent.NewTransfer(nixl.Write, whole(n.Base), whole(p.Base), "peer@1", []byte("never"))
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
	want := transporttest.Digest(n.Mem)
	if p.Do(transporttest.Order{Do: "digest"}, nil).Digest == want {
		t.Fatal("everything was there before the release")
	}
	p.Do(transporttest.Order{Do: "poll"}, n)
	for deadline := time.Now().Add(transporttest.Patience); p.Do(transporttest.Order{Do: "digest"}, n).Digest != want; {
		if time.Now().After(deadline) {
			t.Fatal("the bytes of a released handle did not land: F1 has changed")
		}
		for range 200 {
			n.Poll()
			time.Sleep(transporttest.Idle)
		}
	}
}

// F2, F4: after the writer's death the first full pass takes in what is left, the second nothing.
func TestNIXLFactDrain(t *testing.T) {
	n, p := overTCP(t)
	p.Do(transporttest.Order{Do: "fill", Seed: 3}, n)
	p.Do(transporttest.Order{Do: "flood", Record: n.Record, Ranges: []transfer.Range{{Local: p.Base, Remote: n.Base, Length: transporttest.PeerRoom}}}, nil)
	time.Sleep(50 * time.Millisecond) // the peer writes into the sockets' buffers; nobody polls here
	p.Kill()
	clear(n.Mem)
	n.Poll()
	after := bytes.Clone(n.Mem)
	landed := len(after) - bytes.Count(after, []byte{0})
	t.Logf("the first pass after the death took in about %d bytes", landed)
	for i := range 10 {
		n.Poll()
		if !bytes.Equal(after, n.Mem) {
			t.Fatalf("pass %d took in bytes: F4 has changed", i+2)
		}
		time.Sleep(time.Millisecond)
	}
}

// F5: the notification of a write is sent by the writer's own poll, after the bytes; without it they land in silence.
// The post drives UCX too and now and then finishes so small a write itself, so one silent write of ten is proof.
func TestNIXLFactWriterSendsNotification(t *testing.T) {
	n, p := overTCP(t)
	p.Do(transporttest.Order{Do: "fill", Seed: 4}, n)
	image := make([]byte, 4096)
	transporttest.Scribble(image, 4)
	for attempt := range uint64(10) {
		clear(n.Mem[:len(image)])
		n.Got = nil
		p.Do(transporttest.Order{Do: "write and hold", ID: 3 + attempt, Record: n.Record, Body: []byte("landed"),
			Ranges: []transfer.Range{{Local: p.Base, Remote: n.Base, Length: uint64(len(image))}}}, n)
		for deadline := time.Now().Add(transporttest.Patience); !bytes.Equal(n.Mem[:len(image)], image); n.Poll() {
			if time.Now().After(deadline) {
				t.Fatal("the bytes have not landed")
			}
			time.Sleep(transporttest.Idle)
		}
		for range 100 {
			n.Poll()
			time.Sleep(time.Millisecond)
		}
		silent := !slices.ContainsFunc(n.Got, func(in transport.Incoming) bool { return in.Kind == transport.MessageReceived })
		p.Do(transporttest.Order{Do: "poll"}, n)
		n.AwaitMessage([]byte("landed"))
		if silent {
			return
		}
		t.Log("the post itself finished the write")
	}
	t.Fatal("every notification came without the writer's poll: F5 has changed")
}

// F10: metadata under a name that is loaded already is refused, so a name must contain the generation.
func TestNIXLFactNameIsTaken(t *testing.T) {
	a := transporttest.OpenNode(t, newNIXL(t), "a@1", 4096, 0)
	first := transporttest.OpenNode(t, newNIXL(t), "same@1", 4096, 0)
	second := transporttest.OpenNode(t, newNIXL(t), "same@1", 8192, 0)
	load := func(n *transporttest.Node) error {
		md, err := n.Transport.(*Transport).agent.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.Transport.(*Transport).agent.Load(md)
		return err
	}
	if err := load(first); err != nil {
		t.Fatal(err)
	}
	if err := load(second); err == nil {
		t.Error("another agent of the same name was loaded: F10 has changed")
	}
}

// F2: over TCP bytes of a writer land long after its death, when the receiver polls: they have waited in the
// receiver's own sockets. So the proof of death alone frees nothing; a drain must follow.
func TestNIXLFactF2DeadWriterLands(t *testing.T) {
	n, p := overTCP(t)
	p.Do(transporttest.Order{Do: "fill", Seed: 6}, n)
	p.Do(transporttest.Order{Do: "flood", Record: n.Record, Ranges: []transfer.Range{{Local: p.Base, Remote: n.Base, Length: transporttest.PeerRoom}}}, nil)
	time.Sleep(200 * time.Millisecond) // the writer fills the sockets; nobody polls here
	p.Kill()
	time.Sleep(time.Second)
	clear(n.Mem)
	for range 2 {
		n.Poll()
	}
	landed := len(n.Mem) - bytes.Count(n.Mem, []byte{0})
	t.Logf("about %d bytes landed 1 s after their writer's death", landed)
	if landed == 0 {
		t.Fatal("nothing of the dead writer has landed: F2 has changed, or its sockets were empty")
	}
}
