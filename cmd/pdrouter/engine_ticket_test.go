package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/internal/demo"
	"pdrouter/internal/reload"
	"pdrouter/kvplane"
	"pdrouter/kvplane/ticket"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
)

// ticketPlant is a gateway that signs tickets, with a prefill engine and two decode engines, run inside the test.
type ticketPlant struct {
	plant
	clients string            // base URL of the gateway's OpenAI routes
	urls    map[string]string // of the engines'
	records *records.Records  // what the gateway signs with
	runs    map[string]metadata.Incarnation
	trusted string // the folder with the record keys that the engines trust
	gateway string // the file in it with the gateway's key
}

func newTicketPlant(t *testing.T) *ticketPlant {
	t.Helper()
	p := &ticketPlant{plant: plant{dir: t.TempDir()}, urls: map[string]string{}, runs: map[string]metadata.Incarnation{}}
	newKey := func(dir string) (key *keys.Key, private, public string) {
		key, err := keys.Generate(keys.EdDSA)
		if err == nil {
			private, public, err = keys.Write(filepath.Join(p.dir, dir), key)
		}
		if err != nil {
			t.Fatal(err)
		}
		return key, private, public
	}
	own, private, public := newKey("gateway")
	_, _, other := newKey("other gateway")
	p.trusted = filepath.Join(p.dir, "trusted")
	p.gateway = filepath.Join(p.trusted, filepath.Base(public))
	for _, from := range []string{public, other} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = errors.Join(os.MkdirAll(p.trusted, 0o700), os.WriteFile(filepath.Join(p.trusted, filepath.Base(from)), b, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p.key, _, p.public = newKey("agents")
	trusted, err := keys.Trust(own)
	if err != nil {
		t.Fatal(err)
	}
	if p.records, err = records.New(own, trusted); err != nil {
		t.Fatal(err)
	}
	ports, err := demo.FreeAddresses(6)
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(p.dir, "gateway.token")
	if err := os.WriteFile(token, []byte(p.token(t, "", "", auth.PlaneScope)), 0o600); err != nil {
		t.Fatal(err)
	}
	engine := func(name string, i int) string {
		p.urls[name] = "http://" + ports[i]
		return fmt.Sprintf(`{name: %s, url: "http://%s", control: "http://%s"}`, name, ports[i], ports[i+3])
	}
	config := filepath.Join(p.dir, "pdrouter.yaml")
	text := `
listen: {clients: "127.0.0.1:0", agents: "127.0.0.1:0", operations: "127.0.0.1:0"}
models:
- name: reference
  connector: kvplane
  prefill: [` + engine("prefill-0", 0) + `]
  decode: [` + engine("decode-0", 1) + `, ` + engine("decode-1", 2) + `]
policy: {default: {split: {min_prompt_tokens: 4}}}
auth:
  agents: {keys: [` + p.public + `], issuer: ` + defaultIssuer + `}
  records: {key_file: ` + private + `, trusted: [` + public + `]}
  control_token_file: ` + token + `
`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := serveFile(t, config) // until the engines, which start later, have withdrawn their records
	p.url, p.clients = "http://"+g.Agents().String(), "http://"+g.Clients().String()
	for i, e := range []struct{ name, role, tp string }{{"prefill-0", "prefill", "2"}, {"decode-0", "decode", "1"}, {"decode-1", "decode", "4"}} {
		p.start(t, e.name, e.role, "--tp", e.tp, "--listen", ports[i], "--control", ports[i+3], "--record-keys", p.trusted)
		own := filepath.Join(p.dir, e.name+".read")
		if err := os.WriteFile(own, []byte(p.token(t, e.name, e.role, auth.ReadScope)), 0o600); err != nil {
			t.Fatal(err)
		}
		reader, err := client.New(client.Config{URL: p.url}, client.TokenFile(own), p.records, nil)
		if err != nil {
			t.Fatal(err)
		}
		recs, err := reader.Engine(t.Context(), e.name)
		if err != nil {
			t.Fatal(err)
		}
		p.runs[e.name] = recs[0].Incarnation
	}
	until(t, "the pairs are ready", func() bool { return readiness(t, g).PairsWarm == 2 })
	return p
}

// ticket is one that the gateway could have given for a new transfer.
func (p *ticketPlant) ticket(t *testing.T, id kvplane.TransferID, decode string) string {
	t.Helper()
	it := ticket.Ticket{ID: id, Prefill: p.runs["prefill-0"], Decode: p.runs[decode], Issued: time.Now(), Valid: 20 * time.Second}
	text, err := it.AppendSigned(nil, p.records.Tickets())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// leg is what one leg of a request to an engine came to.
type leg struct {
	status     int
	code, body string
}

// send asks an engine for a leg as somebody who has the engine's credential.
func (p *ticketPlant) send(t *testing.T, engine string, produce bool, id kvplane.TransferID, peer, ticket string) leg {
	t.Helper()
	if ticket != "" {
		ticket = `,"ticket":"` + ticket + `"`
	}
	body := fmt.Sprintf(`{"prompt":"The sea, the sea","max_tokens":1,"kv_transfer_params":{"do_remote_decode":%v,"do_remote_prefill":%v,"transfer_id":%q,"peer":{"engine":%q,"generation":%d},"valid_ms":20000%s}}`,
		produce, !produce, id, peer, p.runs[peer].Generation, ticket)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.urls[engine]+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return leg{}
	}
	req.Header.Set("Authorization", "Bearer the engine's own key")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return leg{}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	var a struct {
		Error struct {
			Code any    `json:"code"`
			Type string `json:"type"`
		} `json:"error"`
	}
	if err := json.Unmarshal(b, &a); err != nil {
		t.Errorf("%s: %v", b, err)
	}
	code, _ := a.Error.Code.(string)
	return leg{resp.StatusCode, code, string(b)}
}

// TestTicketsEndToEnd: requests through the gateway are split over engines that ask for tickets, and nobody else, though
// he reaches them and has their credential, has them take a leg.
func TestTicketsEndToEnd(t *testing.T) {
	p := newTicketPlant(t)
	one := startEngine(t)
	const ask = `{"model":"reference","prompt":"The sea, the sea, the open sea","max_tokens":12,"ignore_eos":true}`
	_, want, err := complete(one.url, ask)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		resp, err := http.Post(p.clients+"/v1/completions", "application/json", strings.NewReader(ask))
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Choices []struct{ Text string } }
		err = json.NewDecoder(resp.Body).Decode(&answer)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || len(answer.Choices) != 1 || answer.Choices[0].Text != want || resp.Header.Get("X-Pdrouter-Reason") != "split" {
			t.Fatalf("status %d, %v, %+v, %v; want %q, split", resp.StatusCode, err, answer, resp.Header, want)
		}
	}

	refused := func(what string, got leg) {
		t.Helper()
		if got.status != http.StatusForbidden || got.code != "ticket" {
			t.Errorf("%s: status %d %s; want 403, code ticket", what, got.status, got.body)
		}
	}
	id := kvplane.NewTransferID
	a := id()
	refused("prefill without a ticket", p.send(t, "prefill-0", true, a, "decode-0", ""))
	refused("decode without a ticket", p.send(t, "decode-0", false, a, "prefill-0", ""))
	refused("decode with the ticket of another decode engine", p.send(t, "decode-1", false, a, "prefill-0", p.ticket(t, a, "decode-0")))
	refused("decode with the ticket of another transfer", p.send(t, "decode-0", false, id(), "prefill-0", p.ticket(t, a, "decode-0")))
	refused("prefill for another decode engine", p.send(t, "prefill-0", true, a, "decode-1", p.ticket(t, a, "decode-0")))
	refused("prefill with the ticket of another transfer", p.send(t, "prefill-0", true, id(), "decode-0", p.ticket(t, a, "decode-0")))

	// A ticket that somebody has seen serves once.
	b := id()
	both := p.ticket(t, b, "decode-0")
	ended := make(chan leg, 1)
	go func() { ended <- p.send(t, "prefill-0", true, b, "decode-0", both) }()
	if got := p.send(t, "decode-0", false, b, "prefill-0", both); got.status != http.StatusOK {
		t.Errorf("decode with its ticket: %d %s", got.status, got.body)
	}
	if got := <-ended; got.status != http.StatusOK {
		t.Errorf("prefill with its ticket: %d %s", got.status, got.body)
	}
	refused("prefill once more", p.send(t, "prefill-0", true, b, "decode-0", both))
	refused("decode once more", p.send(t, "decode-0", false, b, "prefill-0", both))

	for name, want := range map[string][]string{
		"prefill-0": {`fault="missing"} 1`, `fault="foreign"} 2`, `fault="spent"} 1`},
		"decode-0":  {`fault="missing"} 1`, `fault="foreign"} 1`, `fault="spent"} 1`},
		"decode-1":  {`fault="foreign"} 1`},
	} {
		resp, err := http.Get(p.urls[name] + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(got), "refengine_ticket_refusals_total{"+w) {
				t.Errorf("%s does not count %s", name, w)
			}
		}
	}
}

// TestWithdrawnRecordKeyOpensNoTicket takes the gateway's key out of the keys that engines trust, as an operator does whose gateway was
// broken into. From the next reading of the keys on, no leg is served under a ticket of that key.
func TestWithdrawnRecordKeyOpensNoTicket(t *testing.T) {
	t.Parallel() // it waits for processes more than it works
	p := newTicketPlant(t)
	ask := func() leg {
		id := kvplane.NewTransferID()
		return p.send(t, "prefill-0", true, id, "decode-0", p.ticket(t, id, "decode-0"))
	}
	if got := ask(); got.status != http.StatusOK {
		t.Fatalf("while the key is trusted: %d %s", got.status, got.body)
	}
	if err := os.Remove(p.gateway); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(3 * reload.ReloadEvery)
	for {
		got := ask()
		if got.status == http.StatusForbidden && got.code == "ticket" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the key was withdrawn: %d %s; want 403, code ticket", got.status, got.body)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
