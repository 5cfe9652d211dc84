package reclaim

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// peerVariable makes the test binary a rank of an engine, whose agent has this name.
const peerVariable = "PDROUTER_TEST_RECLAIM_PEER"

// patience is how long a test waits for what must come. It is no assertion of time.
const patience = 60 * time.Second

func library(t *testing.T) *nixl.Library {
	t.Helper()
	l, err := nixl.Open("")
	if err != nil {
		t.Skip("SKIPPED, not run with real NIXL:", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestPeerProcess is the engine's side of the tests below; on its own it does nothing.
func TestPeerProcess(t *testing.T) {
	name := os.Getenv(peerVariable)
	if name == "" {
		t.Skip("only as the peer process of another test")
	}
	o, err := open(library(t), Config{}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	md, err := o.agent.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	out := os.NewFile(3, "said")
	fmt.Fprintf(out, "%s\n", hex.EncodeToString(md))
	for os.Getppid() != 1 {
		if err := o.agent.Notifications(func(_ string, b []byte) { fmt.Fprintf(out, "%s\n", b) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// rank is one rank's agent in a process of its own.
type rank struct {
	rec metadata.Record
	cmd *exec.Cmd

	mu   sync.Mutex
	said []string
}

func startRank(t *testing.T, engine, run string, tp int) *rank {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	k := &rank{cmd: exec.Command(os.Args[0], "-test.run=^TestPeerProcess$")}
	k.cmd.Env = append(os.Environ(), peerVariable+"="+engine)
	k.cmd.ExtraFiles = []*os.File{w}
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		t.Fatal("the peer process said nothing")
	}
	blob, err := hex.DecodeString(lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	k.rec = metadata.Record{EngineID: run, Transport: "nixl", Blob: blob, Rank: metadata.Rank{TP: tp}}
	k.rec.Engine = engine
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines.Scan() {
			k.mu.Lock()
			k.said = append(k.said, lines.Text())
			k.mu.Unlock()
		}
	}()
	t.Cleanup(func() { k.kill(); <-read; _ = r.Close() })
	return k
}

// kill ends the process as −9 does.
func (k *rank) kill() {
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
}

func (k *rank) got() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.said, " ")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// running returns an agent that runs until the test ends.
func running(t *testing.T, cfg Config) *Agent {
	t.Helper()
	a := New(library(t), cfg)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a
}

// TestNotify tells two ranks in processes of their own what their peer would have told them: each gets each message as
// often as it was to be sent. A run that is over is forgotten when another one of the engine is told something.
func TestNotify(t *testing.T) {
	a := running(t, Config{})
	k0, k1 := startRank(t, "decode-0", "run-1", 0), startRank(t, "decode-0", "run-1", 1)
	both := []metadata.Record{k0.rec, k1.rec}
	if err := a.Notify(t.Context(), both, "cmpl-7-0:2", 2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both have it twice", func() bool {
		return k0.got() == "cmpl-7-0:2 cmpl-7-0:2" && k1.got() == "cmpl-7-0:2 cmpl-7-0:2"
	})
	if s := a.Stats(); s.Sent != 4 || s.Failed != 0 || s.Peers != 2 {
		t.Errorf("%+v; want 4 sent, none failed, 2 peers", s)
	}

	k0.kill()
	k2 := startRank(t, "decode-0", "run-2", 0)
	if err := a.Notify(t.Context(), []metadata.Record{k2.rec}, "cmpl-8-0:1", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new run has it", func() bool { return k2.got() == "cmpl-8-0:1" })
	if s := a.Stats(); s.Peers != 2 {
		t.Errorf("%d peers; want 2, as the old run is forgotten", s.Peers)
	}
	a.Forget("decode-0")
	eventually(t, "the engine is forgotten", func() bool { return a.Stats().Peers == 0 })
	if err := a.Notify(t.Context(), []metadata.Record{k2.rec}, "cmpl-9-0:1", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is known again", func() bool { return k2.got() == "cmpl-8-0:1 cmpl-9-0:1" })
}

// TestNotifyTheDead has a rank killed: whether NIXL notices or not, the agent goes on, and others are told as before.
func TestNotifyTheDead(t *testing.T) {
	a := running(t, Config{})
	dead, alive := startRank(t, "prefill-0", "run", 0), startRank(t, "prefill-1", "run", 0)
	if err := a.Notify(t.Context(), []metadata.Record{dead.rec}, "x:1", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told", func() bool { return dead.got() == "x:1" })
	dead.kill()
	for range 3 {
		err := a.Notify(t.Context(), []metadata.Record{dead.rec}, "x:1", 1)
		t.Logf("told the dead: %v", err)
	}
	if err := a.Notify(t.Context(), []metadata.Record{alive.rec}, "y:1", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other one is told", func() bool { return alive.got() == "y:1" })
}

// TestNotifyRefusals: what cannot be sent is an error that is counted, and none of it holds up the next message.
func TestNotifyRefusals(t *testing.T) {
	a := running(t, Config{Peers: 1})
	k := startRank(t, "prefill-0", "run", 0)
	tcp, garbage := k.rec, k.rec
	tcp.Transport, tcp.Engine = "tcp", "a"
	garbage.Blob, garbage.Engine = []byte("garbage"), "b"
	for _, rec := range []metadata.Record{tcp, garbage} {
		if err := a.Notify(t.Context(), []metadata.Record{rec}, "x:1", 1); err == nil {
			t.Errorf("engine %s: no error", rec.Engine)
		}
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Notify(late, []metadata.Record{k.rec}, "late:1", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; want that nobody waits", err)
	}
	if err := a.Notify(t.Context(), []metadata.Record{k.rec}, "x:1", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told, and nothing that nobody waited for", func() bool { return k.got() == "x:1" })
	other := startRank(t, "prefill-1", "run", 0)
	if err := a.Notify(t.Context(), []metadata.Record{other.rec}, "y:1", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other one is told", func() bool { return other.got() == "y:1" })
	if s := a.Stats(); s.Failed != 3 || s.Peers != 1 {
		t.Errorf("%+v; want 3 failed and room for 1 peer", s)
	}
}

// TestQueueIsBounded: calls beyond the queue fail at once, those that wait end with their time, and all of them with the agent.
func TestQueueIsBounded(t *testing.T) {
	a := New(nil, Config{Queue: 1, Timeout: 10 * time.Millisecond})
	if err := a.Notify(t.Context(), nil, "x:1", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v; want that the time is over", err)
	}
	if err := a.Notify(t.Context(), nil, "x:1", 1); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v; want ErrBusy", err)
	}
	a.Forget("x") // does not block
	close(a.over)
	if err := a.Notify(t.Context(), nil, "x:1", 1); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v; want ErrClosed", err)
	}
	if s := a.Stats(); s.Failed != 3 {
		t.Errorf("%d failed; want 3", s.Failed)
	}
}

// TestIdle: an agent that has told somebody something uses no processor afterwards.
func TestIdle(t *testing.T) {
	a := running(t, Config{Settle: time.Second})
	k := startRank(t, "prefill-0", "run", 0)
	if err := a.Notify(t.Context(), []metadata.Record{k.rec}, "x:1", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told", func() bool { return k.got() == "x:1" })
	time.Sleep(2 * time.Second)
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	time.Sleep(2 * time.Second)
	percent := 100 * (used() - before).Seconds() / 2
	t.Logf("%.2f %% of a core", percent)
	if percent > 2 {
		t.Errorf("an idle agent uses %.2f %% of a core", percent)
	}
}
