package kvplane

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
)

var (
	keyP = bytes.Repeat([]byte{0x11}, 32)
	keyD = bytes.Repeat([]byte{0x22}, 32)
)

func aTicket() GatewayTicket {
	return GatewayTicket{
		ID: TransferID{0: 1, 15: 2}, Prefill: metadata.Incarnation{Engine: "prefill-0", Generation: 0x1f}, Decode: metadata.Incarnation{Engine: "decode-0", Generation: 1 << 60},
		Context: [16]byte{3, 4}, Tokens: 300, Issued: time.UnixMilli(1_700_000_000_123).UTC(), Valid: 90 * time.Second,
	}
}

func TestTicketRoundTrip(t *testing.T) {
	want := aTicket()
	for _, leg := range []struct {
		key  []byte
		self metadata.Incarnation
	}{{keyP, want.Prefill}, {keyD, want.Decode}} {
		got, err := OpenTicket(want.Seal(leg.key), leg.key, leg.self)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("ticket differs (-got +want):\n%s", diff)
		}
		if got.Digest() != want.Digest() {
			t.Error("the digest depends on the leg")
		}
	}
	other := want
	other.Context[0]++
	if other.Digest() == want.Digest() {
		t.Error("two tickets have one digest")
	}
}

// TestTicketBytes writes a ticket out by hand, as an engine in another language would read it.
func TestTicketBytes(t *testing.T) {
	body, err := hex.DecodeString("01" + // version
		"01000000000000000000000000000002" + // transfer id
		"09" + hex.EncodeToString([]byte("prefill-0")) + "1f" + // name and generation of prefill
		"08" + hex.EncodeToString([]byte("decode-0")) + "808080808080808010" + // and of decode
		"03040000000000000000000000000000" + // context
		"ac02" + // tokens
		"fbd095ffbc31" + // issued, ms since 1970
		"90bf05") // valid, ms
	if err != nil {
		t.Fatal(err)
	}
	code := hmac.New(sha256.New, keyP)
	code.Write([]byte("pdrouter ticket v1\x00"))
	code.Write(body)
	want := base64.RawURLEncoding.EncodeToString(append(body, code.Sum(nil)[:16]...))
	it := aTicket()
	if got := it.Seal(keyP); got != want {
		t.Errorf("ticket is\n%s; want\n%s", got, want)
	}
	sum := sha256.Sum256(body)
	if got := it.Digest(); !bytes.Equal(got[:], sum[:16]) {
		t.Errorf("digest is %x; want %x", got, sum[:16])
	}
}

func TestTicketRefused(t *testing.T) {
	it := aTicket()
	sealed := it.Seal(keyP)
	nobody := it
	nobody.ID = TransferID{}
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		for _, bit := range []byte{1, 0x80} {
			changed := bytes.Clone(raw)
			changed[i] ^= bit
			if _, err := OpenTicket(base64.RawURLEncoding.EncodeToString(changed), keyP, it.Prefill); err == nil {
				t.Errorf("byte %d of %d changed: the ticket is accepted", i, len(raw))
			}
		}
		if _, err := OpenTicket(base64.RawURLEncoding.EncodeToString(raw[:i]), keyP, it.Prefill); err == nil {
			t.Errorf("%d of %d bytes are accepted", i, len(raw))
		}
	}
	for name, c := range map[string]struct {
		text string
		key  []byte
		self metadata.Incarnation
		want TicketFault
	}{
		"none":               {"", keyP, it.Prefill, TicketMissing},
		"no base64":          {"%%%%", keyP, it.Prefill, TicketMalformed},
		"too long":           {string(bytes.Repeat([]byte{'A'}, maxTicket+1)), keyP, it.Prefill, TicketMalformed},
		"padded":             {base64.URLEncoding.EncodeToString(append(raw, 0)), keyP, it.Prefill, TicketMalformed},
		"no transfer":        {nobody.Seal(keyP), keyP, it.Prefill, TicketMalformed},
		"the other leg's":    {it.Seal(keyD), keyP, it.Prefill, TicketForged},
		"another engine":     {sealed, keyP, metadata.Incarnation{Engine: "prefill-1", Generation: 0x1f}, TicketForeign},
		"another generation": {sealed, keyP, metadata.Incarnation{Engine: "prefill-0", Generation: 0x20}, TicketForeign},
	} {
		if _, err := OpenTicket(c.text, c.key, c.self); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v; want %v", name, err, c.want)
		}
	}
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gatewayClock := func() time.Time { return time.Now().Add(-5 * time.Hour) } // it need not be the engine's
		fresh := func(change func(*GatewayTicket)) GatewayTicket {
			it := aTicket()
			it.ID, it.Issued = NewTransferID(), gatewayClock().Truncate(time.Millisecond)
			if change != nil {
				change(&it)
			}
			return it
		}
		it := fresh(nil)
		g := NewGate(it.Prefill, true)
		admit := func(it GatewayTicket, key []byte) error {
			digest, err := g.Admit(it.Seal(key), metadata.Prefill, it.ID, it.Decode)
			if err == nil && digest != it.Digest() {
				t.Errorf("digest is %x; want %x", digest, it.Digest())
			}
			return err
		}
		check := func(what string, err error, want TicketFault) {
			t.Helper()
			if want == 0 && err != nil || want != 0 && !errors.Is(err, want) {
				t.Errorf("%s: got %v; want %v", what, err, want)
			}
		}
		check("before the gateway has answered", admit(it, keyP), TicketEarly)
		g.Enrol(nil, time.Time{})
		_, err := g.Admit("", metadata.Prefill, it.ID, it.Decode)
		check("of a gateway without keys", err, 0)

		g.Enrol([][]byte{keyP}, gatewayClock())
		_, err = g.Admit("", metadata.Prefill, it.ID, it.Decode)
		check("without a ticket", err, TicketMissing)
		check("a good one", admit(it, keyP), 0)
		check("the same once more", admit(it, keyP), TicketSpent)
		check("under another key", admit(fresh(nil), keyD), TicketForged)
		for name, f := range map[string]func(it GatewayTicket) ([16]byte, error){
			"on the other leg": func(it GatewayTicket) ([16]byte, error) {
				return g.Admit(it.Seal(keyP), metadata.Decode, it.ID, it.Prefill)
			},
			"with another peer": func(it GatewayTicket) ([16]byte, error) {
				return g.Admit(it.Seal(keyP), metadata.Prefill, it.ID, it.Prefill)
			},
			"for another transfer": func(it GatewayTicket) ([16]byte, error) {
				return g.Admit(it.Seal(keyP), metadata.Prefill, NewTransferID(), it.Decode)
			},
		} {
			_, err := f(fresh(nil))
			check(name, err, TicketForeign)
		}

		// Time.
		late := fresh(nil)
		time.Sleep(late.Valid + ticketLeeway - time.Second)
		check("just in time", admit(late, keyP), 0)
		time.Sleep(2 * time.Second)
		check("a copy, after its time", admit(late, keyP), TicketExpired)
		check("of the future", admit(fresh(func(it *GatewayTicket) { it.Issued = it.Issued.Add(time.Minute) }), keyP), TicketExpired)
		time.Sleep(time.Hour)
		check("an hour later", admit(fresh(nil), keyP), 0)
		if len(g.spent) != 1 || len(g.until) != 1 {
			t.Errorf("%d ids are remembered, %d in order; want the last one", len(g.spent), len(g.until))
		}

		// Keys: two gateways with different ones answer in turn; a third key pushes the oldest out.
		g.Enrol([][]byte{keyD}, gatewayClock())
		check("the key before", admit(fresh(nil), keyP), 0)
		check("the new key", admit(fresh(nil), keyD), 0)
		third := bytes.Repeat([]byte{0x33}, 32)
		g.Enrol([][]byte{third, keyP}, gatewayClock())
		check("the newest key", admit(fresh(nil), third), 0)
		check("one that was given with it", admit(fresh(nil), keyP), 0)
		check("one of long ago", admit(fresh(nil), keyD), TicketForged)

		// A key is withdrawn: answers do not name it any more.
		g.Enrol([][]byte{third}, gatewayClock())
		time.Sleep(keyLife)
		check("as long as gateways may answer in turn", admit(fresh(nil), keyP), 0)
		time.Sleep(time.Second)
		check("a key that was withdrawn", admit(fresh(nil), keyP), TicketForged)
		g.Enrol(nil, time.Time{})
		check("the key that was not, hours after it was named", admit(fresh(nil), third), 0)
		_, err = g.Admit("", metadata.Prefill, it.ID, it.Decode)
		check("a gateway that has lost its key opens nothing", err, TicketMissing)
	})
}

// TestGateForgets: one ticket that is valid for long keeps no others in memory, and a gate that is full says so.
func TestGateForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		it := aTicket()
		g := NewGate(it.Prefill, false)
		g.Enrol([][]byte{keyP}, time.Now())
		g.most = 3
		admit := func(valid time.Duration) error {
			it.ID, it.Issued, it.Valid = NewTransferID(), time.Now().Truncate(time.Millisecond), valid
			_, err := g.Admit(it.Seal(keyP), metadata.Prefill, it.ID, it.Decode)
			return err
		}
		for _, valid := range []time.Duration{maxValid, time.Minute, time.Second} {
			if err := admit(valid); err != nil {
				t.Fatal(err)
			}
		}
		if err := admit(time.Minute); !errors.Is(err, TicketFull) {
			t.Errorf("a fourth ticket: %v; want that the gate is full", err)
		}
		for i, after := range []time.Duration{time.Second + 2*ticketLeeway, time.Minute} {
			time.Sleep(after + time.Millisecond)
			if err := admit(maxValid); err != nil {
				t.Errorf("after another %v: %v", after, err)
			}
			if len(g.spent) != 3 || len(g.until) != 3 {
				t.Errorf("%d: %d ids are remembered, %d in order; want 3", i, len(g.spent), len(g.until))
			}
		}
	})
}

func FuzzTicket(f *testing.F) {
	it := aTicket()
	f.Add(it.Seal(keyP))
	f.Add(it.Seal(keyD))
	f.Add("AQ")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := OpenTicket(s, keyP, it.Prefill)
		if err == nil && got.Seal(keyP) != s {
			t.Fatalf("%q was taken for %v, which is written %q", s, &got, got.Seal(keyP))
		}
		b, err := base64.RawURLEncoding.Strict().DecodeString(s)
		if err != nil {
			return
		}
		if parsed, ok := parseTicket(b); ok && !bytes.Equal(parsed.append(nil), b) {
			t.Fatalf("%x was taken for %v", b, &parsed)
		}
	})
}

func BenchmarkTicket(b *testing.B) {
	it := aTicket()
	var room []byte
	b.ReportAllocs()
	for b.Loop() {
		room = it.AppendSealed(room[:0], keyP)
		if _, err := OpenTicket(string(room), keyP, it.Prefill); err != nil {
			b.Fatal(err)
		}
	}
}
