package kvplane

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/metadata"
)

// peerVariable makes the test binary a peer process: it names the transport.
const peerVariable = "PDROUTER_TEST_TRANSPORT_PEER"

// order is what a test tells its peer process, one JSON value a line.
type order struct {
	Do     string // connect, fill, send, write, flood, hold, poll, digest, idle
	Record metadata.Record
	Ranges []Range
	ID     uint64
	Body   []byte
	Seed   uint64
}

// report is what the peer process says: the answer to an order, or something taken in.
type report struct {
	Kind   string // ready, done, message, ended, lost
	Record metadata.Record
	Base   uint64
	Body   []byte
	Digest string
	CPU    time.Duration // idle: processor time spent
	ID     uint64
	Err    string
}

const (
	peerRoom = 64 << 20              // bytes of a peer process's memory
	idle     = 20 * time.Microsecond // between polls that brought nothing, for the other process
)

// TestTransportPeerProcess is the peer process of the tests below; on its own it does nothing.
func TestTransportPeerProcess(t *testing.T) {
	name := os.Getenv(peerVariable)
	if name == "" {
		t.Skip("only as the peer process of another test")
	}
	n := openNode(t, newTransport(t, name), "peer@1", peerRoom, 0)
	out := json.NewEncoder(os.NewFile(3, "reports"))
	say := func(r report) {
		if err := out.Encode(r); err != nil {
			os.Exit(1) // the test is gone
		}
	}
	orders := make(chan order)
	go func() {
		defer close(orders)
		in := json.NewDecoder(os.Stdin)
		for {
			var o order
			if in.Decode(&o) != nil {
				return
			}
			orders <- o
		}
	}()
	say(report{Kind: "ready", Record: n.record, Base: n.base})
	held, flood := false, order{}
	for {
		select {
		case o, open := <-orders:
			if !open {
				return
			}
			held, flood = o.obey(t, n, say, held, flood)
		default:
		}
		if held {
			time.Sleep(time.Millisecond)
			continue
		}
		n.poll()
		for _, in := range n.got {
			r := report{Body: in.Body, ID: in.ID}
			if in.Err != nil {
				r.Err = in.Err.Error()
			}
			switch in.Kind {
			case MessageReceived:
				r.Kind = "message"
			case WriteEnded:
				r.Kind = "ended"
			case PeerLost:
				r.Kind = "lost"
			}
			if in.Kind == WriteEnded && flood.Do != "" {
				if err := n.tr.Write(flood.Record.Agent, 0, flood.Ranges, nil); err != nil {
					flood = order{}
				}
				continue
			}
			say(r)
		}
		if len(n.got) == 0 {
			time.Sleep(idle)
		}
		n.got = n.got[:0]
	}
}

// obey does one order in the peer process.
func (o order) obey(t *testing.T, n *node, say func(report), held bool, flood order) (bool, order) {
	r := report{Kind: "done"}
	var err error
	switch o.Do {
	case "connect":
		err = n.tr.Connect(o.Record)
	case "fill":
		scribble(n.mem, o.Seed)
	case "send":
		err = n.tr.Send(o.Record.Agent, o.Body)
	case "write":
		err = n.tr.Write(o.Record.Agent, o.ID, o.Ranges, o.Body)
	case "flood": // write again and again, until killed
		flood = o
		for range 4 {
			err = errors.Join(err, n.tr.Write(o.Record.Agent, 0, o.Ranges, nil))
		}
	case "hold": // stop polling
		held = true
	case "write and hold": // not one poll after the post
		held = true
		err = n.tr.Write(o.Record.Agent, o.ID, o.Ranges, o.Body)
	case "idle": // as an owner with nothing outstanding: asleep until Wake
		before := processorTime(t)
		for end := time.After(3 * time.Second); end != nil; {
			select {
			case <-n.tr.Wake():
				n.poll()
			case <-end:
				end = nil
			}
		}
		r.CPU = processorTime(t) - before
	case "poll":
		held = false
	case "digest":
		r.Digest = digest(n.mem)
	default:
		err = fmt.Errorf("no such order: %s", o.Do)
	}
	if err != nil {
		r.Err = err.Error()
	}
	say(r)
	return held, flood
}

// processorTime returns what this process has used, user and system.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// process is a peer process as its test sees it.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     *json.Encoder
	out    chan report
	kept   []report
	record metadata.Record
	base   uint64
}

// startPeer runs this test binary again as a peer of the transport.
func startPeer(t *testing.T, name string, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestTransportPeerProcess$", "-test.timeout=5m")
	cmd.Env = append(append(os.Environ(), peerVariable+"="+name), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var noise bytes.Buffer
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{w}, &noise, &noise
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close() // the child has its own
	p := &process{t: t, cmd: cmd, in: json.NewEncoder(stdin), out: make(chan report, 4096)}
	go func() {
		defer close(p.out)
		defer r.Close()
		in := json.NewDecoder(bufio.NewReader(r))
		for {
			var rep report
			if in.Decode(&rep) != nil {
				return
			}
			p.out <- rep
		}
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		p.kill()
		if t.Failed() {
			t.Logf("the peer process said:\n%s", noise.String())
		}
	})
	ready := p.await("ready", nil)
	p.record, p.base = ready.Record, ready.Base
	return p
}

// kill ends the process as kill -9 does and waits until it is gone. Safe to call twice.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill() // gone already is as good
		_ = p.cmd.Wait()         // killed is what it is meant to say
		for range p.out {
		}
	}
}

// await returns the next report of a kind while pumping the node, keeping the others.
func (p *process) await(kind string, n *node) report {
	p.t.Helper()
	for i, r := range p.kept {
		if r.Kind == kind {
			p.kept = append(p.kept[:i:i], p.kept[i+1:]...)
			return r
		}
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		select {
		case r, open := <-p.out:
			if !open {
				p.t.Fatalf("the peer process ended; want its %q", kind)
			}
			if r.Kind == kind {
				return r
			}
			p.kept = append(p.kept, r)
		default:
			if n != nil {
				n.poll()
			}
			time.Sleep(idle)
		}
	}
	p.t.Fatalf("the peer process: no %q within %v", kind, patience)
	return report{}
}

// do gives an order and waits until it was obeyed, pumping the node.
func (p *process) do(o order, n *node) report {
	p.t.Helper()
	if err := p.in.Encode(o); err != nil {
		p.t.Fatal(err)
	}
	r := p.await("done", n)
	if r.Err != "" {
		p.t.Fatalf("%s: %s", o.Do, r.Err)
	}
	return r
}

// processes runs a test over every transport between two processes, NIXL over shared memory and over TCP.
func processes(t *testing.T, test func(t *testing.T, n *node, p *process)) {
	for _, c := range links {
		t.Run(c.title, func(t *testing.T) { c.run(t, test) })
	}
}

// link is a way between two processes.
type link struct{ title, name, tls string }

var links = []link{{"tcp", "tcp", ""}, {"nixl", "nixl", ""}, {"nixl-tcp", "nixl", "tcp"}}

// run opens an agent and a peer process, connected both ways.
func (c link) run(t *testing.T, test func(t *testing.T, n *node, p *process)) {
	t.Helper()
	if c.tls != "" {
		t.Setenv("UCX_TLS", c.tls)
	}
	n := openNode(t, newTransport(t, c.name), "test@1", peerRoom, 0)
	p := startPeer(t, c.name)
	if err := n.tr.Connect(p.record); err != nil {
		t.Fatal(err)
	}
	p.do(order{Do: "connect", Record: n.record}, n)
	test(t, n, p)
}

func TestProcessesWrite(t *testing.T) {
	processes(t, func(t *testing.T, n *node, p *process) {
		image := make([]byte, peerRoom) // what the peer's memory must be
		for i, size := range []int{1, 4097, 3 << 20, 64 << 20} {
			at := (peerRoom - size) / 2
			scribble(n.mem[at:at+size], uint64(i))
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
		if !bytes.Equal(n.mem, image) {
			t.Error("memory differs when the notification has come")
		}
		if r := p.await("ended", n); r.ID != 9 || r.Err != "" {
			t.Errorf("the peer's write ended as %+v", r)
		}
	})
}

// TestProcessReceiverKilled kills -9 the receiver in mid-write: each write ends once, the last ones in an error, the
// peer is lost, and closing leaves no goroutine and no descriptor behind.
func TestProcessReceiverKilled(t *testing.T) {
	processes(t, func(t *testing.T, n *node, p *process) {
		const size = 4 << 20
		posted, ended, failed := uint64(0), uint64(0), 0
		var lost error
		post := func() {
			if err := n.tr.Write("peer@1", posted, []Range{{n.base, p.base, size}}, []byte("x")); err == nil {
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
		for posted < ended+4 {
			post()
		}
		p.kill()
		for deadline := time.Now().Add(patience); ended < posted || lost == nil; {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d writes have ended, the peer is lost: %v", ended, posted, lost)
			}
			take()
			if lost == nil {
				post() // NIXL learns of a death by a write
			}
		}
		if failed == 0 {
			t.Error("no write failed")
		}
		if err := n.tr.Write("peer@1", 1, []Range{{n.base, p.base, 1}}, nil); !errors.Is(err, ErrPeerLost) {
			t.Errorf("write to the dead: %v; want ErrPeerLost", err)
		}
		n.tr.Disconnect("peer@1")
		if err := n.tr.Write("peer@1", 1, []Range{{n.base, p.base, 1}}, nil); !errors.Is(err, ErrUnknownPeer) {
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
			tcp.Fence("peer@1")
		}
		n.poll()
		n.poll()
		clear(n.mem)
		for range 20 {
			n.poll()
			time.Sleep(time.Millisecond)
		}
		if !bytes.Equal(n.mem, make([]byte, peerRoom)) {
			t.Error("bytes landed after the drain")
		}
	})
}

// TestTransportLeavesNothing: after a peer was killed in mid-write and everything is closed, the process has as many
// goroutines and descriptors as before.
func TestTransportLeavesNothing(t *testing.T) {
	for _, name := range []string{"tcp", "nixl"} {
		t.Run(name, func(t *testing.T) {
			round := func() {
				n := openNode(t, newTransport(t, name), "test@1", peerRoom, 0)
				p := startPeer(t, name)
				if err := n.tr.Connect(p.record); err != nil {
					t.Fatal(err)
				}
				if err := n.tr.Write("peer@1", 1, []Range{{n.base, p.base, 4096}}, nil); err != nil {
					t.Fatal(err)
				}
				if err := n.awaitEnd(1); err != nil {
					t.Fatal(err)
				}
				for id := range uint64(8) {
					if err := n.tr.Write("peer@1", 10+id, []Range{{n.base, p.base, peerRoom}}, []byte("x")); err != nil {
						t.Fatal(err)
					}
				}
				p.kill()
				for id := range uint64(8) {
					_ = n.awaitEnd(10 + id) // shared memory may have been fast enough
				}
				if err := n.tr.Close(); err != nil {
					t.Fatal(err)
				}
			}
			round() // what a library makes once stays
			var goroutines, descriptors int
			for i := range 3 {
				round()
				runtime.GC() // os.File and exec.Cmd close some by finalizers
				settled := func() bool { return goroutines == 0 || runtime.NumGoroutine() <= goroutines }
				for deadline := time.Now().Add(patience); !settled() && time.Now().Before(deadline); {
					time.Sleep(time.Millisecond)
				}
				if i == 0 {
					goroutines, descriptors = runtime.NumGoroutine(), openDescriptors(t)
					continue
				}
				if g, d := runtime.NumGoroutine(), openDescriptors(t); g > goroutines || d > descriptors {
					t.Errorf("round %d: %d goroutines and %d descriptors; the round before left %d and %d", i, g, d, goroutines, descriptors)
				}
			}
		})
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
		if _, err := openNIXL(); err != nil && c.name == "nixl" {
			t.Log("SKIPPED, not run with real NIXL:", err)
			continue
		}
		c.run(t, func(t *testing.T, n *node, p *process) {
			if err := n.tr.Write("peer@1", 1, []Range{{n.base, p.base, 4096}}, []byte("wired")); err != nil {
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
			if err := n.tr.Write("peer@1", id, []Range{{n.base, p.base, peerRoom}}, []byte("x")); err != nil {
				t.Fatal(err)
			}
			if id == 0 {
				if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 500 {
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

// TestProcessPeerReplaced: after a peer's death, Disconnect and the Connect of its successor make everything work.
func TestProcessPeerReplaced(t *testing.T) {
	processes(t, func(t *testing.T, n *node, p *process) {
		p.kill()
		for deadline, lost := time.Now().Add(patience), false; !lost; {
			if time.Now().After(deadline) {
				t.Fatal("the peer was not lost")
			}
			_ = n.tr.Write("peer@1", 1, []Range{{n.base, p.base, 4096}}, nil) // NIXL learns of a death by a write
			n.poll()
			for _, in := range n.got {
				lost = lost || in.Kind == PeerLost
			}
			time.Sleep(idle)
		}
		n.tr.Disconnect("peer@1")
		n.poll()
		n.got = nil
		next := startPeer(t, n.tr.Name())
		if err := n.tr.Connect(next.record); err != nil {
			t.Fatal(err)
		}
		next.do(order{Do: "connect", Record: n.record}, n)
		scribble(n.mem[:4096], 8)
		if err := n.tr.Write("peer@1", 2, []Range{{n.base, next.base, 4096}}, []byte("again")); err != nil {
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
