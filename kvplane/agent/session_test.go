package agent

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"slices"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// sealedAs is a message as a stranger would write it: with an envelope and a code of nothing.
func sealedAs(e envelope, body []byte) []byte {
	return append(seal(nil, e, body), make([]byte, codeBytes)...)
}

// fakeKey stands for the key that Open makes, where no randomness may be read: the public half is made from the agent's
// name, and two agents agree on a digest of both their public halves. It keeps nothing secret.
func fakeKey(agent string) (public []byte, agree transport.Agreement) {
	own := sha256.Sum256([]byte(agent))
	return own[:], func(peer []byte) ([]byte, error) {
		low, high := own[:], peer
		if bytes.Compare(low, high) > 0 {
			low, high = high, low
		}
		secret := sha256.Sum256(append(append([]byte(nil), low...), high...))
		return secret[:], nil
	}
}

// party is one agent with a key, without an owner.
type party struct {
	record metadata.Record
	agree  transport.Agreement
}

func newParty(t testing.TB, engine string, generation uint64, real bool) party {
	t.Helper()
	p := party{record: metadata.Record{Incarnation: metadata.Incarnation{Engine: engine, Generation: generation}}}
	p.record.Agent = p.record.ID() + "/0/0/0"
	p.record.Key, p.agree = fakeKey(p.record.Agent)
	if real {
		var err error
		if p.record.Key, p.agree, err = transport.NewKey(); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p party) with(t testing.TB, peer party) *session {
	t.Helper()
	s, err := newSession(p.agree, p.record, peer.record)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// write seals and signs a message from one agent to another.
func (p party) write(t testing.TB, to party, m *message) []byte {
	t.Helper()
	e := envelope{from: p.record.Incarnation, agent: p.record.Agent, to: to.record.Agent}
	return p.with(t, to).sign(seal(nil, e, appendMessage(nil, m)))
}

func TestSessionBelievesOnlyItsOwn(t *testing.T) {
	for _, real := range []bool{true, false} {
		p, d, third := newParty(t, "p", 7, real), newParty(t, "d", 9, real), newParty(t, "e", 9, real)
		p8, d10 := newParty(t, "p", 8, real), newParty(t, "d", 10, real)
		renamed := p // the same key under a newer generation: an agent that kept its key
		renamed.record.Generation++
		for _, m := range messages {
			b := d.write(t, p, m)
			if !p.with(t, d).verify(b) {
				t.Fatalf("message of kind %d is not believed by the agent that it is for", m.kind)
			}
			for name, s := range map[string]*session{
				"the other direction":               d.with(t, p),
				"P's next generation":               p8.with(t, d),
				"P's next generation, the same key": renamed.with(t, d),
				"D's next generation":               p.with(t, d10),
				"another D":                         p.with(t, third),
				"another P":                         third.with(t, d),
			} {
				if s.verify(b) {
					t.Errorf("message of kind %d is believed in the session of %s", m.kind, name)
				}
			}
			s := p.with(t, d)
			for i := range b {
				for _, bit := range []byte{1, 0x80} {
					b[i] ^= bit
					if s.verify(b) {
						t.Errorf("message of kind %d is believed with byte %d of %d changed", m.kind, i, len(b))
					}
					b[i] ^= bit
				}
			}
			for i := range b {
				if s.verify(b[:i]) {
					t.Errorf("%d of %d bytes of a message of kind %d are believed", i, len(b), m.kind)
				}
			}
			if !s.verify(b) {
				t.Error("a session that refused messages believes no right one any more")
			}
		}
	}
}

func TestSessionNeedsBothKeys(t *testing.T) {
	p, d := newParty(t, "p", 7, true), newParty(t, "d", 9, true)
	keyless := p
	keyless.record.Key = nil
	weak := d
	weak.record.Key = make([]byte, 32) // a point that gives everybody the same secret
	for name, c := range map[string]struct{ own, peer party }{
		"own": {keyless, d}, "peer's": {d, keyless}, "peer's is weak": {p, weak}, "no private part": {party{record: p.record}, d},
	} {
		if _, err := newSession(c.own.agree, c.own.record, c.peer.record); !errors.Is(err, transport.ErrNoKey) {
			t.Errorf("%s: got %v; want %v", name, err, transport.ErrNoKey)
		}
	}
}

// steadily seals, signs, takes apart and verifies one message as often as it is called.
func steadily(t testing.TB) func() {
	p, d := newParty(t, "p", 7, true), newParty(t, "d", 9, true)
	out, in := d.with(t, p), p.with(t, d)
	body := appendMessage(nil, messages[0])
	e := envelope{from: d.record.Incarnation, agent: d.record.Agent, to: p.record.Agent}
	var buffer []byte
	return func() {
		buffer = out.sign(seal(buffer[:0], e, body))
		l, err := unseal(buffer)
		if err != nil || !l.is(&d.record) || !in.verify(l.whole) || len(l.body) != len(body) {
			t.Fatal("a message was not believed")
		}
	}
}

func TestSessionAllocatesNothing(t *testing.T) {
	once := steadily(t)
	once()
	once() // the first Reset of a code keeps its key's state
	if n := testing.AllocsPerRun(100, once); n != 0 {
		t.Errorf("%v allocations for each message; want 0", n)
	}
}

func BenchmarkSession(b *testing.B) {
	b.Run("message", func(b *testing.B) {
		once := steadily(b)
		b.ReportAllocs()
		for b.Loop() {
			once()
		}
	})
	b.Run("new", func(b *testing.B) {
		p, d := newParty(b, "p", 7, true), newParty(b, "d", 9, true)
		for b.Loop() {
			p.with(b, d)
		}
	})
}

// inject has a message arrive at an agent as if the network had brought it.
func (n *fakeNet) inject(to, claimed string, body []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends[to].deliverLocked(transport.Incoming{Kind: transport.MessageReceived, Agent: claimed, Body: body}, 0)
}

// TestForgedMessagesChangeNothing: whoever can reach both agents, but has neither's key, plays every message in the
// other's name.
func TestForgedMessagesChangeNothing(t *testing.T) {
	net := newFakeNet(fault{"write", 0, "hold"})
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, _ *fakeDirectory) {
		id := kvplane.NewTransferID()
		p.fill(id, fromP[0], 12)
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		time.Sleep(10 * time.Millisecond)
		before := []Status{p.agents[0].Status(), d.agents[0].Status()}
		if before[0].Writing != 1 || before[1].Expectations != 1 {
			t.Fatalf("the transfer is not under way: %+v", before)
		}
		pr, dr := p.records[0], d.records[0]
		stranger := newParty(t, "x", 1, true)
		sent := 0
		for _, at := range [][2]metadata.Record{{pr, dr}, {dr, pr}} {
			forger := stranger
			forger.record.Incarnation, forger.record.Agent = at[0].Incarnation, at[0].Agent
			for seq := range uint64(4) {
				for _, m := range []*message{
					{kind: msgStatus, seq: seq, status: status{state: statusDone, tokens: 12}},
					{kind: msgStatus, seq: seq, status: status{state: statusFailed, reason: kvplane.WriteFailed}},
					{kind: msgStatus, seq: seq, status: status{state: statusNotBegun, reason: kvplane.Dead}},
					{kind: msgDone, seq: seq, status: status{state: statusDone, tokens: 12}},
					{kind: msgCancel, floor: 1 << 40, seq: seq, id: id},
					{kind: msgFloor, floor: 1 << 40, settled: []uint64{1, 2}},
					{kind: msgRegister, floor: 2, seq: seq, id: id, need: [2]int{0, 12}, groups: toD},
				} {
					body := forger.write(t, party{record: at[1]}, m)
					for _, claimed := range []string{"", at[0].Agent} { // not every transport knows a sender
						net.inject(at[1].Agent, claimed, slices.Clone(body))
						net.inject(at[1].Agent, claimed, sealedAs(forger.envelope(at[1]), appendMessage(nil, m)))
						sent += 2
					}
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
		forged := 0
		for i, r := range []*rig{p, d} {
			s := r.agents[0].Status()
			forged += s.Dropped["forged"]
			if s.Writing != before[i].Writing || s.Expectations != before[i].Expectations || s.Offers != before[i].Offers ||
				s.Registrations != before[i].Registrations || s.PinnedBlocks != before[i].PinnedBlocks || s.HeldBlocks != before[i].HeldBlocks {
				t.Errorf("%s: books were %+v and are %+v", r.inc.Engine, before[i], s)
			}
			if got := r.kinds(id); len(got) != 0 {
				t.Errorf("%s has reported %v", r.inc.Engine, got)
			}
		}
		if forged != sent {
			t.Errorf("%d messages were counted as forged; want %d", forged, sent)
		}
		net.heal()
		// What the true peer says is heard as before.
		next := kvplane.NewTransferID()
		p.fill(next, fromP[0], 12)
		d.expect(next, p, [2]int{0, 12}, plantest.List(0, 10, 11, 12))
		p.offer(next, d, 12, fromP)
		d.await(next, kvplane.Ready)
		p.await(next, kvplane.Sent)
	})
}

func (p party) envelope(to metadata.Record) envelope {
	return envelope{from: p.record.Incarnation, agent: p.record.Agent, to: to.Agent}
}

// heal ends all faults.
func (n *fakeNet) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = nil
}

// TestParkedMessageIsVerified: a message that waits for its sender's record is believed no earlier than any other.
func TestParkedMessageIsVerified(t *testing.T) {
	net := newFakeNet()
	inBubble(t, net, 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		dir.slow = 100 * time.Millisecond
		stranger := newParty(t, "x", 1, true)
		stranger.record.Incarnation, stranger.record.Agent = d.inc, d.records[0].Agent
		id := kvplane.NewTransferID()
		m := &message{kind: msgRegister, seq: 1, id: id, need: [2]int{0, 12}, groups: toD, wait: time.Second}
		for range 3 {
			net.inject(p.records[0].Agent, d.records[0].Agent, stranger.write(t, party{record: p.records[0]}, m))
		}
		time.Sleep(time.Second)
		s := p.agents[0].Status()
		if s.Peers != 1 || s.Registrations != 0 || s.Dropped["forged"] != 3 {
			t.Errorf("%d peers, %d registrations, dropped %v; want 1 peer, no registration, 3 forged", s.Peers, s.Registrations, s.Dropped)
		}
	})
}

func TestPeerWithoutKeyIsRefused(t *testing.T) {
	inBubble(t, newFakeNet(), 1, 1, func(t *testing.T, p, d *rig, dir *fakeDirectory) {
		dir.mu.Lock()
		for _, name := range []string{"p", "d"} {
			records := slices.Clone(dir.records[name])
			records[0].Key = nil
			dir.records[name] = records
		}
		dir.mu.Unlock()
		id := kvplane.NewTransferID()
		d.expect(id, p, [2]int{0, 12}, toD)
		p.offer(id, d, 12, fromP)
		if r := d.await(id, kvplane.Negative)[0]; r.Reason != kvplane.NoKey {
			t.Errorf("D says %s (%s); want no_key", r.Reason, r.Detail)
		}
		d.await(id, kvplane.Safe)
		if r := p.await(id, kvplane.Sent)[0]; r.Reason != kvplane.NoKey {
			t.Errorf("P says %s (%s); want no_key", r.Reason, r.Detail)
		}
		if a, b := p.agents[0].Record(), d.agents[0].Record(); len(a.Key) != 32 || bytes.Equal(a.Key, b.Key) {
			t.Errorf("keys are %x and %x; want two of 32 bytes", a.Key, b.Key)
		}
	})
}

// FuzzUnseal: whatever arrives, taking it apart keeps to its bounds, and without a key nothing is believed.
func FuzzUnseal(f *testing.F) {
	p, d := newParty(f, "p", 7, false), newParty(f, "d", 9, false)
	for _, m := range messages {
		f.Add(d.write(f, p, m))
		f.Add(sealedAs(d.envelope(p.record), appendMessage(nil, m)))
	}
	other := newParty(f, "other", 1, true) // a key that no input can know
	in := newParty(f, "q", 7, true).with(f, other)
	f.Fuzz(func(t *testing.T, b []byte) {
		if in.verify(b) {
			t.Fatal("believed without the key")
		}
		l, err := unseal(b)
		if err != nil {
			return
		}
		if len(l.engine) > maxName || len(l.agent) > maxName || len(l.to) > maxName || len(l.agent) == 0 || len(b) > transport.MaxMessage {
			t.Fatalf("envelope is out of bounds: %+v", l.envelope())
		}
		if !bytes.HasSuffix(b[:len(b)-codeBytes], l.body) || !bytes.Equal(l.whole, b) {
			t.Fatal("the body is not what stands before the code")
		}
		again, err := unseal(append(seal(nil, l.envelope(), l.body), b[len(b)-codeBytes:]...))
		if err != nil || again.envelope() != l.envelope() || !bytes.Equal(again.body, l.body) {
			t.Fatalf("sealed again it is %+v, %v", again.envelope(), err)
		}
	})
}
