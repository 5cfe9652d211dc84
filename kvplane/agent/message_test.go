package agent

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"pdrouter/kvplane"
)

var messages = []*message{
	{kind: msgRegister, floor: 3, seq: 4, id: kvplane.TransferID{1, 2}, need: [2]int{8, 100}, wait: 1500 * time.Millisecond,
		groups: []kvplane.BlockList{{First: 8, Blocks: []int32{1, 2, 3, 9, 7, 8, 0, 1<<31 - 1}}, {First: 0}, {First: 96, Blocks: []int32{5}}}},
	{kind: msgRegister, seq: 1, id: kvplane.TransferID{1}},
	{kind: msgStatus, seq: 9, status: status{state: statusNotBegun, reason: kvplane.Short, detail: "tokens: 1 on P, 2 on D"}},
	{kind: msgDone, seq: 1 << 60, status: status{state: statusDone, tokens: 131072}},
	{kind: msgCancel, floor: 7, seq: 9, id: kvplane.TransferID{9}, why: "stopped"},
	{kind: msgRegister, floor: 1, seq: 2, id: kvplane.TransferID{7}, need: [2]int{8, 9}, ticket: [16]byte{1, 2}, hash: [16]byte{15: 9}},
	{kind: msgBeat, floor: 3, beats: []beat{{seq: 3, id: kvplane.TransferID{1}}, {id: kvplane.TransferID{2}}, {seq: 1 << 62, id: kvplane.TransferID{3}}}},
	{kind: msgBeat, floor: 1},
	{kind: msgBeatAck, beats: []beat{
		{seq: 3}, {seq: 4, status: status{state: statusDone, tokens: 77}}, {seq: 5, status: status{state: statusWriting}},
		{id: kvplane.TransferID{2}, status: status{state: statusNotBegun, reason: kvplane.LeaseOver}},
	}},
	{kind: msgBye},
	{kind: msgFloor, floor: 12, settled: []uint64{13, 1 << 62}},
}

func TestMessageRoundTrip(t *testing.T) {
	for _, m := range messages {
		got, err := parseMessage(appendMessage(nil, m))
		if err != nil {
			t.Errorf("%+v: %v", m, err)
			continue
		}
		got.digest = m.digest
		if diff := cmp.Diff(got, m, cmp.AllowUnexported(message{}, status{}, beat{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("message differs (-got +want):\n%s", diff)
		}
	}
}

// TestShuffledBlocksAreReadAtOnce: the room for a list's ids is made once.
func TestShuffledBlocksAreReadAtOnce(t *testing.T) {
	m := &message{kind: msgRegister, seq: 1, groups: []kvplane.BlockList{{}}}
	for i := range int32(1024) {
		m.groups[0].Blocks = append(m.groups[0].Blocks, i*5%1024) // no two follow each other
	}
	b := appendMessage(nil, m)
	if n := testing.AllocsPerRun(100, func() {
		if got, err := parseWithin(b, []int{1024}); err != nil || len(got.groups[0].Blocks) != 1024 {
			t.Fatal(err)
		}
	}); n > 4 { // the race detector has one of its own
		t.Errorf("%v allocations; want the message, its groups and their blocks", n)
	}
}

func TestDigestIsOfWhatIsRegistered(t *testing.T) {
	parse := func(change func(*message)) [16]byte {
		m := *messages[0]
		change(&m)
		got, err := parseMessage(appendMessage(nil, &m))
		if err != nil {
			t.Fatal(err)
		}
		return got.digest
	}
	base := parse(func(*message) {})
	if parse(func(m *message) { m.floor++ }) != base {
		t.Error("a repeat with a higher floor has another digest")
	}
	if parse(func(m *message) { m.wait = time.Second }) != base {
		t.Error("a repeat with less patience left has another digest")
	}
	for what, change := range map[string]func(*message){
		"need":   func(m *message) { m.need[1]++ },
		"ticket": func(m *message) { m.ticket[3]++ },
		"hash":   func(m *message) { m.hash[15]++ },
		"blocks": func(m *message) { m.groups = m.groups[:1] },
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
		"number 0":             {byte(msgCancel), 0, 0},
		"trailing byte":        append(appendMessage(nil, messages[4]), 0),
		"done that is not":     {byte(msgDone), 0, 1, byte(statusFailed), 0, 0, 0},
		"unknown state":        {byte(msgStatus), 0, 1, 77, 0, 0, 0},
		"two million blocks":   append(appendMessage(nil, &message{kind: msgRegister, seq: 1})[:21], 1, 0, 2, 0, 0x80, 0x80, 0x40, 9, 0x80, 0x80, 0x40, 0),
		"more beats than fit":  {byte(msgBeat), 0, 0x81, 0x20},
		"more of an answer":    {byte(msgBeatAck), 0, 0x81, 0x20},
		"an answer of no kind": {byte(msgBeatAck), 0, 1, 1, 77, 0, 0},
		"a bye with a number":  {byte(msgBye), 0, 1},
		"a run of no blocks":   append(appendMessage(nil, &message{kind: msgRegister, seq: 1})[:21], 1, 0, 1, 0, 0, 0),
		"more groups than fit": append(appendMessage(nil, &message{kind: msgRegister, seq: 1})[:21], 65),
	} {
		if m, err := parseMessage(b); err == nil {
			t.Errorf("%s: got %+v; want an error", name, m)
		}
	}
	for _, m := range messages {
		b := appendMessage(nil, m)
		for i := range b {
			if got, err := parseMessage(b[:i]); err == nil {
				t.Errorf("%d of %d bytes of kind %d were taken for %+v", i, len(b), m.kind, got)
			}
		}
	}
}

// FuzzMessage: whatever arrives is refused or keeps to its bounds, and means the same when it is encoded again.
func FuzzMessage(f *testing.F) {
	for _, m := range messages {
		f.Add(appendMessage(nil, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			return
		}
		blocks, room := 0, 0
		for _, g := range m.groups {
			blocks, room = blocks+len(g.Blocks), room+cap(g.Blocks)
			for _, id := range g.Blocks {
				if id < 0 {
					t.Fatalf("block %d", id)
				}
			}
		}
		if blocks > maxBlocks || room > 2*maxBlocks || len(m.groups) > maxGroups || m.wait > kvplane.MaxWait || len(m.status.detail)+len(m.why) > maxDetail {
			t.Fatalf("%d blocks in %d groups, room for %d, wait %v", blocks, len(m.groups), room, m.wait)
		}
		if cap(m.settled) > maxSettled || cap(m.settled) > len(b) || cap(m.beats) > maxBeats || cap(m.beats) > len(b) {
			t.Fatalf("room for %d settled numbers and %d beats in %d bytes", cap(m.settled), cap(m.beats), len(b))
		}
		again := appendMessage(nil, m)
		second, err := parseMessage(again)
		if err != nil {
			t.Fatalf("encoded again: %v", err)
		}
		if !bytes.Equal(b, again) { // numbers may be written longer than they need be
			second.digest = m.digest
		}
		if !reflect.DeepEqual(second, m) {
			t.Fatalf("it is %+v at first and %+v then", m, second)
		}
	})
}
