package transporttest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// Order is what a test tells its peer process, one JSON value a line.
type Order struct {
	Do     string // connect, fill, send, write, flood, hold, poll, digest, stats, idle; an agent: meet, offer, expect, await
	Record metadata.Record
	Ranges []transfer.Range
	ID     uint64
	Body   []byte
	Seed   uint64

	Transfer transfer.ID
	Peers    []metadata.Record
	Await    uint8 // the kind of the report to wait for
}

// Report is what the peer process says: the answer to an order, or something taken in.
type Report struct {
	Kind   string // ready, done, message, ended, lost
	Record metadata.Record
	Ranks  []metadata.Record // an agent's engine
	Base   uint64
	Body   []byte
	Digest string
	Stats  json.RawMessage // whatever the transport counts
	CPU    time.Duration   // idle: processor time spent
	ID     uint64
	Err    string
}

const (
	PeerRoom = 32 << 20              // bytes of a peer process's memory
	Idle     = 20 * time.Microsecond // between polls that brought nothing, for the other process
)

// ProcessorTime returns what this process has used, user and system.
func ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Digest is the SHA-256 of bytes, in hexadecimal digits.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Process is a peer process as its test sees it.
type Process struct {
	t      *testing.T
	Cmd    *exec.Cmd
	In     *json.Encoder
	Out    chan Report
	kept   []Report
	Record metadata.Record
	Ranks  []metadata.Record
	Base   uint64
	Title  string // of the link; "" if it is no peer
}

// StartProcess runs one test of this binary in a process of its own, which waits for orders.
func StartProcess(t *testing.T, test string, env ...string) *Process {
	t.Helper()
	return StartProcessAs(t, test, func(*exec.Cmd) func(int) error { return nil }, env...)
}

// StartProcessAs is StartProcess with a process that is started differently: change returns what to do when it runs, or nil.
func StartProcessAs(t *testing.T, test string, change func(*exec.Cmd) func(pid int) error, env ...string) *Process {
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
	p := &Process{t: t, Cmd: cmd, In: json.NewEncoder(stdin), Out: make(chan Report, 4096)}
	go func() {
		defer close(p.Out)
		defer r.Close()
		in := json.NewDecoder(bufio.NewReader(r))
		for {
			var rep Report
			if in.Decode(&rep) != nil {
				return
			}
			p.Out <- rep
		}
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		p.Kill()
		if t.Failed() {
			t.Logf("the peer process said:\n%s", noise.String())
		}
	})
	ready := p.Await("ready", nil)
	p.Record, p.Base, p.Ranks = ready.Record, ready.Base, ready.Ranks
	return p
}

// Kill ends the process as kill -9 does and waits until it is gone. Safe to call twice.
func (p *Process) Kill() {
	if p.Cmd.ProcessState == nil {
		_ = p.Cmd.Process.Kill() // gone already is as good
		_ = p.Cmd.Wait()         // killed is what it is meant to say
		for range p.Out {
		}
	}
}

// Await returns the next report of a kind while pumping the node, keeping the others.
func (p *Process) Await(kind string, n *Node) Report {
	p.t.Helper()
	for i, r := range p.kept {
		if r.Kind == kind {
			p.kept = append(p.kept[:i:i], p.kept[i+1:]...)
			return r
		}
	}
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); {
		select {
		case r, open := <-p.Out:
			if !open {
				p.t.Fatalf("the peer process ended; want its %q", kind)
			}
			if r.Kind == kind {
				return r
			}
			p.kept = append(p.kept, r)
		default:
			if n != nil {
				n.Poll()
			}
			time.Sleep(Idle)
		}
	}
	p.t.Fatalf("the peer process: no %q within %v", kind, Patience)
	return Report{}
}

// Do gives an order and waits until it was obeyed, pumping the node.
func (p *Process) Do(o Order, n *Node) Report {
	p.t.Helper()
	if err := p.In.Encode(o); err != nil {
		p.t.Fatal(err)
	}
	r := p.Await("done", n)
	if r.Err != "" {
		p.t.Fatalf("%s: %s", o.Do, r.Err)
	}
	return r
}

// Stop stops the process and waits until none of its threads runs: one that has not noticed yet may still answer.
func (p *Process) Stop() {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(unix.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	tasks := fmt.Sprintf("%d/task", p.Cmd.Process.Pid)
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		threads, err := os.ReadDir("/proc/" + tasks)
		if err != nil {
			p.t.Fatal(err)
		}
		if !slices.ContainsFunc(threads, func(thread os.DirEntry) bool {
			stat, err := os.ReadFile("/proc/" + tasks + "/" + thread.Name() + "/stat")
			return err == nil && !bytes.Contains(stat, []byte(") T "))
		}) {
			return
		}
	}
	p.t.Fatal("the process does not stop")
}
