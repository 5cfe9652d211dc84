package router_test

import (
	"crypto/hmac"
	"crypto/sha512"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/kvplane/ticket"
	"pdrouter/metadata"
	"pdrouter/router"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/openai"
)

// fakeSigner signs with an HMAC, which a test can check. Without a secret it fails.
type fakeSigner struct{ secret string }

func (f fakeSigner) Sign(payload []byte) (string, []byte, error) {
	if f.secret == "" {
		return "", nil, errors.New("no key")
	}
	h := hmac.New(sha512.New, []byte(f.secret))
	h.Write(payload)
	return "key", h.Sum(nil), nil
}

func (f fakeSigner) Verify(keyID string, payload, signature []byte) error {
	if _, want, _ := f.Sign(payload); keyID != "key" || !hmac.Equal(signature, want) {
		return errors.New("forged")
	}
	return nil
}

// TestTickets: both legs of every transfer, the handshakes' too, carry the same ticket, which names both engines.
func TestTickets(t *testing.T) {
	s, records, parts := routertest.NewPlane(t, 1, 1)
	signer := fakeSigner{"secret"}
	parts.Tickets, parts.Clients = signer, routertest.Clients{}
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	ask := func(body string) {
		t.Helper()
		if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, body, "Authorization", "Bearer good")); got != routertest.WholeText || !whole {
			t.Fatalf("text %q, whole %v", got, whole)
		}
	}
	salted := routertest.PlainBody[:len(routertest.PlainBody)-1] + `,"cache_salt":"x"}`
	ask(routertest.PlainBody)
	ask(routertest.PlainBody)
	ask(salted)
	records.Publish("decode-0", metadata.Decode, 201, "same") // started anew
	g.Router.Renewed("decode-0")
	g.WaitWarm()
	ask(routertest.PlainBody)

	tickets := map[string][]string{} // of each transfer, as its legs carry them
	var order []string
	for i, q := range s.Cluster.All() {
		id, _ := q.KV["transfer_id"].(string)
		text, _ := q.KV["ticket"].(string)
		peer := q.KV["peer"].(map[string]any)
		got, err := ticket.Open(text, signer)
		if err != nil {
			t.Fatalf("request %d, %s of %s: %v", i, q.Leg, q.Engine, err)
		}
		self, other, generations := got.Decode, got.Prefill, []uint64{200, 201}
		if q.Leg == "prefill" {
			self, other, generations = got.Prefill, got.Decode, []uint64{100}
		}
		if self.Engine != q.Engine || !slices.Contains(generations, self.Generation) ||
			got.ID.String() != id || other.Engine != peer["engine"] || float64(other.Generation) != peer["generation"] {
			t.Errorf("request %d to %s: %v; its leg is of %s with %v", i, q.Engine, &got, id, peer)
		}
		if age := time.Since(got.Issued); age < -time.Second || age > time.Minute || got.Valid.Milliseconds() != int64(q.KV["valid_ms"].(float64)) {
			t.Errorf("request %d: issued %v ago, valid for %v; valid_ms is %v", i, age, got.Valid, q.KV["valid_ms"])
		}
		if tickets[id] == nil {
			order = append(order, id)
		}
		tickets[id] = append(tickets[id], text)
	}
	var digests, contexts []string
	for _, id := range order {
		x := tickets[id]
		if len(x) != 2 || x[0] != x[1] {
			t.Fatalf("transfer %s: the legs carry %q; want one ticket on both", id, x)
		}
		got, err := ticket.Open(x[0], signer)
		if err != nil {
			t.Fatal(err)
		}
		d := got.Digest()
		digests, contexts = append(digests, string(d[:])), append(contexts, string(got.Context[:]))
	}
	if len(order) != 6 { // handshake, three requests, handshake, request
		t.Fatalf("%d transfers; want 6", len(order))
	}
	seen := map[string]bool{}
	for _, d := range digests {
		if seen[d] {
			t.Error("two transfers have one digest")
		}
		seen[d] = true
	}
	if contexts[1] != contexts[2] || contexts[1] == contexts[3] || contexts[1] == contexts[0] || contexts[1] != contexts[5] {
		t.Errorf("contexts are %x; want one for the client, another with his salt, another for the gateway itself", contexts)
	}
}

// TestTicketsHaveTheSealedSalt has a gateway that isolates tenants: what engines check is the salt that they get.
func TestTicketsHaveTheSealedSalt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(strings.Repeat("k", openai.MinSealKey)), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _, parts := routertest.NewPlane(t, 1, 1)
	signer := fakeSigner{"secret"}
	parts.Tickets, parts.Clients = signer, byName{}
	s.Config.IsolatePrefixCache, s.Config.PrefixCacheSecretFile = true, file
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.PlainBody[:len(routertest.PlainBody)-1]+`,"cache_salt":"x"}`, "Authorization", "Bearer alice")); got != routertest.WholeText || !whole {
		t.Fatalf("text %q, whole %v", got, whole)
	}
	all := s.Cluster.All()
	q := all[len(all)-1]
	got, err := ticket.Open(q.KV["ticket"].(string), signer)
	if err != nil {
		t.Fatal(err)
	}
	want, err := router.TicketContext(s.Config, "tiny", "s", "alice", `"x"`)
	if err != nil {
		t.Fatal(err)
	}
	if got.Context != want {
		t.Errorf("context %x; want %x", got.Context, want)
	}
}

// TestNoTicketsWithoutAKey: a gateway that signs nothing says nothing of tickets.
func TestNoTicketsWithoutAKey(t *testing.T) {
	for name, signer := range map[string]kvtransfer.Signer{"none": nil, "it fails": fakeSigner{}} {
		t.Run(name, func(t *testing.T) {
			s, _, parts := routertest.NewPlane(t, 1, 1)
			parts.Tickets = signer
			g := routertest.Start(t, s.Config, parts)
			g.WaitWarm()
			if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.PlainBody)); got != routertest.WholeText || !whole {
				t.Fatalf("text %q, whole %v", got, whole)
			}
			for _, q := range s.Cluster.All() {
				if _, ok := q.KV["ticket"]; ok {
					t.Errorf("%s was sent %v", q.Leg, q.KV)
				}
			}
		})
	}
}

// TestRefusedTicket: an engine that does not accept a ticket, because it does not trust the gateway's key, costs the
// request an attempt. When there is no attempt left, the client is told to come again.
func TestRefusedTicket(t *testing.T) {
	for _, row := range []struct {
		name   string
		p, d   int
		faults map[string][]routertest.Fault
		status int
	}{
		{"prefill, another serves", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoTicket}}}, 200},
		{"decode, another serves", 1, 2, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoTicket}}}, 200},
		{"nobody serves", 1, 1, map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoTicket}}, "decode-0": {{Leg: "decode", Do: routertest.DoTicket}}}, 503},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, _, parts := routertest.NewPlane(t, row.p, row.d)
			parts.Tickets = fakeSigner{"secret"}
			if row.status != 200 {
				s.Config.Limits.Attempts = 1 // else decode serves alone in the end
			}
			g := routertest.Start(t, s.Config, parts)
			g.WaitWarm()
			s.SetFaults(row.faults)
			r := g.Post(routertest.PathCompletions, routertest.PlainBody)
			if r.Status != row.status {
				t.Errorf("status %d: %s; want %d", r.Status, r.Body, row.status)
			}
			if row.status != 200 && r.Header.Get("Retry-After-Ms") == "" {
				t.Errorf("the client is not told to come again: %v", r.Header)
			}
			for _, e := range g.Router.Stats().Engines {
				if !e.Up {
					t.Errorf("%s was taken for down", e.Name)
				}
			}
			g.WaitIdle()
			s.CheckNothingHeld(t)
		})
	}
}
