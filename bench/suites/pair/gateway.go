package pair

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
	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
)

// GatewayFleet is a gateway in front of one prefill and some decode engines that hand over by the plane: reference engines,
// each a process, as the gateway is.
type GatewayFleet struct {
	Cfg        harness.Config
	which      string
	Shape      FleetShape
	Dir        string // keys, tokens and the configuration
	Gateway    *harness.Child
	Agents     string // the address of its agents' listener
	operations string
	Engines    []*GatewayEngine // prefill first
	Asked      int              // requests, each with a prompt of its own
	Split      int              // streams of handover/reference that were handed over
}

// FleetShape is what fleets differ in.
type FleetShape struct {
	Cpus   string   // of all processes; "": wherever the kernel puts them
	Engine []string // more flags of each engine
}

// GatewayEngine is one of its engines, which can be started anew.
type GatewayEngine struct {
	Name, Role       string
	Address, control string
	process          *harness.Child // nil while it is not there
}

// PairIssuer is who signs the fleet's tokens.
const PairIssuer = "pdrouter-bench"

// OpenGatewayFleet starts everything, with n decode engines, and waits until every pair is warm.
func OpenGatewayFleet(ctx context.Context, cfg harness.Config, which string, n int, shape FleetShape) (f *GatewayFleet, err error) {
	f = &GatewayFleet{Cfg: cfg, which: which, Shape: shape}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bench: a gateway over %s: %w", which, err), f.Close())
		}
	}()
	if f.Dir, err = os.MkdirTemp("", "pdrouter-bench-"); err != nil {
		return f, err
	}
	free, err := harness.FreeAddresses(3 + 2*(n+1))
	if err != nil {
		return f, err
	}
	client := free[0]
	f.Agents, f.operations = free[1], free[2]
	for i := range n + 1 {
		e := &GatewayEngine{Name: fmt.Sprintf("decode-%d", i-1), Role: "decode", Address: free[3+2*i], control: free[4+2*i]}
		if i == 0 {
			e.Name, e.Role = "prefill-0", "prefill"
		}
		f.Engines = append(f.Engines, e)
	}
	key, err := WriteTokens(f.Dir, f.Engines)
	if err != nil {
		return f, err
	}
	path := filepath.Join(f.Dir, "pdrouter.yaml")
	if err := os.WriteFile(path, []byte(f.text(client, key)), 0o600); err != nil {
		return f, err
	}
	if f.Gateway, err = harness.Spawn(ctx, "the gateway", shape.Cpus, false, false, cfg.Binary, "serve", "-c", path); err != nil {
		return f, err
	}
	f.Gateway.Address = client
	for _, e := range f.Engines {
		if err := f.start(ctx, e); err != nil {
			return f, err
		}
	}
	return f, f.warm(ctx, n)
}

// WriteTokens makes the key that signs tokens, and a token for the gateway and for each engine.
func WriteTokens(dir string, engines []*GatewayEngine) (publicKey string, err error) {
	signer, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return "", err
	}
	if _, publicKey, err = keys.Write(filepath.Join(dir, "keys"), signer); err != nil {
		return "", err
	}
	grants := []auth.Grant{{Subject: "gateway", Scopes: []string{auth.PlaneScope}}}
	for _, e := range engines {
		grants = append(grants, auth.Grant{Subject: e.Name, Engine: e.Name, Role: e.Role, Scopes: []string{auth.WriteScope, auth.ReadScope}})
	}
	for _, g := range grants {
		g.Issuer, g.Audience, g.TTL = PairIssuer, auth.MetadataAudience, 24*time.Hour
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
func (f *GatewayFleet) text(client, key string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, agents: %q, operations: %q}\nlog: {level: warn}\nmodels:\n  - name: %s\n    connector: kvplane\n", client, f.Agents, f.operations, fake.Model)
	role := ""
	for _, e := range f.Engines {
		if e.Role != role {
			role = e.Role
			fmt.Fprintf(&b, "    %s:\n", role)
		}
		fmt.Fprintf(&b, "      - {name: %s, url: \"http://%s\", control: \"http://%s\"}\n", e.Name, e.Address, e.control)
	}
	fmt.Fprintf(&b, "policy: {default: {split: {min_prompt_tokens: 16}}}\ntimeouts: {health: 50ms, pre_stop_delay: 1ms}\nhealth: {slow_start: 0s}\n")
	fmt.Fprintf(&b, "auth: {agents: {keys: [%q], issuer: %s}, control_token_file: gateway.token}\n", key, PairIssuer)
	return b.String()
}

// start starts an engine.
func (f *GatewayFleet) start(ctx context.Context, e *GatewayEngine) (err error) {
	argv := []string{f.Cfg.Binary, "mock-engine", "--name", e.Name, "--role", e.Role, "--model", fake.Model, "--listen", e.Address, "--control", e.control,
		"--gateway", "http://" + f.Agents, "--token-file", filepath.Join(f.Dir, e.Name+".token"), "--drain", "1s", "--serial-starts"}
	if f.which == "nixl" {
		argv = append(argv, "--transport", "nixl")
	} else {
		argv = append(argv, "--transport", "tcp", "--plane-path", f.which)
	}
	e.process, err = harness.Spawn(ctx, e.Name, f.Shape.Cpus, false, false, append(argv, f.Shape.Engine...)...)
	return err
}

// Close ends all processes, the gateway first.
func (f *GatewayFleet) Close() error {
	if f.Gateway != nil {
		f.Gateway.Stop()
	}
	for _, e := range f.Engines {
		e.stop()
	}
	return os.RemoveAll(f.Dir)
}

func (e *GatewayEngine) stop() {
	if e.process != nil {
		e.process.Stop()
		e.process = nil
	}
}

// gatewaySeen is what a gateway says of an engine.
type gatewaySeen struct {
	Name string `json:"name"`
	Up   bool   `json:"up"`
}

// GatewayState is what a gateway says of its engines and pairs.
type GatewayState struct {
	Engines []gatewaySeen `json:"engines"`
	Pairs   []struct {    // that are not warm
		Decode   string `json:"decode"`
		Pairable bool   `json:"pairable"`
	} `json:"pairs"`
	PairsWarm int `json:"pairs_warm"`
}

// Up says whether the gateway takes an engine for one that is there.
func (s GatewayState) Up(name string) bool {
	return slices.ContainsFunc(s.Engines, func(e gatewaySeen) bool { return e.Name == name && e.Up })
}

// usable says whether a decode engine is there and fits prefill, as far as is known.
func (s GatewayState) usable(name string) bool {
	for _, p := range s.Pairs {
		if p.Decode == name && !p.Pairable {
			return false
		}
	}
	return s.Up(name)
}

// until asks the gateway how things stand until that is so.
func (f *GatewayFleet) until(ctx context.Context, what string, ok func(GatewayState) bool) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		var s GatewayState
		err := f.get(ctx, "/ready", &s)
		if err == nil && ok(s) {
			return nil
		}
		gone := errors.Join(f.Gateway.Alive(), ctx.Err())
		for _, e := range f.Engines {
			if e.process != nil {
				gone = errors.Join(gone, e.process.Alive())
			}
		}
		if gone != nil || time.Now().After(end) {
			return fmt.Errorf("%s: not within 30 s: %w", what, errors.Join(err, gone))
		}
	}
}

// warm waits until so many pairs have shaken hands.
func (f *GatewayFleet) warm(ctx context.Context, pairs int) error {
	return f.until(ctx, fmt.Sprintf("%d pairs are warm", pairs), func(s GatewayState) bool { return s.PairsWarm == pairs })
}

// get asks the gateway's operations' listener.
func (f *GatewayFleet) get(ctx context.Context, path string, into any) error {
	return harness.GetJSON(ctx, "http://"+f.operations+path, into)
}

// gatewayAnswer is what one request has taken, and of that the wait for its pair.
type gatewayAnswer struct {
	took, paired time.Duration
	decode       string
}

// ask sends one request with a prompt that no engine has seen, and waits for its whole answer.
func (f *GatewayFleet) ask(ctx context.Context) (a gatewayAnswer, err error) {
	f.Asked++
	body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"prompt":"%d %s"}`, fake.Model, f.Asked, strings.Repeat("blocks on the move ", 16))
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	start := time.Now()
	answer, err := harness.Post(ctx, "http://"+f.Gateway.Address+CompletionsPath, []byte(body))
	if err != nil {
		return a, err
	}
	said, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	a.took = time.Since(start)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w: the gateway answers %d: %s", load.ErrVoid, answer.StatusCode, harness.FirstLine(string(said)))
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
		return 0, "", fmt.Errorf("%w: a request ended as %+v", load.ErrVoid, s)
	}
	return s.Phases.Pair - s.Phases.Plan, s.Decode, nil
}

// CompletionsPath takes a prompt as it is.
const CompletionsPath = "/v1/completions"
