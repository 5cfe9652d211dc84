package wire_test

import (
	"bytes"
	"errors"
	"testing"

	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/wire"
	"pdrouter/kvplane/wire/wiretest"
)

func TestSessionBelievesOnlyItsOwn(t *testing.T) {
	for _, real := range []bool{true, false} {
		p, d, third := wiretest.New(t, "p", 7, real), wiretest.New(t, "d", 9, real), wiretest.New(t, "e", 9, real)
		p8, d10 := wiretest.New(t, "p", 8, real), wiretest.New(t, "d", 10, real)
		renamed := p // the same key under a newer generation: an agent that kept its key
		renamed.Record.Generation++
		for _, m := range messages {
			b := d.Write(t, p, m)
			if !p.With(t, d).Verify(b) {
				t.Fatalf("message of kind %d is not believed by the agent that it is for", m.Kind)
			}
			for name, s := range map[string]*wire.Session{
				"the other direction":               d.With(t, p),
				"P's next generation":               p8.With(t, d),
				"P's next generation, the same key": renamed.With(t, d),
				"D's next generation":               p.With(t, d10),
				"another D":                         p.With(t, third),
				"another P":                         third.With(t, d),
			} {
				if s.Verify(b) {
					t.Errorf("message of kind %d is believed in the session of %s", m.Kind, name)
				}
			}
			s := p.With(t, d)
			for i := range b {
				for _, bit := range []byte{1, 0x80} {
					b[i] ^= bit
					if s.Verify(b) {
						t.Errorf("message of kind %d is believed with byte %d of %d changed", m.Kind, i, len(b))
					}
					b[i] ^= bit
				}
			}
			for i := range b {
				if s.Verify(b[:i]) {
					t.Errorf("%d of %d bytes of a message of kind %d are believed", i, len(b), m.Kind)
				}
			}
			if !s.Verify(b) {
				t.Error("a session that refused messages believes no right one any more")
			}
		}
	}
}

func TestSessionNeedsBothKeys(t *testing.T) {
	p, d := wiretest.New(t, "p", 7, true), wiretest.New(t, "d", 9, true)
	keyless := p
	keyless.Record.Key = nil
	weak := d
	weak.Record.Key = make([]byte, 32) // a point that gives everybody the same secret
	for name, c := range map[string]struct{ own, peer wiretest.Party }{
		"own": {keyless, d}, "peer's": {d, keyless}, "peer's is weak": {p, weak}, "no private part": {wiretest.Party{Record: p.Record}, d},
	} {
		if _, err := wire.NewSession(c.own.Agree, c.own.Record, c.peer.Record); !errors.Is(err, transport.ErrNoKey) {
			t.Errorf("%s: got %v; want %v", name, err, transport.ErrNoKey)
		}
	}
}

// steadily seals, signs, takes apart and verifies one message as often as it is called.
func steadily(t testing.TB) func() {
	p, d := wiretest.New(t, "p", 7, true), wiretest.New(t, "d", 9, true)
	out, in := d.With(t, p), p.With(t, d)
	body := wire.Append(nil, messages[0])
	e := wire.Header{From: d.Record.Incarnation, Agent: d.Record.Agent, To: p.Record.Agent}
	var buffer []byte
	return func() {
		buffer = out.AppendMAC(wire.Encode(buffer[:0], e, body))
		l, err := wire.Decode(buffer)
		if err != nil || !l.Is(&d.Record) || !in.Verify(l.Whole) || len(l.Body) != len(body) {
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
		p, d := wiretest.New(b, "p", 7, true), wiretest.New(b, "d", 9, true)
		for b.Loop() {
			p.With(b, d)
		}
	})
}

// FuzzUnseal: whatever arrives, taking it apart keeps to its bounds, and without a key nothing is believed.
func FuzzUnseal(f *testing.F) {
	p, d := wiretest.New(f, "p", 7, false), wiretest.New(f, "d", 9, false)
	for _, m := range messages {
		f.Add(d.Write(f, p, m))
		f.Add(wiretest.EncodedAs(wiretest.HeaderOf(d, p.Record), wire.Append(nil, m)))
	}
	other := wiretest.New(f, "other", 1, true) // a key that no input can know
	in := wiretest.New(f, "q", 7, true).With(f, other)
	f.Fuzz(func(t *testing.T, b []byte) {
		if in.Verify(b) {
			t.Fatal("believed without the key")
		}
		l, err := wire.Decode(b)
		if err != nil {
			return
		}
		if len(l.Engine) > plan.MaxName || len(l.Agent) > plan.MaxName || len(l.To) > plan.MaxName || len(l.Agent) == 0 || len(b) > transport.MaxMessage {
			t.Fatalf("envelope is out of bounds: %+v", l.Header())
		}
		if !bytes.HasSuffix(b[:len(b)-wire.MACBytes], l.Body) || !bytes.Equal(l.Whole, b) {
			t.Fatal("the body is not what stands before the code")
		}
		again, err := wire.Decode(append(wire.Encode(nil, l.Header(), l.Body), b[len(b)-wire.MACBytes:]...))
		if err != nil || again.Header() != l.Header() || !bytes.Equal(again.Body, l.Body) {
			t.Fatalf("sealed again it is %+v, %v", again.Header(), err)
		}
	})
}
