package kvplane

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"pdrouter/metadata"
)

var messages = []*message{
	{kind: msgRegister, floor: 3, seq: 4, id: TransferID{1, 2}, need: [2]int{8, 100}, wait: 1500 * time.Millisecond,
		groups: []BlockList{{First: 8, Blocks: []int32{1, 2, 3, 9, 7, 8, 0, 1<<31 - 1}}, {First: 0}, {First: 96, Blocks: []int32{5}}}},
	{kind: msgRegister, seq: 1, id: TransferID{1}},
	{kind: msgStatus, seq: 9, status: status{state: statusNotBegun, reason: Short, detail: "tokens: 1 on P, 2 on D"}},
	{kind: msgDone, seq: 1 << 60, status: status{state: statusDone, tokens: 131072}},
	{kind: msgCancel, floor: 7, seq: 9, id: TransferID{9}, why: "stopped"},
	{kind: msgRegister, floor: 1, seq: 2, id: TransferID{7}, need: [2]int{8, 9}, ticket: [16]byte{1, 2}, hash: [16]byte{15: 9}},
	{kind: msgBeat, floor: 3, beats: []beat{{seq: 3, id: TransferID{1}}, {id: TransferID{2}}, {seq: 1 << 62, id: TransferID{3}}}},
	{kind: msgBeat, floor: 1},
	{kind: msgBeatAck, beats: []beat{
		{seq: 3}, {seq: 4, status: status{state: statusDone, tokens: 77}}, {seq: 5, status: status{state: statusWriting}},
		{id: TransferID{2}, status: status{state: statusNotBegun, reason: LeaseOver}},
	}},
	{kind: msgBye},
	{kind: msgFloor, floor: 12, settled: []uint64{13, 1 << 62}},
}

func TestMessageRoundTrip(t *testing.T) {
	from := envelope{from: metadata.Incarnation{Engine: "decode-0", Generation: 1 << 61}, agent: "decode-0@1/0/0/0", to: "prefill-0@1/0/0/1"}
	for _, m := range messages {
		l, err := unseal(sealedAs(from, appendMessage(nil, m)))
		if e := l.envelope(); err != nil || e != from {
			t.Fatalf("envelope is %+v, %v", e, err)
		}
		got, err := parseMessage(l.body)
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

func FuzzMessage(f *testing.F) {
	from := envelope{from: metadata.Incarnation{Engine: "d", Generation: 1}, agent: "d@1", to: "p@1"}
	for _, m := range messages {
		f.Add(sealedAs(from, appendMessage(nil, m)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := unseal(b)
		if err != nil {
			return
		}
		e := l.envelope()
		m, err := parseMessage(l.body)
		if err != nil {
			return
		}
		blocks := 0
		for _, g := range m.groups {
			blocks += len(g.Blocks)
			for _, id := range g.Blocks {
				if id < 0 {
					t.Fatalf("block %d", id)
				}
			}
		}
		if blocks > maxBlocks || len(m.groups) > maxGroups || len(m.settled) > maxSettled || m.wait > maxWait {
			t.Fatalf("%d blocks in %d groups, %d settled, wait %v", blocks, len(m.groups), len(m.settled), m.wait)
		}
		again := appendMessage(nil, m)
		second, err := parseMessage(again)
		if err != nil {
			t.Fatalf("encoded again: %v", err)
		}
		if !bytes.Equal(appendMessage(nil, second), again) {
			t.Fatal("a second round trip differs")
		}
		l, err = unseal(sealedAs(e, again))
		if e2 := l.envelope(); err != nil || e2 != e {
			t.Fatalf("envelope %+v became %+v, %v", e, e2, err)
		}
	})
}
