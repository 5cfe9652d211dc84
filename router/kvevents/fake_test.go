package kvevents

import (
	"context"
	"encoding/binary"
	"io"
	"log"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// fakePublisher publishes batches as an engine does: a PUB socket that binds or connects, and a ROUTER socket for replays.
type fakePublisher struct {
	t       *testing.T
	stop    context.CancelFunc
	pub     zmq4.Socket
	replay  zmq4.Socket // nil: none
	serving sync.WaitGroup

	mu      sync.Mutex
	batches [][]byte // by number
	asked   []uint64 // where each replay began
	silent  bool     // replays are not answered
}

// newFakePublisher starts an engine's run, which has published these batches before. An endpoint with port 0 takes any; replays may be "".
func newFakePublisher(t *testing.T, endpoint, replays string, connect bool, batches ...[]byte) *fakePublisher {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	quiet := zmq4.WithLogger(log.New(io.Discard, "", 0))
	f := &fakePublisher{t: t, stop: stop, pub: zmq4.NewPub(ctx, quiet), batches: batches}
	open := f.pub.Listen
	if connect {
		open = f.pub.Dial
	}
	eventually(t, "the publisher has a socket", func() bool { return open(endpoint) == nil })
	if replays != "" {
		f.replay = zmq4.NewRouter(ctx, quiet)
		eventually(t, "the publisher has a socket for replays", func() bool { return f.replay.Listen(replays) == nil })
		f.serving.Go(f.serve)
	}
	t.Cleanup(f.close)
	return f
}

func (f *fakePublisher) endpoint() string { return "tcp://" + f.pub.Addr().String() }

func (f *fakePublisher) replays() string { return "tcp://" + f.replay.Addr().String() }

func (f *fakePublisher) close() {
	f.stop()
	_ = f.pub.Close()
	if f.replay != nil {
		_ = f.replay.Close()
	}
	f.serving.Wait()
}

// serve answers replays.
func (f *fakePublisher) serve() {
	for {
		m, err := f.replay.Recv()
		if err != nil {
			return
		}
		if len(m.Frames) != 3 || len(m.Frames[1]) != 0 {
			f.t.Errorf("asked %q; an engine answers a client, an empty frame and a number alone", m.Frames)
			continue
		}
		from := binary.BigEndian.Uint64(m.Frames[2])
		f.mu.Lock()
		f.asked = append(f.asked, from)
		batches, silent := f.batches, f.silent
		f.mu.Unlock()
		if silent {
			continue
		}
		for seq, b := range batches {
			if uint64(seq) >= from {
				_ = f.replay.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, []byte("topic"), binary.BigEndian.AppendUint64(nil, uint64(seq)), b))
			}
		}
		_ = f.replay.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, nil, []byte(strings.Repeat("\xff", 8)), nil))
	}
}

// keep makes a batch of events that is not published: it is lost on the way.
func (f *fakePublisher) keep(events ...any) (seq uint64, b []byte) {
	f.t.Helper()
	b, err := msgpack.Marshal([]any{float64(time.Now().UnixNano()) / 1e9, append([]any{}, events...), 0})
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, b)
	return uint64(len(f.batches) - 1), b
}

// publish makes a batch of events and sends it.
func (f *fakePublisher) publish(events ...any) {
	f.t.Helper()
	seq, b := f.keep(events...)
	f.send([]byte("topic"), binary.BigEndian.AppendUint64(nil, seq), b)
}

func (f *fakePublisher) send(frames ...[]byte) {
	f.t.Helper()
	if err := f.pub.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
		f.t.Error(err)
	}
}

// subscribed reports whether what is published is sent to somebody.
func (f *fakePublisher) subscribed() bool { return len(f.pub.(zmq4.Topics).Topics()) > 0 }

// stored is an event of n blocks of 4 tokens. Their names and tokens go on from first, after the block named parent; 0 for none.
func stored(first, n int, parent int) map[string]any {
	e := map[string]any{"type": "BlockStored", "parent_block_hash": nil, "block_size": 4, "medium": "GPU"}
	if parent != 0 {
		e["parent_block_hash"] = parent
	}
	var names []int
	for i := range n {
		names = append(names, first+i)
	}
	e["block_hashes"], e["token_ids"] = names, tokens(first, n)
	return e
}

func removed(name int) map[string]any {
	return map[string]any{"type": "BlockRemoved", "block_hashes": []int{name}, "medium": "GPU"}
}

// tokens are those of the n blocks from first on.
func tokens(first, n int) []uint32 {
	var out []uint32
	for i := range 4 * n {
		out = append(out, uint32(4*first+i))
	}
	return out
}

// eventually waits until a thing is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never so: %s", what)
		}
	}
}
