package wire_test

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"pdrouter/kvplane"
	"pdrouter/kvplane/wire"
	"pdrouter/metadata"
)

var messages = []*wire.Message{
	{Kind: wire.KindWriteRequest, LowWater: 3, Seq: 4, ID: kvplane.TransferID{1, 2}, Need: [2]int{8, 100}, Wait: 1500 * time.Millisecond,
		Groups: []kvplane.BlockList{{First: 8, Blocks: []int32{1, 2, 3, 9, 7, 8, 0, 1<<31 - 1}}, {First: 0}, {First: 96, Blocks: []int32{5}}}},
	{Kind: wire.KindWriteRequest, Seq: 1, ID: kvplane.TransferID{1}},
	{Kind: wire.KindStatus, Seq: 9, Status: wire.Status{State: wire.NotBegun, Reason: kvplane.Short, Detail: "tokens: 1 on P, 2 on D"}},
	{Kind: wire.KindDone, Seq: 1 << 60, Status: wire.Status{State: wire.Done, Tokens: 131072}},
	{Kind: wire.KindCancel, LowWater: 7, Seq: 9, ID: kvplane.TransferID{9}, Why: "stopped"},
	{Kind: wire.KindWriteRequest, LowWater: 1, Seq: 2, ID: kvplane.TransferID{7}, Need: [2]int{8, 9}, Ticket: [16]byte{1, 2}, Hash: [16]byte{15: 9}},
	{Kind: wire.KindHeartbeat, LowWater: 3, Lines: []wire.HeartbeatLine{{Seq: 3, ID: kvplane.TransferID{1}}, {ID: kvplane.TransferID{2}}, {Seq: 1 << 62, ID: kvplane.TransferID{3}}}},
	{Kind: wire.KindHeartbeat, LowWater: 1},
	{Kind: wire.KindHeartbeatAck, Lines: []wire.HeartbeatLine{
		{Seq: 3}, {Seq: 4, Status: wire.Status{State: wire.Done, Tokens: 77}}, {Seq: 5, Status: wire.Status{State: wire.Writing}},
		{ID: kvplane.TransferID{2}, Status: wire.Status{State: wire.NotBegun, Reason: kvplane.LeaseOver}},
	}},
	{Kind: wire.KindBye},
	{Kind: wire.KindAck, LowWater: 12, Settled: []uint64{13, 1 << 62}},
}

func TestMessageRoundTrip(t *testing.T) {
	for _, m := range messages {
		got, err := wire.Parse(wire.Append(nil, m))
		if err != nil {
			t.Errorf("%+v: %v", m, err)
			continue
		}
		got.Digest = m.Digest
		if diff := cmp.Diff(got, m, cmp.AllowUnexported(wire.Message{}, wire.Status{}, wire.HeartbeatLine{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("message differs (-got +want):\n%s", diff)
		}
	}
}

// TestShuffledBlocksAreReadAtOnce: the room for a list's ids is made once.
func TestShuffledBlocksAreReadAtOnce(t *testing.T) {
	m := &wire.Message{Kind: wire.KindWriteRequest, Seq: 1, Groups: []kvplane.BlockList{{}}}
	for i := range int32(1024) {
		m.Groups[0].Blocks = append(m.Groups[0].Blocks, i*5%1024) // no two follow each other
	}
	b := wire.Append(nil, m)
	if n := testing.AllocsPerRun(100, func() {
		if got, err := wire.ParseWithin(b, []int{1024}); err != nil || len(got.Groups[0].Blocks) != 1024 {
			t.Fatal(err)
		}
	}); n > 4 { // the race detector has one of its own
		t.Errorf("%v allocations; want the message, its groups and their blocks", n)
	}
}

func TestDigestIsOfWhatIsRegistered(t *testing.T) {
	parse := func(change func(*wire.Message)) [16]byte {
		m := *messages[0]
		change(&m)
		got, err := wire.Parse(wire.Append(nil, &m))
		if err != nil {
			t.Fatal(err)
		}
		return got.Digest
	}
	base := parse(func(*wire.Message) {})
	if parse(func(m *wire.Message) { m.LowWater++ }) != base {
		t.Error("a repeat with a higher low-water mark has another digest")
	}
	if parse(func(m *wire.Message) { m.Wait = time.Second }) != base {
		t.Error("a repeat with less patience left has another digest")
	}
	for what, change := range map[string]func(*wire.Message){
		"need":   func(m *wire.Message) { m.Need[1]++ },
		"ticket": func(m *wire.Message) { m.Ticket[3]++ },
		"hash":   func(m *wire.Message) { m.Hash[15]++ },
		"blocks": func(m *wire.Message) { m.Groups = m.Groups[:1] },
	} {
		if parse(change) == base {
			t.Errorf("another %s has the same digest", what)
		}
	}
}

func TestMessageBounds(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":                nil,
		"unknown kind":         {99, 0, 1},
		"number 0":             {byte(wire.KindCancel), 0, 0},
		"trailing byte":        append(wire.Append(nil, messages[4]), 0),
		"done that is not":     {byte(wire.KindDone), 0, 1, byte(wire.Failed), 0, 0, 0},
		"unknown state":        {byte(wire.KindStatus), 0, 1, 77, 0, 0, 0},
		"two million blocks":   append(wire.Append(nil, &wire.Message{Kind: wire.KindWriteRequest, Seq: 1})[:21], 1, 0, 2, 0, 0x80, 0x80, 0x40, 9, 0x80, 0x80, 0x40, 0),
		"more beats than fit":  {byte(wire.KindHeartbeat), 0, 0x81, 0x20},
		"more of an answer":    {byte(wire.KindHeartbeatAck), 0, 0x81, 0x20},
		"an answer of no kind": {byte(wire.KindHeartbeatAck), 0, 1, 1, 77, 0, 0},
		"a bye with a number":  {byte(wire.KindBye), 0, 1},
		"a run of no blocks":   append(wire.Append(nil, &wire.Message{Kind: wire.KindWriteRequest, Seq: 1})[:21], 1, 0, 1, 0, 0, 0),
		"more groups than fit": append(wire.Append(nil, &wire.Message{Kind: wire.KindWriteRequest, Seq: 1})[:21], 65),
	} {
		if m, err := wire.Parse(b); err == nil {
			t.Errorf("%s: got %+v; want an error", name, m)
		}
	}
	for _, m := range messages {
		b := wire.Append(nil, m)
		for i := range b {
			if got, err := wire.Parse(b[:i]); err == nil {
				t.Errorf("%d of %d bytes of kind %d were taken for %+v", i, len(b), m.Kind, got)
			}
		}
	}
}

// FuzzMessage: whatever arrives is refused or keeps to its bounds, and means the same when it is encoded again.
func FuzzMessage(f *testing.F) {
	for _, m := range messages {
		f.Add(wire.Append(nil, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := wire.Parse(b)
		if err != nil {
			return
		}
		blocks, room := 0, 0
		for _, g := range m.Groups {
			blocks, room = blocks+len(g.Blocks), room+cap(g.Blocks)
			for _, id := range g.Blocks {
				if id < 0 {
					t.Fatalf("block %d", id)
				}
			}
		}
		if blocks > wire.MaxBlocks || room > 2*wire.MaxBlocks || len(m.Groups) > metadata.MaxGroups || m.Wait > kvplane.MaxWait || len(m.Status.Detail)+len(m.Why) > wire.MaxDetail {
			t.Fatalf("%d blocks in %d groups, room for %d, wait %v", blocks, len(m.Groups), room, m.Wait)
		}
		if cap(m.Settled) > wire.MaxSettled || cap(m.Settled) > len(b) || cap(m.Lines) > wire.MaxLines || cap(m.Lines) > len(b) {
			t.Fatalf("room for %d settled numbers and %d beats in %d bytes", cap(m.Settled), cap(m.Lines), len(b))
		}
		again := wire.Append(nil, m)
		second, err := wire.Parse(again)
		if err != nil {
			t.Fatalf("encoded again: %v", err)
		}
		if !bytes.Equal(b, again) { // numbers may be written longer than they need be
			second.Digest = m.Digest
		}
		if !reflect.DeepEqual(second, m) {
			t.Fatalf("it is %+v at first and %+v then", m, second)
		}
	})
}
