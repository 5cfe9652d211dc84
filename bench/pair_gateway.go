package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
)

// gatewayFleet is a gateway in front of one prefill and some decode engines that hand over by the plane: reference engines,
// each a process, as the gateway is.
type gatewayFleet struct {
	cfg        Config
	which      string
	shape      fleetShape
	dir        string // keys, tokens and the configuration
	gateway    *child
	agents     string // the address of its agents' listener
	operations string
	engines    []*gatewayEngine // prefill first
	asked      int              // requests, each with a prompt of its own
	split      int              // streams of handover/reference that were handed over
}

// fleetShape is what fleets differ in.
type fleetShape struct {
	cpus   string   // of all processes; "": wherever the kernel puts them
	engine []string // more flags of each engine
}

// gatewayEngine is one of its engines, which can be started anew.
type gatewayEngine struct {
	name, role       string
	address, control string
	process          *child // nil while it is not there
}

// pairIssuer is who signs the fleet's tokens.
const pairIssuer = "pdrouter-bench"

// openGatewayFleet starts everything, with n decode engines, and waits until every pair is warm.
func openGatewayFleet(ctx context.Context, cfg Config, which string, n int, shape fleetShape) (f *gatewayFleet, err error) {
	f = &gatewayFleet{cfg: cfg, which: which, shape: shape}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bench: a gateway over %s: %w", which, err), f.close())
		}
	}()
	if f.dir, err = os.MkdirTemp("", "pdrouter-bench-"); err != nil {
		return f, err
	}
	free, err := freeAddresses(3 + 2*(n+1))
	if err != nil {
		return f, err
	}
	client := free[0]
	f.agents, f.operations = free[1], free[2]
	for i := range n + 1 {
		e := &gatewayEngine{name: fmt.Sprintf("decode-%d", i-1), role: "decode", address: free[3+2*i], control: free[4+2*i]}
		if i == 0 {
			e.name, e.role = "prefill-0", "prefill"
		}
		f.engines = append(f.engines, e)
	}
	key, err := writeTokens(f.dir, f.engines)
	if err != nil {
		return f, err
	}
	path := filepath.Join(f.dir, "pdrouter.yaml")
	if err := os.WriteFile(path, []byte(f.text(client, key)), 0o600); err != nil {
		return f, err
	}
	if f.gateway, err = spawn(ctx, "the gateway", shape.cpus, false, false, cfg.Binary, "serve", "-c", path); err != nil {
		return f, err
	}
	f.gateway.address = client
	for _, e := range f.engines {
		if err := f.start(ctx, e); err != nil {
			return f, err
		}
	}
	return f, f.warm(ctx, n)
}

// writeTokens makes the key that signs tokens, and a token for the gateway and for each engine.
func writeTokens(dir string, engines []*gatewayEngine) (publicKey string, err error) {
	signer, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return "", err
	}
	if _, publicKey, err = keys.Write(filepath.Join(dir, "keys"), signer); err != nil {
		return "", err
	}
	grants := []auth.Grant{{Subject: "gateway", Scopes: []string{auth.PlaneScope}}}
	for _, e := range engines {
		grants = append(grants, auth.Grant{Subject: e.name, Engine: e.name, Role: e.role, Scopes: []string{auth.WriteScope, auth.ReadScope}})
	}
	for _, g := range grants {
		g.Issuer, g.Audience, g.TTL = pairIssuer, auth.MetadataAudience, 24*time.Hour
		token, err := auth.Mint(signer, g)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, g.Subject+".token"), []byte(token+"\n"), 0o600); err != nil {
			return "", err
		}
	}
	return publicKey, nil
}

// text is the gateway's configuration file.
func (f *gatewayFleet) text(client, key string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, agents: %q, operations: %q}\nlog: {level: warn}\nmodels:\n  - name: %s\n    connector: kvplane\n", client, f.agents, f.operations, benchModel)
	role := ""
	for _, e := range f.engines {
		if e.role != role {
			role = e.role
			fmt.Fprintf(&b, "    %s:\n", role)
		}
		fmt.Fprintf(&b, "      - {name: %s, url: \"http://%s\", control: \"http://%s\"}\n", e.name, e.address, e.control)
	}
	fmt.Fprintf(&b, "policy: {default: {split: {min_prompt_tokens: 16}}}\ntimeouts: {health: 50ms, pre_stop_delay: 1ms}\nhealth: {slow_start: 0s}\n")
	fmt.Fprintf(&b, "auth: {agents: {keys: [%q], issuer: %s}, control_token_file: gateway.token}\n", key, pairIssuer)
	return b.String()
}

// start starts an engine.
func (f *gatewayFleet) start(ctx context.Context, e *gatewayEngine) (err error) {
	argv := []string{f.cfg.Binary, "mock-engine", "--name", e.name, "--role", e.role, "--model", benchModel, "--listen", e.address, "--control", e.control,
		"--gateway", "http://" + f.agents, "--token-file", filepath.Join(f.dir, e.name+".token"), "--drain", "1s", "--serial-starts"}
	if f.which == "nixl" {
		argv = append(argv, "--transport", "nixl")
	} else {
		argv = append(argv, "--transport", "tcp", "--plane-path", f.which)
	}
	e.process, err = spawn(ctx, e.name, f.shape.cpus, false, false, append(argv, f.shape.engine...)...)
	return err
}

// close ends all processes, the gateway first.
func (f *gatewayFleet) close() error {
	if f.gateway != nil {
		f.gateway.stop()
	}
	for _, e := range f.engines {
		e.stop()
	}
	return os.RemoveAll(f.dir)
}

func (e *gatewayEngine) stop() {
	if e.process != nil {
		e.process.stop()
		e.process = nil
	}
}

// gatewaySeen is what a gateway says of an engine.
type gatewaySeen struct {
	Name string `json:"name"`
	Up   bool   `json:"up"`
}

// gatewayState is what a gateway says of its engines and pairs.
type gatewayState struct {
	Engines []gatewaySeen `json:"engines"`
	Pairs   []struct {    // that are not warm
		Decode   string `json:"decode"`
		Pairable bool   `json:"pairable"`
	} `json:"pairs"`
	PairsWarm int `json:"pairs_warm"`
}

// up says whether the gateway takes an engine for one that is there.
func (s gatewayState) up(name string) bool {
	return slices.ContainsFunc(s.Engines, func(e gatewaySeen) bool { return e.Name == name && e.Up })
}

// usable says whether a decode engine is there and fits prefill, as far as is known.
func (s gatewayState) usable(name string) bool {
	for _, p := range s.Pairs {
		if p.Decode == name && !p.Pairable {
			return false
		}
	}
	return s.up(name)
}

// until asks the gateway how things stand until that is so.
func (f *gatewayFleet) until(ctx context.Context, what string, ok func(gatewayState) bool) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		var s gatewayState
		err := f.get(ctx, "/ready", &s)
		if err == nil && ok(s) {
			return nil
		}
		gone := errors.Join(f.gateway.alive(), ctx.Err())
		for _, e := range f.engines {
			if e.process != nil {
				gone = errors.Join(gone, e.process.alive())
			}
		}
		if gone != nil || time.Now().After(end) {
			return fmt.Errorf("%s: not within 30 s: %w", what, errors.Join(err, gone))
		}
	}
}

// warm waits until so many pairs have shaken hands.
func (f *gatewayFleet) warm(ctx context.Context, pairs int) error {
	return f.until(ctx, fmt.Sprintf("%d pairs are warm", pairs), func(s gatewayState) bool { return s.PairsWarm == pairs })
}

// get asks the gateway's operations' listener.
func (f *gatewayFleet) get(ctx context.Context, path string, into any) error {
	return getJSON(ctx, "http://"+f.operations+path, into)
}

// gatewayAnswer is what one request has taken, and of that the wait for its pair.
type gatewayAnswer struct {
	took, paired time.Duration
	decode       string
}

// ask sends one request with a prompt that no engine has seen, and waits for its whole answer.
func (f *gatewayFleet) ask(ctx context.Context) (a gatewayAnswer, err error) {
	f.asked++
	body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"prompt":"%d %s"}`, benchModel, f.asked, strings.Repeat("blocks on the move ", 16))
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	start := time.Now()
	answer, err := post(ctx, "http://"+f.gateway.address+completionsPath, []byte(body))
	if err != nil {
		return a, err
	}
	said, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	a.took = time.Since(start)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w: the gateway answers %d: %s", errVoid, answer.StatusCode, firstLine(string(said)))
	}
	if err != nil {
		return a, err
	}
	var seen gatewaySummary
	for { // it is noted behind the answer
		if err = f.get(ctx, "/requests?id="+url.QueryEscape(answer.Header.Get("X-Request-Id")), &seen); err == nil {
			break
		}
		if ctx.Err() != nil {
			return a, errors.Join(err, ctx.Err())
		}
		time.Sleep(time.Millisecond)
	}
	a.paired, a.decode, err = seen.judge()
	return a, err
}

// gatewaySummary is what the gateway says of a request, with phases in ns since it came.
type gatewaySummary struct {
	Outcome  string `json:"outcome"`
	Reason   string `json:"reason"`
	Prefill  string `json:"prefill"`
	Decode   string `json:"decode"`
	Attempts int    `json:"attempts"`
	Phases   struct {
		Plan time.Duration `json:"plan"`
		Pair time.Duration `json:"pair"`
	} `json:"phases"`
}

// judge returns how long the request has waited for its pair, and voids the run unless it was served by both engines at
// the first attempt.
func (s gatewaySummary) judge() (paired time.Duration, decode string, err error) {
	if s.Outcome != "completed" || s.Prefill == "" || s.Decode == "" || s.Attempts != 1 || s.Phases.Pair < s.Phases.Plan {
		return 0, "", fmt.Errorf("%w: a request ended as %+v", errVoid, s)
	}
	return s.Phases.Pair - s.Phases.Plan, s.Decode, nil
}
