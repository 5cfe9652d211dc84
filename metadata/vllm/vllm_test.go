package vllm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
)

func reported(t testing.TB, f *fakeSideChannel, pp, tp int) Engine {
	t.Helper()
	e, err := Reported("id", f.host, f.port, metadata.Rank{DP: 1, PP: pp, TP: tp})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestAllRanks asks a side channel for what an engine has said that it has, and for nothing else.
func TestAllRanks(t *testing.T) {
	f := newFakeSideChannel(t, "id", 2, 2)
	recs, err := reported(t, f, 2, 2).All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []metadata.Rank{{}, {TP: 1}, {PP: 1}, {PP: 1, TP: 1}}
	if diff := cmp.Diff(want, f.asked); diff != "" {
		t.Errorf("asked: -want +got\n%s", diff)
	}
	if len(recs) != len(want) {
		t.Fatalf("%d records; want %d", len(recs), len(want))
	}
	for i, rec := range recs {
		region := func(n int) metadata.Region {
			return metadata.Region{Layer: n, Planes: 1, Base: uint64(n+1) << 40, Length: 99*8192 + 4096, Blocks: 100, BlockStride: 8192, Device: want[i].TP}
		}
		expected := metadata.Record{
			Version: metadata.RecordVersion, Rank: want[i], Size: metadata.Rank{DP: 1, PP: 2, TP: 2}, Compatibility: "digest", Transport: "nixl",
			Blob: []byte("agent of " + want[i].String()), Side: recs[0].Side, EngineID: "id",
			Layout: metadata.Layout{BlockTokens: 32, Physical: 1, Order: metadata.HeadsFirst, Regions: []metadata.Region{region(0), region(1)}},
		}
		if diff := cmp.Diff(expected, rec); diff != "" {
			t.Errorf("record %d: -want +got\n%s", i, diff)
		}
	}
	if host, port := split(t, recs[0].Side); host != f.host || port != f.port {
		t.Errorf("side channel is %s", recs[0].Side)
	}
}

// TestQuestion compares the bytes with those that an engine's own client sends.
func TestQuestion(t *testing.T) {
	for _, row := range []struct {
		rank metadata.Rank
		want string
	}{
		{metadata.Rank{}, "\x93\xc4\x0cget_meta_msg\x00\x00"},
		{metadata.Rank{PP: 1, TP: 127}, "\x93\xc4\x0cget_meta_msg\x01\x7f"},
		{metadata.Rank{PP: 128, TP: 1023}, "\x93\xc4\x0cget_meta_msg\xcc\x80\xcd\x03\xff"},
	} {
		if got := string(question(row.rank)); got != row.want {
			t.Errorf("rank %v: %q; want %q", row.rank, got, row.want)
		}
	}
	f := newFakeSideChannel(t, "id", 1, 1)
	if _, err := reported(t, f, 1, 1).First(t.Context()); err != nil || len(f.raw) != 1 || !bytes.Equal(f.raw[0], question(metadata.Rank{})) {
		t.Errorf("%v: %q", err, f.raw)
	}
}

// TestDataParallelRanks: each listens at a port of its own.
func TestDataParallelRanks(t *testing.T) {
	e := Engine{id: "id", host: "h", port: 5600, size: metadata.Rank{DP: 3, PP: 1, TP: 1}}
	if got := e.address(2); got != "h:5602" {
		t.Errorf("rank 2 listens at %s", got)
	}
}

// TestFault46OnlyRanksThatExist: there is no way to ask for a rank that the engine has not said it has, not even when
// another engine listens where it did.
func TestFault46OnlyRanksThatExist(t *testing.T) {
	f := newFakeSideChannel(t, "another start", 1, 1) // smaller than the one that was known; it ends the test if asked for more
	_, err := reported(t, f, 2, 4).All(t.Context())
	var moved *MovedError
	if !errors.As(err, &moved) || moved.Is != "another start" {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]metadata.Rank{{}}, f.asked); diff != "" {
		t.Errorf("asked: -want +got\n%s", diff)
	}
	unknown, err := Unknown(f.host, f.port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unknown.All(t.Context()); err == nil || len(f.asked) != 1 {
		t.Errorf("an engine that has not said its size was asked for all ranks: %v", err)
	}
	if rec, err := unknown.First(t.Context()); err != nil || rec.EngineID != "another start" {
		t.Errorf("%+v, %v", rec, err)
	}
	for _, e := range []Engine{{}, {id: "id", host: f.host}} {
		if _, err := e.First(t.Context()); err == nil {
			t.Errorf("%+v was asked", e)
		}
	}
	for _, size := range []metadata.Rank{{}, {DP: 1, PP: 1}, {DP: 1, PP: -1, TP: -1}, {DP: 1, PP: 1, TP: 1 << 40}, {DP: 1, PP: 64, TP: 64}} {
		if e, err := Reported("id", f.host, f.port, size); err == nil {
			t.Errorf("size %v was taken: %+v", size, e)
		}
	}
}

// TestFault46PeersThatDoNotAnswer cost no more than the deadline, whatever they send, and leave nothing behind.
func TestFault46PeersThatDoNotAnswer(t *testing.T) {
	before := runtime.NumGoroutine()
	ready := "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
	hello := "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL" + strings.Repeat("\x00", 48) // ZMTP 3.0 without security
	for _, row := range []struct{ name, says, want string }{
		{"nothing", "", ""},
		{"not ZMTP", strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 4), "does not speak ZMTP"},
		{"an old version", "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x01" + hello[11:], "ZMTP 1"},
		{"a secured peer", hello[:12] + "CURVE" + hello[17:], `mechanism "CURVE`},
		{"an error", hello + "\x04\x06\x05ERROR", "answers"},
		{"only a greeting", hello, ""},
		{"no answer", hello + ready, ""},
		{"half a frame", hello + ready + "\x01\x00\x00\x20abc", ""},
		{"a frame of 2^62 bytes", hello + ready + "\x02\x40\x00\x00\x00\x00\x00\x00\x00", "4611686018427387904 bytes"},
		{"a command of 2^62 bytes", hello + "\x06\x40\x00\x00\x00\x00\x00\x00\x00", "4611686018427387904 bytes"},
		{"a peer of no type, and an empty answer", hello + "\x04\x06\x05READY" + "\x01\x00\x00\x00", "ends in the middle"},
		{"frames without end", hello + ready + strings.Repeat("\x01\x00", 100), "more than 16 frames"},
		{"reserved flags", hello + ready + "\xf0\x00", "flags 0xf0"},
		{"no delimiter", hello + ready + "\x01\x01a\x00\x01b", "no answer"},
		{"no msgpack", hello + ready + "\x01\x00\x00\x05hello", "rank 0/0/0"},
		{"deep msgpack", hello + ready + "\x01\x00\x00\x40" + strings.Repeat("\x91", 64), "nested deeper"},
		{"a huge array", hello + ready + "\x01\x00\x00\x05\xdd\xff\xff\xff\xff", "4294967295 elements"},
		{"a map of nothing", hello + ready + "\x01\x00\x00\x01\x80", "has no compatibility_hash"},
	} {
		t.Run(row.name, func(t *testing.T) {
			left := make(chan struct{}, 1)
			host, port := fakePeer(t, func(nc net.Conn) {
				_, _ = io.WriteString(nc, row.says)
				_, _ = io.Copy(io.Discard, nc) // until the other side closes
				left <- struct{}{}
			})
			e, err := Unknown(host, port)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err = e.First(ctx)
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v; want %q", err, row.want)
			}
			if row.want == "" && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v; want the deadline's", err)
			}
			<-left
		})
	}
	settled(t, before)
}

// TestCancel: an ask ends with its context, and its socket with it.
func TestCancel(t *testing.T) {
	before := runtime.NumGoroutine()
	accepted, left := make(chan struct{}), make(chan struct{})
	host, port := fakePeer(t, func(nc net.Conn) {
		close(accepted)
		_, _ = io.Copy(io.Discard, nc)
		close(left)
	})
	e, _ := Unknown(host, port)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-accepted; cancel() }()
	if _, err := e.First(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-left
	settled(t, before+1) // the peer's listener
}

// settled waits until no more goroutines run than before.
func settled(t *testing.T, before int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines; want %d\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// TestNothingStays asks many times: each ask leaves neither a goroutine nor a socket.
func TestNothingStays(t *testing.T) {
	f := newFakeSideChannel(t, "id", 1, 2)
	e := reported(t, f, 1, 2)
	sockets := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		n := 0
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	if _, err := e.All(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, open := runtime.NumGoroutine(), sockets()
	for range 50 {
		if _, err := e.All(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	settled(t, before)
	for end := time.Now().Add(10 * time.Second); sockets() > open; time.Sleep(time.Millisecond) { // the fake closes its side in its own time
		if time.Now().After(end) {
			t.Fatalf("%d sockets are open; before there were %d", sockets(), open)
		}
	}
}

// TestNobodyListens fails at once.
func TestNobodyListens(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port := split(t, ln.Addr().String())
	_ = ln.Close()
	e, _ := Unknown(host, port)
	if _, err := e.First(t.Context()); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
