package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/policies"
	"pdrouter/policies/blocks"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// rig is a feed that runs, of engines that a test may change.
type rig struct {
	t     *testing.T
	feed  *Feed
	index *blocks.Index
	fleet atomic.Pointer[fleet.Fleet]
	cfg   config.Config
	log   logged
}

// logged is a log that tests read.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), what)
}

// engineAt is the entry of an engine that publishes there.
func engineAt(name, endpoint, replays string) config.Engine {
	return config.Engine{Name: name, URL: "http://127.0.0.1:1", KVEvents: config.KVEvents{Endpoint: endpoint, ReplayEndpoint: replays}}
}

func newRig(t *testing.T, engines ...config.Engine) *rig {
	t.Helper()
	r := &rig{t: t, index: blocks.New(10_000)}
	r.set(engines...)
	log := slog.New(slog.NewTextHandler(&r.log, nil))
	r.feed = New(log, r.index, background.NewTasks(log, nil), r.fleet.Load)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.feed.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if size, _ := r.index.Size(); size != 0 {
			t.Errorf("%d blocks of engines that are followed no more", size)
		}
	})
	return r
}

// set has the configuration have these engines.
func (r *rig) set(engines ...config.Engine) {
	r.t.Helper()
	was := r.fleet.Load()
	if was == nil {
		was = new(fleet.Fleet)
	}
	r.cfg = config.Config{Models: []config.Model{{Name: "m", Engines: engines}}}.WithDefaults()
	if len(engines) > 0 {
		if err := r.cfg.Validate(); err != nil {
			r.t.Fatal(err)
		}
	}
	registry, err := handshake.New(handshake.Config{}, func(context.Context, metadata.Pair) error { return nil })
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(registry.Close)
	f, err := fleet.New(r.cfg, fleet.Parts{Planner: policies.Default(), Handshakes: registry, Blocks: r.index, Log: slog.New(slog.DiscardHandler)}, was, config.NewSecrets(nil))
	if err != nil {
		r.t.Fatal(err)
	}
	f.Begin(r.cfg, was)
	r.fleet.Store(f)
	if r.feed != nil {
		r.feed.Update()
	}
}

// held is how many leading tokens of the n blocks from first on an engine has; below 0 if that is not known.
func (r *rig) held(engine string, first, n int) int {
	f := r.fleet.Load()
	var found blocks.Found
	f.FindBlocks(&blocks.Prompt{Model: "m", Tokens: tokens(first, n)}, &found)
	held, _, known := f.Engine(engine).Held(&found)
	if !known {
		return -1
	}
	return int(held[blocks.Device])
}

// want waits until the engine has so many tokens.
func (r *rig) want(engine string, first, n, tokens int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%s has %d tokens of %d blocks from %d on", engine, tokens, n, first), func() bool { return r.held(engine, first, n) == tokens })
}

func (r *rig) stats(engine string) Stats {
	for _, s := range r.feed.Stats() {
		if s.Engine == engine {
			return s
		}
	}
	return Stats{}
}

const anyPort = "tcp://127.0.0.1:0"

// TestFollow: a gateway that starts after the engine learns what it has from a replay, and then what it stores and removes.
func TestFollow(t *testing.T) {
	f := newFakePublisher(t, anyPort, anyPort, false)
	f.keep(stored(1, 3, 0))
	f.keep(stored(4, 1, 3))
	r := newRig(t, engineAt("a", f.endpoint(), f.replays()))
	r.want("a", 1, 4, 16)
	eventually(t, "the engine is subscribed to", f.subscribed)
	f.publish(stored(5, 1, 4), removed(4))
	r.want("a", 1, 5, 12)
	f.publish(map[string]any{"type": "AllBlocksCleared"})
	r.want("a", 1, 5, 0)
	f.publish(stored(7, 1, 99)) // after a block that nobody knows
	eventually(t, "an orphan is counted", func() bool { return r.stats("a").Orphans == 1 })
	s := r.stats("a")
	if !s.Connected || !s.Live || s.Events != 6 || s.DecodeErrors != 0 {
		t.Errorf("%+v; want 6 events of a live stream", s)
	}
	if r.log.count("kv events connected") != 1 || r.log.count("level=WARN") != 0 {
		t.Errorf("log:\n%s", r.log.b.String())
	}
}

// live returns a rig with one engine that is followed, and its publisher, whose first batch has been heard.
func live(t *testing.T, others ...config.Engine) (*rig, *fakePublisher) {
	t.Helper()
	f := newFakePublisher(t, anyPort, anyPort, false)
	r := newRig(t, append(others, engineAt("a", f.endpoint(), f.replays()))...)
	eventually(t, "the engine is subscribed to", f.subscribed)
	f.publish(stored(1, 3, 0))
	r.want("a", 1, 3, 12)
	return r, f
}

// TestGap: what a lost batch has said comes by a replay. A second loss soon after is not asked for: all is forgotten.
func TestGap(t *testing.T) {
	r, f := live(t)
	f.keep(removed(3))
	f.publish(stored(10, 2, 0))
	r.want("a", 10, 2, 8)
	r.want("a", 1, 3, 8)
	f.keep(removed(2))
	f.publish(stored(20, 1, 0))
	r.want("a", 20, 1, 4)
	r.want("a", 10, 2, 0)
	if s := r.stats("a"); s.Gaps != 2 || s.Replays != 2 || s.Resets != 1 || !s.Live {
		t.Errorf("%+v; want two gaps, a replay for the first beside that at the start, and one reset", s)
	}
}

// TestRestart: another run of an engine at the same address has nothing of what the one before had, whatever number it has reached.
func TestRestart(t *testing.T) {
	r, f := live(t)
	endpoint, replays := f.endpoint(), f.replays()
	n := len(f.batches)
	f.close()
	eventually(t, "nothing is known of the engine while it is gone", func() bool { return r.held("a", 1, 3) < 0 })
	other := newFakePublisher(t, endpoint, replays, false)
	for i := range n + 3 {
		other.keep(stored(50+i, 1, 0))
	}
	r.want("a", 50, 1, 4)
	r.want("a", 50+n+2, 1, 4)
	r.want("a", 1, 3, 0)
	if s := r.stats("a"); s.Resets != 1 {
		t.Errorf("%+v; want one reset", s)
	}
}

// TestSameRun: a connection that breaks costs nothing that is known, if the engine is the same run.
func TestSameRun(t *testing.T) {
	r, f := live(t)
	endpoint, replays := f.endpoint(), f.replays()
	f.publish(stored(4, 1, 3))
	r.want("a", 1, 4, 16)
	f.keep(stored(5, 1, 4))
	f.close()
	same := newFakePublisher(t, endpoint, replays, false, f.batches...)
	r.want("a", 1, 5, 20)
	same.mu.Lock()
	defer same.mu.Unlock()
	if s := r.stats("a"); s.Resets != 0 || same.asked[0] != 1 {
		t.Errorf("%+v, asked from %d on; want no reset, and to be asked from the last batch on that was heard, 1", s, same.asked)
	}
}

// TestListen: an engine that connects to the gateway is followed, and the next run of it that connects.
func TestListen(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	_ = ln.Close()
	r := newRig(t, engineAt("a", fmt.Sprintf("tcp://*:%d", port), ""))
	for first := 1; first < 4; first++ {
		f := newFakePublisher(t, fmt.Sprintf("tcp://127.0.0.1:%d", port), "", true)
		eventually(t, "its blocks are known", func() bool {
			f.publish(stored(first, 1, 0))
			return r.held("a", first, 1) == 4
		})
		if first > 1 && r.held("a", first-1, 1) != 0 {
			t.Error("the run before has blocks")
		}
		f.close()
		eventually(t, "a run that is gone, and has no replays, takes no room", func() bool { size, _ := r.index.Size(); return size == 0 })
	}
}

// TestReload: engines are followed, no more followed and followed elsewhere as the configuration changes, and remain the same engines.
func TestReload(t *testing.T) {
	f, other := newFakePublisher(t, anyPort, anyPort, false), newFakePublisher(t, anyPort, anyPort, false)
	f.keep(stored(1, 1, 0))
	other.keep(stored(2, 1, 0))
	r := newRig(t, engineAt("a", "", ""), engineAt("b", f.endpoint(), f.replays()))
	r.want("b", 1, 1, 4)
	a := r.fleet.Load().Engine("a")
	if got := r.held("a", 1, 1); got != -1 {
		t.Errorf("a has %d tokens; want it not followed", got)
	}
	r.set(engineAt("a", other.endpoint(), other.replays()), engineAt("b", f.endpoint(), f.replays()))
	r.want("a", 2, 1, 4)
	r.set(engineAt("a", f.endpoint(), f.replays()), engineAt("b", "", ""))
	r.want("a", 1, 1, 4)
	r.want("a", 2, 1, 0)
	r.want("b", 1, 1, -1)
	if r.fleet.Load().Engine("a") != a {
		t.Error("the engine was replaced as its kv_events changed")
	}
	r.set(engineAt("b", "", ""))
	eventually(t, "nothing is left of an engine that has left", func() bool { size, _ := r.index.Size(); return size == 0 && len(r.feed.Stats()) == 0 })
}

// TestRanks: each data-parallel rank publishes at a port of its own.
func TestRanks(t *testing.T) {
	var f [2]*fakePublisher
	for try := 0; ; try++ { // until two ports side by side are free
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := ln.Addr().(*net.TCPAddr).Port
		next, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1))
		_ = ln.Close()
		if err != nil && try < 20 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = next.Close()
		for i := range f {
			f[i] = newFakePublisher(t, fmt.Sprintf("tcp://127.0.0.1:%d", port+i), "", false)
		}
		break
	}
	e := engineAt("a", f[0].endpoint(), "")
	e.DataParallel = 2
	r := newRig(t, e)
	for i := range f {
		eventually(t, "its blocks are known", func() bool {
			f[i].publish(stored(1+i, 1, 0))
			return r.held(fmt.Sprint("a.dp", i), 1+i, 1) == 4
		})
	}
	if r.held("a.dp0", 2, 1) != 0 || r.held("a.dp1", 1, 1) != 0 {
		t.Error("a rank has the blocks of the other")
	}
}

// TestBadEngines: engines that stall in the middle of a message, do not answer, refuse, close at once, or send garbage cost the others
// nothing, have nothing, and fill neither the log nor the memory.
func TestBadEngines(t *testing.T) {
	var bad []config.Engine
	var closed atomic.Int64
	hello := "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL" + strings.Repeat("\x00", 48) + "\x04\x06\x05READY"
	batch := func(payload string) string {
		return fmt.Sprintf("\x01\x00\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00%c%s", len(payload), payload)
	}
	for name, says := range map[string]string{
		"mute":     "",
		"stranger": strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 10),
		"stalled":  hello + "\x01\x00\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x01\x00\x00\x00abc",
		"huge":     hello + "\x02\x7f\xff\xff\xff\xff\xff\xff\xff",
		"garbage":  hello + batch("garbage") + batch("\x92\x01\xdd\xff\xff\xff\xff"),
		"closing":  hello + "closes", // frames that are none
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				nc, err := ln.Accept()
				if err != nil {
					return
				}
				if name == "closing" {
					closed.Add(1)
				}
				serving.Go(func() {
					defer nc.Close()
					_, _ = io.WriteString(nc, says)
					if name != "closing" {
						_, _ = io.Copy(io.Discard, nc)
					}
				})
			}
		})
		t.Cleanup(func() {
			_ = ln.Close()
			serving.Wait()
		})
		bad = append(bad, engineAt(name, "tcp://"+ln.Addr().String(), ""))
	}
	silent := newFakePublisher(t, anyPort, anyPort, false)
	silent.silent = true
	bad = append(bad, engineAt("silent", silent.endpoint(), silent.replays()), engineAt("refusing", "tcp://127.0.0.1:1", ""))
	r, f := live(t, bad...)
	eventually(t, "garbage is counted", func() bool { return r.stats("garbage").DecodeErrors >= 1 })
	eventually(t, "connections are tried again", func() bool { return r.log.count("kv events lost") >= 4 })
	f.publish(stored(30, 2, 0))
	r.want("a", 30, 2, 8)
	eventually(t, "a connection that breaks is tried again and again", func() bool { return closed.Load() > 4 })
	for _, e := range bad {
		if got := r.held(e.Name, 30, 2); got > 0 {
			t.Errorf("%s has %d tokens", e.Name, got)
		}
		if n := r.log.count("engine=" + e.Name); n > 3 {
			t.Errorf("%s: %d lines in the log", e.Name, n)
		}
	}
	r.set(engineAt("a", f.endpoint(), f.replays()))
	eventually(t, "the bad engines are let go", func() bool { return len(r.feed.Stats()) == 1 })
	r.want("a", 30, 2, 8)
}

// TestUnreadableBatch: a batch that cannot be read may have said that blocks are gone, so all are forgotten.
func TestUnreadableBatch(t *testing.T) {
	r, f := live(t)
	f.mu.Lock()
	f.batches = append(f.batches, []byte("garbage"))
	seq := uint64(len(f.batches) - 1)
	f.mu.Unlock()
	f.send([]byte("topic"), binary.BigEndian.AppendUint64(nil, seq), []byte("garbage"))
	r.want("a", 1, 3, 0)
	f.publish(stored(40, 1, 0))
	r.want("a", 40, 1, 4)
	if s := r.stats("a"); s.DecodeErrors != 1 || !s.Connected {
		t.Errorf("%+v", s)
	}
	if r.log.count("kv events unreadable") != 1 {
		t.Error("it is not in the log once")
	}
}
