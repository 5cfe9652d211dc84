package ticket_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/kvplane/ticket"
	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

func aTicket() ticket.Ticket {
	return ticket.Ticket{
		ID: transfer.ID{0: 1, 15: 2}, Prefill: metadata.Incarnation{Engine: "prefill-0", Generation: 0x1f}, Decode: metadata.Incarnation{Engine: "decode-0", Generation: 1 << 60},
		Context: [16]byte{3, 4}, Tokens: 300, Issued: time.UnixMilli(1_700_000_000_123).UTC(), Valid: 90 * time.Second,
	}
}

// gateway is the record key of one gateway, made of a seed, for readers who trust it alone.
func gateway(t testing.TB, seed byte) *records.Records {
	t.Helper()
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	text := base64.RawURLEncoding.EncodeToString
	path := filepath.Join(t.TempDir(), "key.jwk")
	jwk := `{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"gateway-` + hex.EncodeToString([]byte{seed}) + `","x":"` + text(private[32:]) + `","d":"` + text(private[:32]) + `"}`
	if err := os.WriteFile(path, []byte(jwk), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := keys.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := keys.Trust(key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := records.New(key, keys)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sign(t testing.TB, it ticket.Ticket, by ticket.Signer) string {
	t.Helper()
	text, err := it.AppendSigned(nil, by)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// goldenPayload is what aTicket signs, written out by hand, as an engine in another language would read it.
const goldenPayload = "02" + // version
	"01000000000000000000000000000002" + // transfer id
	"09" + "70726566696c6c2d30" + "1f" + // name and generation of prefill
	"08" + "6465636f64652d30" + "808080808080808010" + // and of decode
	"03040000000000000000000000000000" + // context
	"ac02" + // tokens
	"fbd095ffbc31" + // issued, ms since 1970
	"90bf05" // valid, ms

// golden is the whole ticket, signed by Ed25519 (RFC 8032) with the seed 32 times 0x11.
const golden = "AgEAAAAAAAAAAAAAAAAAAAIJcHJlZmlsbC0wHwhkZWNvZGUtMICAgICAgICAEAMEAAAAAAAAAAAAAAAAAACsAvvQlf-8MZC_BQpnYXRld2F5LTExP53qXqVYUdd5nCSnNvP_W0hAkxCJ3IGwfKIAWck5UKO-XMk7Uu--osQZjmJWTXMe5u0zQdGPWxsjurK4ve66Aw"

func TestTicketBytes(t *testing.T) {
	payload, err := hex.DecodeString(goldenPayload)
	if err != nil {
		t.Fatal(err)
	}
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{0x11}, ed25519.SeedSize))
	b := append(bytes.Clone(payload), "\x0agateway-11"...)
	b = append(b, ed25519.Sign(private, append([]byte("pdrouter kvplane ticket v2\x00"), payload...))...)
	it := aTicket()
	got := sign(t, it, gateway(t, 0x11).Tickets())
	if want := base64.RawURLEncoding.EncodeToString(b); got != want || got != golden {
		t.Errorf("ticket is\n%s; by hand it is\n%s; want\n%s", got, want, golden)
	}
	sum := sha256.Sum256(payload)
	if got := it.Digest(); !bytes.Equal(got[:], sum[:16]) {
		t.Errorf("digest is %x; want %x", got, sum[:16])
	}
}

func TestTicketRoundTrip(t *testing.T) {
	want := aTicket()
	for _, g := range []*records.Records{gateway(t, 0x11), gateway(t, 0x22)} {
		got, err := ticket.Open(sign(t, want, g.Tickets()), g.Tickets())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("ticket differs (-got +want):\n%s", diff)
		}
		if got.Digest() != want.Digest() {
			t.Error("the digest depends on the key")
		}
	}
	changed := want
	changed.Context[0]++
	if changed.Digest() == want.Digest() {
		t.Error("two tickets have one digest")
	}
}

func TestTicketRefused(t *testing.T) {
	it := aTicket()
	g := gateway(t, 0x11)
	raw, err := base64.RawURLEncoding.DecodeString(sign(t, it, g.Tickets()))
	if err != nil {
		t.Fatal(err)
	}
	nobody := it
	nobody.ID = transfer.ID{}
	for i := range raw {
		for _, bit := range []byte{1, 0x80} {
			changed := bytes.Clone(raw)
			changed[i] ^= bit
			if _, err := ticket.Open(base64.RawURLEncoding.EncodeToString(changed), g.Tickets()); err == nil {
				t.Errorf("byte %d of %d changed: the ticket is accepted", i, len(raw))
			}
		}
		if _, err := ticket.Open(base64.RawURLEncoding.EncodeToString(raw[:i]), g.Tickets()); err == nil {
			t.Errorf("%d of %d bytes are accepted", i, len(raw))
		}
	}
	more := append(bytes.Clone(raw), 0)
	for name, c := range map[string]struct {
		text string
		want ticket.Fault
	}{
		"none":                {"", ticket.Missing},
		"no base64":           {"%%%%", ticket.Malformed},
		"too long":            {string(bytes.Repeat([]byte{'A'}, 1025)), ticket.Malformed},
		"a byte too many":     {base64.RawURLEncoding.EncodeToString(more), ticket.Malformed},
		"padded":              {base64.URLEncoding.EncodeToString(more), ticket.Malformed},
		"no transfer":         {sign(t, nobody, g.Tickets()), ticket.Malformed},
		"of another gateway":  {sign(t, it, gateway(t, 0x22).Tickets()), ticket.Forged},
		"signed as a record":  {sign(t, it, g), ticket.Forged},
		"signed as a fact":    {sign(t, it, g.Shared()), ticket.Forged},
		"of an older version": {"AQ", ticket.Malformed},
	} {
		if _, err := ticket.Open(c.text, g.Tickets()); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v; want %v", name, err, c.want)
		}
	}
	// And the other way round: neither what a ticket signs, nor the ticket as a whole, passes for a record.
	payload, err := hex.DecodeString(goldenPayload)
	if err != nil {
		t.Fatal(err)
	}
	signature := raw[len(raw)-ed25519.SignatureSize:]
	if g.Tickets().Verify("gateway-11", payload, signature) != nil || g.Verify("gateway-11", payload, signature) == nil {
		t.Error("the signature of a ticket verifies as that of a record, or not as its own")
	}
	if _, err := metadata.UnmarshalSigned(raw, g); err == nil {
		t.Error("a ticket is read as a signed record")
	}
}

// TestTicketRoom: the longest names and key id that are allowed make a ticket that is accepted.
func TestTicketRoom(t *testing.T) {
	name := string(bytes.Repeat([]byte{'e'}, metadata.MaxName))
	it := aTicket()
	it.Prefill, it.Decode = metadata.Incarnation{Engine: name, Generation: ^uint64(0)}, metadata.Incarnation{Engine: name, Generation: ^uint64(0)}
	it.Tokens, it.Valid = 1<<40, 24*time.Hour
	long := &named{gateway(t, 0x11).Tickets(), string(bytes.Repeat([]byte{'k'}, 128))}
	if _, err := ticket.Open(sign(t, it, long), long); err != nil {
		t.Error(err)
	}
	long.id += "k"
	if _, err := it.AppendSigned(nil, long); err == nil {
		t.Error("a key id that no engine reads is written")
	}
}

// named gives a key another id.
type named struct {
	*records.Domain
	id string
}

func (n *named) Sign(payload []byte) (string, []byte, error) {
	_, signature, err := n.Domain.Sign(payload)
	return n.id, signature, err
}

func (n *named) Verify(id string, payload, signature []byte) error {
	if id != n.id {
		return errors.New("another key")
	}
	return n.Domain.Verify("gateway-11", payload, signature)
}

func FuzzTicket(f *testing.F) {
	g := gateway(f, 0x11).Tickets()
	it := aTicket()
	good := sign(f, it, g)
	f.Add(good)
	f.Add(sign(f, it, gateway(f, 0x22).Tickets()))
	f.Add(good[:len(good)-8])
	f.Add("AQ")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ticket.Open(text, g)
		if err == nil && text != good {
			t.Fatalf("%q was taken for %v, which nobody has signed", text, &got)
		}
		// Whatever the signature is: a ticket that is read is written as it was read.
		keys := &echo{}
		if got, err = ticket.Open(text, keys); err == nil && sign(t, got, keys) != text {
			t.Fatalf("%q was taken for %v, which is written %q", text, &got, sign(t, got, keys))
		}
	})
}

// echo takes every signature and writes the last one.
type echo struct {
	id        string
	signature []byte
}

func (e *echo) Verify(id string, _, signature []byte) error {
	e.id, e.signature = id, signature
	return nil
}

func (e *echo) Sign([]byte) (string, []byte, error) { return e.id, e.signature, nil }

func BenchmarkSign(b *testing.B) {
	it, by := aTicket(), gateway(b, 0x11).Tickets()
	var room []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if room, err = it.AppendSigned(room[:0], by); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	it, by := aTicket(), gateway(b, 0x11).Tickets()
	text := sign(b, it, by)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ticket.Open(text, by); err != nil {
			b.Fatal(err)
		}
	}
}
