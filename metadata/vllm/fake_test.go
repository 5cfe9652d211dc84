package vllm

import (
	"context"
	"io"
	"log"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/metadata"
)

// fakeSideChannel answers as an engine's does, from a ROUTER socket, and remembers every rank that it was asked for.
type fakeSideChannel struct {
	host string
	port int

	mu    sync.Mutex
	id    string
	tp    int
	asked []metadata.Rank // PP and TP
	raw   [][]byte        // the questions, to the byte
}

func newFakeSideChannel(t testing.TB, id string, pp, tp int) *fakeSideChannel {
	t.Helper()
	f := &fakeSideChannel{id: id, tp: tp}
	ctx, stop := context.WithCancel(context.Background())
	socket := zmq4.NewRouter(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	if err := socket.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	f.host, f.port = split(t, socket.Addr().String())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			m, err := socket.Recv()
			if err != nil {
				return
			}
			if len(m.Frames) != 3 {
				t.Errorf("a question of %d frames", len(m.Frames))
				return
			}
			rank, ok := f.note(t, m.Frames[2])
			if !ok || rank.PP >= pp || rank.TP >= f.tp {
				t.Errorf("asked for rank %v of %d and %d", rank, pp, f.tp)
				return // as an engine does: nobody is answered any more
			}
			clock, _ := msgpack.Marshal(12345.678)
			_ = socket.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, f.answer(rank), clock))
		}
	})
	t.Cleanup(func() {
		stop()
		_ = socket.Close()
		serving.Wait()
	})
	return f
}

func (f *fakeSideChannel) note(t testing.TB, question []byte) (metadata.Rank, bool) {
	var q []any
	if err := msgpack.Unmarshal(question, &q); err != nil || len(q) != 3 {
		t.Errorf("question %x: %v", question, err)
		return metadata.Rank{}, false
	}
	whole := func(v any) int {
		switch n := v.(type) {
		case int8:
			return int(n)
		case uint8:
			return int(n)
		case uint16:
			return int(n)
		}
		t.Errorf("question %x: %T is no index", question, v)
		return -1
	}
	rank := metadata.Rank{PP: whole(q[1]), TP: whole(q[2])}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, rank)
	f.raw = append(f.raw, question)
	return rank, rank.PP >= 0 && rank.TP >= 0
}

func (f *fakeSideChannel) answer(rank metadata.Rank) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return payload("digest", map[string]any{
		"engine_id": f.id, "agent_metadata": []byte("agent of " + rank.String()), "kv_caches_base_addr": []uint64{1 << 40, 2 << 40},
		"device_id": rank.TP, "num_blocks": 100, "block_lens": []int{4096, 4096}, "block_strides": []int{8192, 8192},
		"kv_cache_layout": "HND", "block_size": 32, "physical_blocks_per_logical_kv_block": 1, "something_newer": map[string]any{"a": []int{1}},
	})
}

func payload(compat string, agent map[string]any) []byte {
	inner, err := msgpack.Marshal(agent)
	if err != nil {
		panic(err)
	}
	b, err := msgpack.Marshal(map[string]any{"compatibility_hash": compat, "agent_metadata_bytes": inner, "newer": nil})
	if err != nil {
		panic(err)
	}
	return b
}

func split(t testing.TB, address string) (string, int) {
	t.Helper()
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// fakePeer accepts one connection after the other and hands each to serve.
func fakePeer(t testing.TB, serve func(net.Conn)) (string, int) {
	t.Helper()
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
			serving.Go(func() {
				defer nc.Close()
				serve(nc)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		serving.Wait()
	})
	return split(t, ln.Addr().String())
}
