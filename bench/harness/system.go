package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/report"
)

// Target is a router that is measured in front of a stage's engines.
type Target struct {
	Of      string
	Peer    bool                                                // another project's router
	Legs    int                                                 // that it makes of a request: 2, or 1 where it is a proxy and no more
	Cannot  func(cfg Config, connector string) string           // why it is not measured with these; nil or "" if it is
	version func() string                                       // its name and version; nil: the report's own
	Start   func(context.Context, *Stage) (*Child, error)       // in front of the stage's engines, on the CPUs of its targets
	Ready   func(context.Context, *http.Response, []byte) error // whether the answer to a first request shows that it is; nil: status 200
}

// GatewayTarget is pdrouter as it is run.
func GatewayTarget() Target {
	return Target{Of: report.Us, Legs: 2, Start: StartGateway, Ready: func(_ context.Context, a *http.Response, said []byte) error {
		if reason := a.Header.Get("x-pdrouter-reason"); a.StatusCode != http.StatusOK || reason != "split" {
			return fmt.Errorf("status %d, reason %q: %s", a.StatusCode, reason, said)
		}
		return nil
	}}
}

// BaselineTarget is the bare proxy with two legs that this package has.
func BaselineTarget() Target {
	return Target{Of: report.Baseline, Legs: 2, Start: func(ctx context.Context, s *Stage) (*Child, error) {
		return Spawn(ctx, "the baseline proxy", s.Place.Target, true, false, s.Cfg.Binary, "bench", "baseline", s.mode(), s.Prefill[0].Address, s.Decode[0].Address)
	}}
}

func StartGateway(ctx context.Context, s *Stage) (*Child, error) {
	free, err := FreeAddresses(2)
	if err != nil {
		return nil, err
	}
	path, err := WriteTemp("pdrouter-bench-*.yaml", s.GatewayText(free[0], free[1]))
	if err != nil {
		return nil, err
	}
	quiet := s.Cfg.Log == "info" || s.Cfg.Log == "debug" // a line a request: reading it all would cost the bench more than it tells
	c, err := Spawn(ctx, "the gateway", s.Place.Target, false, quiet, s.Cfg.Binary, "serve", "-c", path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	c.Address, c.Operations, c.Files = free[0], free[1], []string{path}
	return c, nil
}

// GatewayText is the gateway's configuration file in a run.
func (s *Stage) GatewayText(clients, operations string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, operations: %q, agents: %q}\nlog: {level: %s}\nlimits: {max_concurrent_requests: 8192}\nmodels:\n  - name: %s\n    connector: %s\n", clients, operations, s.Agents, s.Cfg.Log, fake.Model, s.Connector)
	for role, engines := range map[string][]*Child{"prefill": s.Prefill, "decode": s.Decode} {
		if s.Connector == "none" {
			role = "engines"
		}
		if len(engines) > 0 {
			fmt.Fprintf(&b, "    %s:\n", role)
		}
		for i, e := range engines {
			fmt.Fprintf(&b, "      - {name: %s-%d, url: \"http://%s\"%s}\n", role, i, e.Address, e.Entry)
		}
	}
	if !strings.Contains(s.Settings, "policy:") {
		b.WriteString("policy: {default: {policy: roles}}\n") // every request is split, as with the systems that it is compared with
	}
	b.WriteString(s.Settings)
	return b.String()
}

// Await waits until the target answers a request as it should.
func (x Target) Await(ctx context.Context, c *Child) error {
	body := string(fake.ChatBody(256, false))
	last := errors.New("not asked")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if err := c.Alive(); err != nil {
			return err
		}
		answer, err := http.Post("http://"+c.Address+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			last = err
			continue
		}
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
		answer.Body.Close()
		switch {
		case x.Ready != nil:
			last = x.Ready(ctx, answer, said)
		case answer.StatusCode != http.StatusOK:
			last = fmt.Errorf("status %d: %s", answer.StatusCode, said)
		default:
			last = nil
		}
		if last == nil {
			return nil
		}
	}
	return errors.Join(ctx.Err(), fmt.Errorf("%s splits no request: %w", x.Of, last))
}

// WriteTemp writes text to a file of its own and returns its path.
func WriteTemp(pattern, text string) (string, error) {
	f, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(text)
	return f.Name(), errors.Join(err, f.Close())
}
