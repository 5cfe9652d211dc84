package ticket

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// fakeKeys sign with their own id, and check against those that are trusted.
type fakeKeys struct {
	own     string
	trusted map[string]bool
}

func (k *fakeKeys) Sign([]byte) (string, []byte, error) {
	signature := make([]byte, 64)
	copy(signature, k.own)
	return k.own, signature, nil
}

func (k *fakeKeys) Verify(id string, _, signature []byte) error {
	if !k.trusted[id] || string(signature[:len(id)]) != id {
		return errors.New("not trusted")
	}
	return nil
}

var (
	prefill = metadata.Incarnation{Engine: "prefill-0", Generation: 5}
	decode  = metadata.Incarnation{Engine: "decode-0", Generation: 7}
)

func fresh(valid time.Duration) Ticket {
	return Ticket{ID: transfer.NewID(), Prefill: prefill, Decode: decode, Issued: time.Now().Truncate(time.Millisecond), Valid: valid}
}

func text(t *testing.T, it Ticket, by Signer) string {
	t.Helper()
	b, err := it.AppendSigned(nil, by)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func check(t *testing.T, what string, err error, want Fault) {
	t.Helper()
	if want == 0 && err != nil || want != 0 && !errors.Is(err, want) {
		t.Errorf("%s: got %v; want %v", what, err, want)
	}
}

func TestAdmitter(t *testing.T) {
	keys := &fakeKeys{own: "a", trusted: map[string]bool{"a": true}}
	p, d := NewAdmitter(prefill, keys), NewAdmitter(decode, keys)
	it := fresh(time.Minute)
	both := text(t, it, keys)
	for leg, admit := range map[metadata.Role]func() ([16]byte, error){
		metadata.Prefill: func() ([16]byte, error) { return p.Admit(both, metadata.Prefill, it.ID, decode) },
		metadata.Decode:  func() ([16]byte, error) { return d.Admit(both, metadata.Decode, it.ID, prefill) },
	} {
		digest, err := admit()
		check(t, "the "+string(leg)+" leg", err, 0)
		if digest != it.Digest() {
			t.Errorf("the digest of the %s leg is %x; want %x", leg, digest, it.Digest())
		}
		_, err = admit()
		check(t, "the "+string(leg)+" leg once more", err, Spent)
	}
	for name, c := range map[string]struct {
		leg  metadata.Role
		id   transfer.ID // zero: the ticket's
		peer metadata.Incarnation
		it   func(*Ticket)
	}{
		"on the other leg":                      {leg: metadata.Decode, peer: prefill},
		"with another peer":                     {leg: metadata.Prefill, peer: prefill},
		"with an older incarnation of the peer": {leg: metadata.Prefill, peer: metadata.Incarnation{Engine: "decode-0", Generation: 6}},
		"for another transfer":                  {leg: metadata.Prefill, peer: decode, id: transfer.NewID()},
		"of another engine":                     {leg: metadata.Prefill, peer: decode, it: func(x *Ticket) { x.Prefill.Engine = "prefill-1" }},
		"of an older incarnation":               {leg: metadata.Prefill, peer: decode, it: func(x *Ticket) { x.Prefill.Generation-- }},
	} {
		it := fresh(time.Minute)
		if c.it != nil {
			c.it(&it)
		}
		id := it.ID
		if c.id != (transfer.ID{}) {
			id = c.id
		}
		_, err := p.Admit(text(t, it, keys), c.leg, id, c.peer)
		check(t, name, err, Foreign)
	}
	_, err := p.Admit("", metadata.Prefill, it.ID, decode)
	check(t, "without a ticket", err, Missing)
	_, err = p.Admit("x", metadata.Prefill, it.ID, decode)
	check(t, "no ticket", err, Malformed)
}

// TestAdmitterKeysRotate: a ticket of any trusted key is admitted, and one of a key that was withdrawn is refused at once.
func TestAdmitterKeysRotate(t *testing.T) {
	trusted := map[string]bool{"old": true}
	older, newer := &fakeKeys{"old", trusted}, &fakeKeys{"new", trusted}
	a := NewAdmitter(decode, older)
	admit := func(by Signer) error {
		it := fresh(time.Minute)
		_, err := a.Admit(text(t, it, by), metadata.Decode, it.ID, prefill)
		return err
	}
	check(t, "the old key", admit(older), 0)
	check(t, "the new key, not trusted yet", admit(newer), Forged)
	trusted["new"] = true
	check(t, "the old key in the overlap", admit(older), 0)
	check(t, "the new key in the overlap", admit(newer), 0)
	delete(trusted, "old")
	check(t, "the new key alone", admit(newer), 0)
	check(t, "the old key, withdrawn", admit(older), Forged)
}

// TestAdmitterWithoutKeys: every leg is taken, and the digest is that of the ticket, as the peer may compare it.
func TestAdmitterWithoutKeys(t *testing.T) {
	a, it := NewAdmitter(decode, nil), fresh(time.Minute)
	for what, c := range map[string]struct {
		text string
		want [16]byte
	}{"no ticket": {}, "nonsense": {text: "x"}, "a ticket": {text(t, it, &fakeKeys{own: "a"}), it.Digest()}} {
		if got, err := a.Admit(c.text, metadata.Decode, it.ID, prefill); err != nil || got != c.want {
			t.Errorf("%s: got %x, %v; want %x", what, got, err, c.want)
		}
	}
}

// TestAdmitterClockSkew: the clocks of gateway and engine may differ by Leeway in either direction. Beyond that tickets are refused,
// and none that has served serves again.
func TestAdmitterClockSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := &fakeKeys{own: "a", trusted: map[string]bool{"a": true}}
		a := NewAdmitter(decode, keys)
		const valid = time.Minute
		admit := func(it Ticket) error {
			_, err := a.Admit(text(t, it, keys), metadata.Decode, it.ID, prefill)
			return err
		}
		// skewed is a ticket of a gateway whose clock is ahead of the engine's.
		skewed := func(ahead time.Duration) Ticket {
			it := fresh(valid)
			it.Issued = it.Issued.Add(ahead)
			return it
		}
		check(t, "the gateway is ahead, within the leeway", admit(skewed(Leeway)), 0)
		check(t, "the gateway is ahead, beyond it", admit(skewed(Leeway+time.Millisecond)), Expired)
		check(t, "the engine is ahead, while the ticket is valid", admit(skewed(-valid-Leeway)), 0)
		check(t, "the engine is ahead, beyond that", admit(skewed(-valid-Leeway-time.Millisecond)), Expired)

		it, late := fresh(valid), fresh(valid)
		check(t, "in time", admit(it), 0)
		for range 5 {
			check(t, "it has served", admit(it), Spent)
			time.Sleep((valid + Leeway) / 5)
		}
		check(t, "just in time", admit(late), 0)
		time.Sleep(time.Millisecond)
		check(t, "a copy after its time", admit(it), Expired)
		time.Sleep(time.Hour)
		check(t, "an hour later", admit(fresh(valid)), 0)
		if len(a.tombstones) != 1 || len(a.ends) != 1 {
			t.Errorf("%d transfers are remembered, %d in order; want the last one", len(a.tombstones), len(a.ends))
		}
	})
}

// TestAdmitterForgets: one ticket that is valid for long keeps no others in memory, and a full Admitter says so.
func TestAdmitterForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := &fakeKeys{own: "a", trusted: map[string]bool{"a": true}}
		a := NewAdmitter(prefill, keys)
		a.limit = 3
		admit := func(valid time.Duration) error {
			it := fresh(valid)
			_, err := a.Admit(text(t, it, keys), metadata.Prefill, it.ID, decode)
			return err
		}
		for _, valid := range []time.Duration{maxValid, time.Minute, time.Second} {
			check(t, "one", admit(valid), 0)
		}
		check(t, "a fourth ticket", admit(time.Minute), Full)
		for i, after := range []time.Duration{time.Second + 2*Leeway, time.Minute} {
			time.Sleep(after + time.Millisecond)
			check(t, "once one is over", admit(maxValid), 0)
			if len(a.tombstones) != 3 || len(a.ends) != 3 {
				t.Errorf("%d: %d transfers are remembered, %d in order; want 3", i, len(a.tombstones), len(a.ends))
			}
		}
	})
}
