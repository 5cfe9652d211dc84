package router_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/kvplane"
	"pdrouter/metadata"
	"pdrouter/router"
	"pdrouter/router/kvtransfer"
	"pdrouter/router/openai"
)

// fakeEnroller derives keys that a test can derive too. Without a secret it has none.
type fakeEnroller struct{ secret string }

func (f fakeEnroller) Enrolment(id string) ([][]byte, error) {
	if f.secret == "" {
		return nil, nil
	}
	own, other := sha256.Sum256([]byte(f.secret+id)), sha256.Sum256([]byte("another gateway's"+id))
	return [][]byte{own[:], other[:]}, nil
}

// TestTickets: both legs of every transfer, the handshakes' too, carry a ticket of the engine that they go to, and the
// two are of one transfer.
func TestTickets(t *testing.T) {
	s, records, parts := routertest.NewPlane(t, 1, 1)
	enroller := fakeEnroller{"secret"}
	parts.Tickets, parts.Clients = enroller, routertest.Clients{}
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
	records.Publish("decode-0", metadata.Decode, 201, "same") // started anew: it has another key
	g.Router.Renewed("decode-0")
	g.WaitWarm()
	ask(routertest.PlainBody)

	type legs struct{ prefill, decode *kvplane.GatewayTicket }
	transfers := map[string]*legs{}
	var order []string
	for i, q := range s.Cluster.All() {
		id, _ := q.KV["transfer_id"].(string)
		sealed, _ := q.KV["ticket"].(string)
		peer := q.KV["peer"].(map[string]any)
		generations := []uint64{100}
		if q.Leg == "decode" {
			generations = []uint64{200, 201}
		}
		var got kvplane.GatewayTicket
		var err error
		for _, generation := range generations {
			self := metadata.Incarnation{Engine: q.Engine, Generation: generation}
			keys, _ := enroller.Enrolment(self.ID())
			if got, err = kvplane.OpenTicket(sealed, keys[0], self); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatalf("request %d, %s of %s: %v", i, q.Leg, q.Engine, err)
		}
		other := got.Prefill
		if q.Leg == "prefill" {
			other = got.Decode
		}
		if got.ID.String() != id || other.Engine != peer["engine"] || float64(other.Generation) != peer["generation"] {
			t.Errorf("request %d: %v; its leg is of %s with %v", i, &got, id, peer)
		}
		if age := time.Since(got.Issued); age < -time.Second || age > time.Minute || got.Valid.Milliseconds() != int64(q.KV["valid_ms"].(float64)) {
			t.Errorf("request %d: issued %v ago, valid for %v; valid_ms is %v", i, age, got.Valid, q.KV["valid_ms"])
		}
		x := transfers[id]
		if x == nil {
			x = &legs{}
			transfers[id], order = x, append(order, id)
		}
		if q.Leg == "prefill" {
			x.prefill = &got
		} else {
			x.decode = &got
		}
	}
	var digests, contexts []string
	for _, id := range order {
		x := transfers[id]
		if x.prefill == nil || x.decode == nil || x.prefill.Digest() != x.decode.Digest() {
			t.Fatalf("transfer %s: the legs' tickets are not of one transfer: %+v", id, x)
		}
		d := x.prefill.Digest()
		digests, contexts = append(digests, string(d[:])), append(contexts, string(x.prefill.Context[:]))
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
	enroller := fakeEnroller{"secret"}
	parts.Tickets, parts.Clients = enroller, byName{}
	s.Config.IsolatePrefixCache, s.Config.PrefixCacheSecretFile = true, file
	g := routertest.Start(t, s.Config, parts)
	g.WaitWarm()
	if got, whole := routertest.Text(t, g.Post(routertest.PathCompletions, routertest.PlainBody[:len(routertest.PlainBody)-1]+`,"cache_salt":"x"}`, "Authorization", "Bearer alice")); got != routertest.WholeText || !whole {
		t.Fatalf("text %q, whole %v", got, whole)
	}
	all := s.Cluster.All()
	q := all[len(all)-1]
	self := metadata.Incarnation{Engine: q.Engine, Generation: map[string]uint64{"prefill": 100, "decode": 200}[q.Leg]}
	keys, _ := enroller.Enrolment(self.ID())
	got, err := kvplane.OpenTicket(q.KV["ticket"].(string), keys[0], self)
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
	for name, enroller := range map[string]kvtransfer.Enroller{"none": nil, "no key": fakeEnroller{}} {
		t.Run(name, func(t *testing.T) {
			s, _, parts := routertest.NewPlane(t, 1, 1)
			parts.Tickets = enroller
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

// TestRefusedTicket: an engine that does not accept a ticket, because it knows another gateway's key or none yet, costs
// the request an attempt. When there is
// no attempt left, the client is told to come again.
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
			parts.Tickets = fakeEnroller{"secret"}
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
