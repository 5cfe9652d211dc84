package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"pdrouter/internal/proc"
	"pdrouter/router"
	"pdrouter/router/report"
)

// demoIssuer is who signs the demo's tokens.
const demoIssuer = "pdrouter-demo"

// client follows no redirect: what is sent goes where it is meant to go.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Engine is one reference engine of the demo.
type Engine struct {
	Name, Role string
	TP         int
	Address    string // of the OpenAI routes
	Control    string // of the control routes
	signKey    string // file of its own key, which its token is bound to
}

// Fleet is a gateway with its engines, each a process of its own, and one engine apart from them all.
type Fleet struct {
	Dir                string
	publicKey          string    // file of the key that checks the agents' tokens
	recordKeys         [2]string // files of the key that signs records and tickets: its private and its public part
	Client, Operations string    // base URLs of the gateway
	Alone              string    // base URL of the engine that answers without any hand-off
	Engines            []Engine
	Processes          []*proc.Process // in the order of their start
}

// StartFleet writes keys, tokens and the configuration into dir, starts everything, and returns when the gateway is
// ready to serve every pair. more are further flags of the four engines. On an error the fleet holds what was started.
func StartFleet(ctx context.Context, dir, transport string, more ...string) (*Fleet, error) {
	return StartFleetOf(ctx, dir, transport, []Engine{{Name: "prefill-0", Role: "prefill", TP: 2}, {Name: "prefill-1", Role: "prefill", TP: 2},
		{Name: "decode-0", Role: "decode", TP: 1}, {Name: "decode-1", Role: "decode", TP: 4}}, more...)
}

// StartFleetOf is StartFleet with these engines: name, role (prefill, decode or both) and TP are set.
func StartFleetOf(ctx context.Context, dir, transport string, engines []Engine, more ...string) (*Fleet, error) {
	f := &Fleet{Dir: dir}
	ports, err := FreeAddresses(3 + 2*len(engines) + 1)
	if err != nil {
		return f, err
	}
	take := func() string {
		a := ports[0]
		ports = ports[1:]
		return a
	}
	clients, agents, operations := take(), take(), take()
	f.Client, f.Operations = "http://"+clients, "http://"+operations
	for _, e := range engines {
		e.Address, e.Control = take(), take()
		f.Engines = append(f.Engines, e)
	}
	if err := f.WriteKeys(); err != nil {
		return f, err
	}
	if err := os.WriteFile(f.Path("pdrouter.yaml"), []byte(f.Config(clients, agents, operations)), 0o600); err != nil {
		return f, err
	}
	if err := f.Start("gateway", "serve", "-c", f.Path("pdrouter.yaml")); err != nil {
		return f, err
	}
	for _, e := range f.Engines {
		if err := f.StartEngine(e, agents, append([]string{"--transport", transport}, more...)...); err != nil {
			return f, err
		}
	}
	if err := f.StartAlone(take()); err != nil {
		return f, err
	}
	return f, f.Wait(ctx)
}

// Path is the path of a file of the fleet.
func (f *Fleet) Path(name string) string { return filepath.Join(f.Dir, name) }

// Start runs this binary with args as one of the fleet's processes.
func (f *Fleet) Start(name string, args ...string) error {
	p, err := proc.Start(f.Dir, name, args...)
	if err == nil {
		f.Processes = append(f.Processes, p)
	}
	return err
}

// StartAlone starts the engine apart from all others, at an address.
func (f *Fleet) StartAlone(address string) error {
	f.Alone = "http://" + address
	return f.Start("alone", "mock-engine", "--name", "alone", "--role", "both", "--model", Model, "--listen", address)
}

// StartEngine starts an engine, known to the gateway whose agents' listener is at that address.
func (f *Fleet) StartEngine(e Engine, agents string, more ...string) error {
	return f.Start(e.Name, append([]string{"mock-engine", "--name", e.Name, "--role", e.Role, "--tp", fmt.Sprint(e.TP), "--model", Model,
		"--listen", e.Address, "--control", e.Control, "--gateway", "http://" + agents, "--token-file", f.Path(e.Name + ".token"),
		"--sign-key", e.signKey, "--control-keys", f.publicKey, "--issuer", demoIssuer, "--record-keys", f.recordKeys[1]}, more...)...)
}

// WriteKeys makes the key that signs the agents' tokens, a key for each engine and a token that is bound to it, and the
// gateway's own key and token.
func (f *Fleet) WriteKeys() error {
	signer, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return err
	}
	if _, f.publicKey, err = keys.Write(f.Path("keys"), signer); err != nil {
		return err
	}
	own, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return err
	}
	if f.recordKeys[0], f.recordKeys[1], err = keys.Write(f.Path("gateway-keys"), own); err != nil {
		return err
	}
	token := func(file string, g auth.Grant) error {
		g.Issuer, g.Audience, g.TTL = demoIssuer, auth.MetadataAudience, 24*time.Hour
		t, err := auth.Mint(signer, g)
		if err != nil {
			return err
		}
		return os.WriteFile(f.Path(file), []byte(t+"\n"), 0o600)
	}
	for i := range f.Engines {
		e := &f.Engines[i]
		key, err := keys.Generate(keys.EdDSA)
		if err != nil {
			return err
		}
		if e.signKey, _, err = keys.Write(f.Path(e.Name+"-keys"), key); err != nil {
			return err
		}
		err = token(e.Name+".token", auth.Grant{Subject: e.Name, Engine: e.Name, Role: e.Role,
			Scopes: []string{auth.WriteScope, auth.ReadScope}, Confirm: key.Public()})
		if err != nil {
			return err
		}
	}
	return token("gateway.token", auth.Grant{Subject: "gateway", Scopes: []string{auth.PlaneScope}})
}

// Config is the gateway's configuration.
func (f *Fleet) Config(clients, agents, operations string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, agents: %q, operations: %q}\n", clients, agents, operations)
	fmt.Fprintf(&b, "models:\n- name: %s\n  connector: kvplane\n", Model)
	for _, list := range []struct{ key, role string }{{"prefill", "prefill"}, {"decode", "decode"}, {"engines", "both"}} {
		fmt.Fprintf(&b, "  %s:\n", list.key)
		for _, e := range f.Engines {
			if e.Role == list.role {
				fmt.Fprintf(&b, "  - {name: %s, url: \"http://%s\", control: \"http://%s\"}\n", e.Name, e.Address, e.Control)
			}
		}
	}
	b.WriteString(byRoles)
	fmt.Fprintf(&b, "auth: {agents: {keys: [%q], issuer: %s}, records: {key_file: %q, trusted: [%q]}, control_token_file: gateway.token}\n",
		f.publicKey, demoIssuer, f.recordKeys[0], f.recordKeys[1])
	// The gateway may ask an engine before it listens: without slow start it has its share as soon as it is up.
	b.WriteString("timeouts: {health: 500ms, pre_stop_delay: 1ms}\nhealth: {slow_start: 0s}\nlog: {format: text}\n")
	return b.String()
}

// Policies of the gateway, as they stand in its configuration. The demo's own is byRoles: every prompt but the shortest is split.
const (
	byRoles = "policy: {default: {split: {min_prompt_tokens: 16}, prefill: round_robin, decode: round_robin}}\n"
	byCost  = "policy: {default: {}}\n"
)

// setPolicy replaces the gateway's policy, byRoles or byCost, while it runs.
func (f *Fleet) setPolicy(ctx context.Context, policy string) error {
	file := f.Path("pdrouter.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed := strings.NewReplacer(byRoles, policy, byCost, policy).Replace(string(text))
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.Operations+"/config/reload", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("the gateway's reload: status %d: %s", resp.StatusCode, said)
	}
	return nil
}

// FreeAddresses returns n loopback addresses on which nothing listens at this moment. They lie below the ports that
// systems give to outgoing connections: else one process that dials another's address before it listens may take the
// very port, and even be connected to itself.
func FreeAddresses(n int) ([]string, error) {
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

// Wait returns when every engine answers, and the gateway follows all and has made every pair known to each other.
func (f *Fleet) Wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ready := func() error {
		for _, e := range f.Engines {
			if err := f.Fetch(ctx, "http://"+e.Address+"/health", nil); err != nil {
				return err
			}
		}
		if err := f.Fetch(ctx, f.Alone+"/health", nil); err != nil {
			return err
		}
		var state router.Stats
		if err := f.Fetch(ctx, f.Operations+"/ready", &state); err != nil {
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
		for _, p := range f.Processes {
			if ended, how := p.Ended(); ended {
				return fmt.Errorf("%s ended before it was ready: %w", p.Name, how)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready after a minute: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Fetch reads a JSON answer into v, or only checks that it is 200 if v is nil.
func (f *Fleet) Fetch(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
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
func (f *Fleet) books(ctx context.Context, id string) (report.Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		var s report.Summary
		err := f.Fetch(ctx, f.Operations+"/requests?id="+id, &s)
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
func (f *Fleet) transportUsed() string {
	for _, p := range f.Processes {
		if _, after, found := strings.Cut(p.Tail(5), ", transport "); found {
			used, _, _ := strings.Cut(after, ",")
			return used
		}
	}
	return "unknown"
}

// Stop ends all processes, the gateway last because engines tell it that they go. It reports those that did not stop cleanly.
func (f *Fleet) Stop() error {
	var errs []error
	for _, p := range slices.Backward(f.Processes) {
		errs = append(errs, p.Stop(10*time.Second))
	}
	return errors.Join(errs...)
}

// Tail returns err's likely cause from the logs: the last lines of the process that ended by itself, else of the gateway.
func (f *Fleet) Tail() error {
	for _, p := range f.Processes {
		if ended, err := p.Ended(); ended && err != nil {
			return fmt.Errorf("%s printed:\n%s", p.Name, p.Tail(20))
		}
	}
	if len(f.Processes) > 0 {
		return fmt.Errorf("gateway printed:\n%s", f.Processes[0].Tail(20))
	}
	return nil
}
