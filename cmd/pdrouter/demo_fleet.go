package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/router"
	"pdrouter/router/report"
)

// demoIssuer is who signs the demo's tokens.
const demoIssuer = "pdrouter-demo"

// demoEngine is one reference engine of the demo.
type demoEngine struct {
	name, role string
	tp         int
	address    string // of the OpenAI routes
	control    string // of the control routes
	signKey    string // file of its own key, which its token is bound to
}

// demoFleet is a gateway with its engines, each a process of its own, and one engine apart from them all.
type demoFleet struct {
	dir                string
	publicKey          string    // file of the key that checks the agents' tokens
	recordKeys         [2]string // files of the key that signs records and tickets: its private and its public part
	client, operations string    // base URLs of the gateway
	alone              string    // base URL of the engine that answers without any hand-over
	engines            []demoEngine
	processes          []*process // in the order of their start
}

// startFleet writes keys, tokens and the configuration into dir, starts everything, and returns when the gateway is
// ready to serve every pair. On an error the fleet holds what was started.
func startFleet(ctx context.Context, dir, transport string) (*demoFleet, error) {
	f := &demoFleet{dir: dir}
	ports, err := freeAddresses(3 + 2*4 + 1)
	if err != nil {
		return f, err
	}
	take := func() string {
		a := ports[0]
		ports = ports[1:]
		return a
	}
	clients, agents, operations := take(), take(), take()
	f.client, f.operations = "http://"+clients, "http://"+operations
	for _, e := range []demoEngine{{name: "prefill-0", role: "prefill", tp: 2}, {name: "prefill-1", role: "prefill", tp: 2},
		{name: "decode-0", role: "decode", tp: 1}, {name: "decode-1", role: "decode", tp: 4}} {
		e.address, e.control = take(), take()
		f.engines = append(f.engines, e)
	}
	if err := f.writeKeys(); err != nil {
		return f, err
	}
	if err := os.WriteFile(f.path("pdrouter.yaml"), []byte(f.config(clients, agents, operations)), 0o600); err != nil {
		return f, err
	}
	if err := f.start("gateway", "serve", "-c", f.path("pdrouter.yaml")); err != nil {
		return f, err
	}
	for _, e := range f.engines {
		if err := f.startEngine(e, agents, "--transport", transport); err != nil {
			return f, err
		}
	}
	alone := take()
	f.alone = "http://" + alone
	if err := f.start("alone", "mock-engine", "--name", "alone", "--role", "both", "--model", demoModel, "--listen", alone); err != nil {
		return f, err
	}
	return f, f.wait(ctx)
}

func (f *demoFleet) path(name string) string { return filepath.Join(f.dir, name) }

func (f *demoFleet) start(name string, args ...string) error {
	p, err := startProcess(f.dir, name, args...)
	if err == nil {
		f.processes = append(f.processes, p)
	}
	return err
}

// startEngine starts an engine, known to the gateway whose agents' listener is at that address.
func (f *demoFleet) startEngine(e demoEngine, agents string, more ...string) error {
	return f.start(e.name, append([]string{"mock-engine", "--name", e.name, "--role", e.role, "--tp", fmt.Sprint(e.tp), "--model", demoModel,
		"--listen", e.address, "--control", e.control, "--gateway", "http://" + agents, "--token-file", f.path(e.name + ".token"),
		"--sign-key", e.signKey, "--control-keys", f.publicKey, "--issuer", demoIssuer, "--record-keys", f.recordKeys[1]}, more...)...)
}

// writeKeys makes the key that signs the agents' tokens, a key for each engine and a token that is bound to it, and the
// gateway's own key and token.
func (f *demoFleet) writeKeys() error {
	signer, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return err
	}
	if _, f.publicKey, err = keys.Write(f.path("keys"), signer); err != nil {
		return err
	}
	own, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return err
	}
	if f.recordKeys[0], f.recordKeys[1], err = keys.Write(f.path("gateway-keys"), own); err != nil {
		return err
	}
	token := func(file string, g auth.Grant) error {
		g.Issuer, g.Audience, g.TTL = demoIssuer, auth.MetadataAudience, 24*time.Hour
		t, err := auth.Mint(signer, g)
		if err != nil {
			return err
		}
		return os.WriteFile(f.path(file), []byte(t+"\n"), 0o600)
	}
	for i := range f.engines {
		e := &f.engines[i]
		key, err := keys.Generate(keys.EdDSA)
		if err != nil {
			return err
		}
		if e.signKey, _, err = keys.Write(f.path(e.name+"-keys"), key); err != nil {
			return err
		}
		err = token(e.name+".token", auth.Grant{Subject: e.name, Engine: e.name, Role: e.role,
			Scopes: []string{auth.WriteScope, auth.ReadScope}, Confirm: key.Public()})
		if err != nil {
			return err
		}
	}
	return token("gateway.token", auth.Grant{Subject: "gateway", Scopes: []string{auth.PlaneScope}})
}

func (f *demoFleet) config(clients, agents, operations string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, agents: %q, operations: %q}\n", clients, agents, operations)
	fmt.Fprintf(&b, "models:\n- name: %s\n  connector: kvplane\n", demoModel)
	for _, role := range []string{"prefill", "decode"} {
		fmt.Fprintf(&b, "  %s:\n", role)
		for _, e := range f.engines {
			if e.role == role {
				fmt.Fprintf(&b, "  - {name: %s, url: \"http://%s\", control: \"http://%s\"}\n", e.name, e.address, e.control)
			}
		}
	}
	b.WriteString("policy: {default: {split: {min_prompt_tokens: 16}, prefill: round_robin, decode: round_robin}}\n")
	fmt.Fprintf(&b, "auth: {agents: {keys: [%q], issuer: %s}, records: {key_file: %q, trusted: [%q]}, control_token_file: gateway.token}\n",
		f.publicKey, demoIssuer, f.recordKeys[0], f.recordKeys[1])
	// The gateway may ask an engine before it listens: without slow start it has its share as soon as it is up.
	b.WriteString("timeouts: {health: 500ms, pre_stop_delay: 1ms}\nhealth: {slow_start: 0s}\nlog: {format: text}\n")
	return b.String()
}

// freeAddresses returns n loopback addresses that nobody listens on at this moment. They lie below the ports that
// systems give to outgoing connections: else one process that dials another's address before it listens may take the
// very port, and even be connected to itself.
func freeAddresses(n int) ([]string, error) {
	const first, last = 20000, 32000
	var out []string
	for port, tried := first+rand.IntN(last-first), 0; len(out) < n; port, tried = port+1, tried+1 {
		if tried > last-first {
			return nil, fmt.Errorf("no %d free ports between %d and %d", n, first, last)
		}
		if port >= last {
			port = first
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if ln, err := net.Listen("tcp", address); err == nil {
			_ = ln.Close()
			out = append(out, address)
		}
	}
	return out, nil
}

// wait returns when every engine answers, and the gateway follows all and has made every pair known to each other.
func (f *demoFleet) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ready := func() error {
		for _, e := range f.engines {
			if err := f.fetch(ctx, "http://"+e.address+"/health", nil); err != nil {
				return err
			}
		}
		if err := f.fetch(ctx, f.alone+"/health", nil); err != nil {
			return err
		}
		var state router.Stats
		if err := f.fetch(ctx, f.operations+"/ready", &state); err != nil {
			return err
		}
		for _, e := range state.Engines {
			if !e.Up || e.Events == nil || !*e.Events {
				return fmt.Errorf("the gateway does not follow %s", e.Name)
			}
		}
		if len(state.Pairs) > 0 { // those that are not warm
			p := state.Pairs[0]
			return fmt.Errorf("%s and %s do not know each other: %s", p.Prefill, p.Decode, p.Why)
		}
		return nil
	}
	for {
		err := ready()
		if err == nil {
			return nil
		}
		for _, p := range f.processes {
			if ended, how := p.ended(); ended {
				return fmt.Errorf("%s ended before it was ready: %w", p.name, how)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready after a minute: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// fetch reads a JSON answer into v, or only checks that it is 200 if v is nil.
func (f *demoFleet) fetch(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", url, resp.StatusCode)
	}
	if v == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// books returns what the gateway knows of a finished request, waiting a moment for the engines' reports.
func (f *demoFleet) books(ctx context.Context, id string) (report.Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		var s report.Summary
		err := f.fetch(ctx, f.operations+"/requests?id="+id, &s)
		if err == nil && (s.Prefill == "" || s.Transfer != nil && s.Transfer.Ready && s.Transfer.Blocks > 0) {
			return s, nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = errors.New("the engines never reported its transfer")
			}
			return s, fmt.Errorf("request %s: %w", id, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// transportUsed is what the engines say moves their blocks.
func (f *demoFleet) transportUsed() string {
	for _, p := range f.processes {
		if _, after, found := strings.Cut(p.tail(5), ", transport "); found {
			used, _, _ := strings.Cut(after, ",")
			return used
		}
	}
	return "unknown"
}

// stop ends everything, the gateway last, to which the engines say that they go, and reports whoever did not stop
// cleanly.
func (f *demoFleet) stop() error {
	var errs []error
	for _, p := range slices.Backward(f.processes) {
		errs = append(errs, p.stop(10*time.Second))
	}
	return errors.Join(errs...)
}

// tail returns err's likely cause from the logs: the last lines of whoever ended by itself, else of the gateway.
func (f *demoFleet) tail() error {
	for _, p := range f.processes {
		if ended, err := p.ended(); ended && err != nil {
			return fmt.Errorf("%s printed:\n%s", p.name, p.tail(20))
		}
	}
	if len(f.processes) > 0 {
		return fmt.Errorf("gateway printed:\n%s", f.processes[0].tail(20))
	}
	return nil
}
