package main_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// python returns the interpreter, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	py, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 is installed")
	}
	if b, err := exec.Command(py, "-c", "import ctypes, mmap").CombinedOutput(); err != nil {
		t.Skipf("python3 has no ctypes: %s", b)
	}
	return py
}

// process is an engine in a Python process of its own.
type process struct {
	t    *testing.T
	inc  metadata.Incarnation
	cmd  *exec.Cmd
	in   io.WriteCloser
	said chan line
	seen []line
}

// line is what it prints.
type line struct {
	Kind   string          `json:"kind"`
	ID     string          `json:"id"`
	Bytes  uint64          `json:"bytes"`
	Blocks [][]int32       `json:"blocks"`
	Text   string          `json:"text"`
	Error  string          `json:"error"`
	Answer json.RawMessage `json:"answer"`
}

func startProcess(t *testing.T, g *pdkvtest.Gateway, name string, role metadata.Role, transport string) *process {
	t.Helper()
	p := &process{t: t, inc: metadata.Incarnation{Engine: name, Generation: uint64(time.Now().UnixNano())}, said: make(chan line, 1024)}
	p.cmd = exec.Command(python(t), "testdata/pdkv.py", pdkvtest.Library(t))
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = in
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.said)
		for lines := bufio.NewReader(out); ; {
			b, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var l line
			if err := json.Unmarshal(b, &l); err != nil {
				l = line{Kind: "unreadable", Text: string(b)}
			}
			p.said <- l
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	p.send(map[string]any{
		"engine": name, "role": role, "generation": p.inc.Generation, "transport": transport, "url": g.URL, "token": g.Token(t, name, role), "keys": g.Keys,
	})
	p.until("published", "")
	return p
}

func (p *process) send(m map[string]any) {
	p.t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		p.t.Fatal(err)
	}
}

// until returns the first line of a kind about a transfer that was not asked for before.
func (p *process) until(kind, id string) line {
	p.t.Helper()
	deadline := time.After(time.Minute)
	for {
		for i, l := range p.seen {
			if l.Kind == kind && (id == "" || l.ID == id) {
				p.seen = slices.Delete(p.seen, i, i+1)
				return l
			}
		}
		select {
		case l, ok := <-p.said:
			if !ok {
				p.t.Fatalf("%s has ended before %q of %q", p.inc.Engine, kind, id)
			}
			p.seen = append(p.seen, l)
		case <-deadline:
			p.t.Fatalf("%s never said %q of %q; seen %+v", p.inc.Engine, kind, id, p.seen)
		}
	}
}

// do has the process obey.
func (p *process) do(what string, m map[string]any) json.RawMessage {
	p.t.Helper()
	m["do"] = what
	p.send(m)
	l := p.until("did", "")
	if l.Error != "" {
		p.t.Fatalf("%s: %s: %s", p.inc.Engine, what, l.Error)
	}
	return l.Answer
}

// order is an expectation or an offer.
func order(id kvplane.TransferID, peer *process, blocks []int32) map[string]any {
	return map[string]any{"id": id.String(), "peer": peer.inc.Engine, "generation": peer.inc.Generation, "blocks": blocks}
}

// admit has both processes take their legs of a new transfer.
func admit(t *testing.T, g *pdkvtest.Gateway, p, d *process) kvplane.TransferID {
	t.Helper()
	id := kvplane.NewTransferID()
	both := g.Ticket(t, id, p.inc, d.inc)
	p.do("admit", map[string]any{"leg": 1, "id": id.String(), "peer": d.inc.Engine, "generation": d.inc.Generation, "ticket": both})
	d.do("admit", map[string]any{"leg": 2, "id": id.String(), "peer": p.inc.Engine, "generation": p.inc.Generation, "ticket": both})
	return id
}

// handOff moves blocks from one process to the other and compares them.
func handOff(t *testing.T, g *pdkvtest.Gateway, p, d *process) {
	t.Helper()
	id := admit(t, g, p, d)
	from, to := []int32{9, 200, 3, 4}, []int32{0, 77, 78, 255}
	d.do("expect", order(id, p, to))
	p.do("offer", order(id, d, from))
	d.until("released", id.String())
	if got, want := p.until("freed", id.String()).Bytes, uint64(4*2*2*64*16); got != want {
		t.Errorf("%d bytes written; want %d", got, want)
	}
	got, want := d.do("read", map[string]any{"blocks": to}), p.do("read", map[string]any{"blocks": from})
	if len(got) < 1000 || string(got) != string(want) {
		t.Errorf("the blocks differ")
	}
}

// TestProcesses: engines in two Python processes hand over; prefill killed −9 while decode waits ends in a failure with all
// blocks and then in their release, and its next run serves.
func TestProcesses(t *testing.T) {
	for _, transport := range []string{"tcp", "nixl"} {
		t.Run(transport, func(t *testing.T) {
			if _, err := nixl.Find(); err != nil && transport == "nixl" {
				t.Skip(err)
			}
			g := pdkvtest.NewGateway(t)
			p, d := startProcess(t, g, "prefill-0", metadata.Prefill, transport), startProcess(t, g, "decode-0", metadata.Decode, transport)
			handOff(t, g, p, d)

			id := admit(t, g, p, d)
			d.do("expect", order(id, p, []int32{7, 5}))
			d.do("cancel", map[string]any{"id": id.String()})
			d.until("closed", id.String())

			id = admit(t, g, p, d)
			d.do("expect", order(id, p, []int32{7, 5}))
			if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = p.cmd.Wait()
			if x := d.until("failed", id.String()); len(x.Blocks) != 1 || !slices.Equal(x.Blocks[0], []int32{5, 7}) || x.Text == "" {
				t.Errorf("failed: %+v", x)
			}
			d.until("closed", id.String())
			var s struct {
				Agent agent.Status `json:"agent"`
			}
			if err := json.Unmarshal(d.do("status", map[string]any{}), &s); err != nil {
				t.Fatal(err)
			}
			if s.Agent.PinnedBlocks != 0 || len(s.Agent.Quarantined) != 0 || s.Agent.Expectations > 1 {
				t.Errorf("after the death: %+v", s.Agent)
			}

			p = startProcess(t, g, "prefill-0", metadata.Prefill, transport)
			handOff(t, g, p, d)
			for _, x := range []*process{p, d} {
				if err := x.in.Close(); err != nil {
					t.Fatal(err)
				}
				if err := x.cmd.Wait(); err != nil {
					t.Errorf("%s: %v", x.inc.Engine, err)
				}
			}
		})
	}
}

// TestPython runs the scripts of testdata: a Python process keeps its signals, faulthandler and forks, and no argument
// that a caller can get wrong ends it.
func TestPython(t *testing.T) {
	transport := "tcp"
	if _, err := nixl.Find(); err == nil {
		transport = "nixl"
	}
	for _, script := range []string{"signals", "fork", "fuzz"} {
		t.Run(script, func(t *testing.T) {
			args := []string{"testdata/" + script + ".py", pdkvtest.Library(t)}
			if script == "signals" {
				args = append(args, transport)
			}
			if got := run(t, python(t), args...); !strings.HasSuffix(got, "ok\n") {
				t.Errorf("got %s", got)
			}
		})
	}
}

// TestTitle: a process that has set its title keeps its environment.
func TestTitle(t *testing.T) {
	at, err := nixl.Find()
	if err != nil {
		t.Skip(err)
	}
	t.Setenv(nixl.LibraryVariable, at)
	t.Setenv("UCX_TCP_CONN_NB", "told")
	os.Unsetenv("UCX_HANDLE_ERRORS")
	if got := run(t, python(t), "testdata/title.py", pdkvtest.Library(t)); !strings.HasSuffix(got, "ok\n") {
		t.Errorf("got %s", got)
	}
}
