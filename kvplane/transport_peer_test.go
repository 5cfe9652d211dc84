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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/metadata"
)

// peerVariable makes the test binary a peer process: it holds the title of the link.
const peerVariable = "PDROUTER_TEST_TRANSPORT_PEER"

// order is what a test tells its peer process, one JSON value a line.
type order struct {
	Do     string // connect, fill, send, write, flood, hold, poll, digest, stats, idle; an agent: meet, offer, expect, await
	Record metadata.Record
	Ranges []Range
	ID     uint64
	Body   []byte
	Seed   uint64

	Transfer TransferID
	Peers    []metadata.Record
	Await    ReportKind
}

// report is what the peer process says: the answer to an order, or something taken in.
type report struct {
	Kind   string // ready, done, message, ended, lost
	Record metadata.Record
	Ranks  []metadata.Record // an agent's engine
	Base   uint64
	Body   []byte
	Digest string
	Stats  TCPStats
	CPU    time.Duration // idle: processor time spent
	ID     uint64
	Err    string
}

const (
	peerRoom = 32 << 20              // bytes of a peer process's memory
	idle     = 20 * time.Microsecond // between polls that brought nothing, for the other process
)

// TestTransportPeerProcess is the peer process of the tests below; on its own it does nothing.
func TestTransportPeerProcess(t *testing.T) {
	title := os.Getenv(peerVariable)
	if title == "" {
		t.Skip("only as the peer process of another test")
	}
	awaitWire(t)
	n := linkNamed(t, title).open(t, "peer@1", peerRoom, 0)
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
		n.store()
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
	case "stats":
		r.Stats = n.tr.(*TCP).Stats()
	case "digest":
		n.load()
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
	ranks  []metadata.Record
	base   uint64
	title  string // of the link; "" if it is no peer
}

// startPeer runs this test binary again as the peer at the other end of a link.
func startPeer(t *testing.T, title string) *process {
	t.Helper()
	if namespaced() {
		return startPeerAs(t, title, farAway)
	}
	return startPeerAs(t, title, func(*exec.Cmd) func(int) error { return nil })
}

// startPeerAs is startPeer with a process that is started differently: change returns what is to be done when the
// process runs, or nil.
func startPeerAs(t *testing.T, title string, change func(*exec.Cmd) func(pid int) error) *process {
	t.Helper()
	p := startProcessAs(t, "TestTransportPeerProcess", change, peerVariable+"="+title)
	p.title = title
	return p
}

// asNobody makes a process one of another user. Its binary may lie where that user has no way.
func asNobody(cmd *exec.Cmd) func(int) error {
	cmd.Path = "/proc/self/exe"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return nil
}

// startProcess runs one test of this binary in a process of its own, which waits for orders.
func startProcess(t *testing.T, test string, env ...string) *process {
	t.Helper()
	return startProcessAs(t, test, func(*exec.Cmd) func(int) error { return nil }, env...)
}

func startProcessAs(t *testing.T, test string, change func(*exec.Cmd) func(pid int) error, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), env...)
	started := change(cmd)
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
	if started != nil {
		if err := started(cmd.Process.Pid); err != nil {
			t.Error(err) // and the child will be missed below
		}
	}
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
	p.record, p.base, p.ranks = ready.Record, ready.Base, ready.Ranks
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
