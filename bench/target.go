package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// target is a router that is measured in front of a stage's engines.
type target struct {
	of      string
	peer    bool                                                // another project's router
	legs    int                                                 // that it makes of a request: 2, or 1 where it is a proxy and no more
	cannot  func(cfg Config, connector string) string           // why it is not measured with these; nil or "" if it is
	version func() string                                       // its name and version; nil: the report's own
	start   func(context.Context, *stage) (*child, error)       // in front of the stage's engines, on the CPUs of its targets
	ready   func(context.Context, *http.Response, []byte) error // whether the answer to a first request shows that it is; nil: status 200
}

// gatewayTarget is pdrouter as it is run.
func gatewayTarget() target {
	return target{of: us, legs: 2, start: startGateway, ready: func(_ context.Context, a *http.Response, said []byte) error {
		if reason := a.Header.Get("x-pdrouter-reason"); a.StatusCode != http.StatusOK || reason != "split" {
			return fmt.Errorf("status %d, reason %q: %s", a.StatusCode, reason, said)
		}
		return nil
	}}
}

// floorTarget is the bare proxy with two legs that this package has.
func floorTarget() target {
	return target{of: "floor", legs: 2, start: func(ctx context.Context, s *stage) (*child, error) {
		return spawn(ctx, "the floor", s.place.target, true, false, s.cfg.Binary, "bench", "floor", s.mode(), s.prefill[0].address, s.decode[0].address)
	}}
}

func startGateway(ctx context.Context, s *stage) (*child, error) {
	free, err := freeAddresses(2)
	if err != nil {
		return nil, err
	}
	path, err := writeTemp("pdrouter-bench-*.yaml", s.gatewayText(free[0], free[1]))
	if err != nil {
		return nil, err
	}
	quiet := s.cfg.Log == "info" || s.cfg.Log == "debug" // a line a request: reading it all would cost the bench more than it tells
	c, err := spawn(ctx, "the gateway", s.place.target, false, quiet, s.cfg.Binary, "serve", "-c", path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	c.address, c.operations, c.files = free[0], free[1], []string{path}
	return c, nil
}

// gatewayText is the gateway's configuration file in a run.
func (s *stage) gatewayText(clients, operations string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, operations: %q, agents: %q}\nlog: {level: %s}\nlimits: {max_concurrent_requests: 8192}\nmodels:\n  - name: %s\n    connector: %s\n", clients, operations, s.agents, s.cfg.Log, benchModel, s.connector)
	for role, engines := range map[string][]*child{"prefill": s.prefill, "decode": s.decode} {
		if s.connector == "none" {
			role = "engines"
		}
		if len(engines) > 0 {
			fmt.Fprintf(&b, "    %s:\n", role)
		}
		for i, e := range engines {
			fmt.Fprintf(&b, "      - {name: %s-%d, url: \"http://%s\"%s}\n", role, i, e.address, e.entry)
		}
	}
	b.WriteString(s.settings)
	return b.String()
}

// await waits until the target answers a request as it should.
func (x target) await(ctx context.Context, c *child) error {
	body := string(chatBody(256, false))
	last := errors.New("not asked")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if err := c.alive(); err != nil {
			return err
		}
		answer, err := http.Post("http://"+c.address+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			last = err
			continue
		}
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
		answer.Body.Close()
		switch {
		case x.ready != nil:
			last = x.ready(ctx, answer, said)
		case answer.StatusCode != http.StatusOK:
			last = fmt.Errorf("status %d: %s", answer.StatusCode, said)
		default:
			last = nil
		}
		if last == nil {
			return nil
		}
	}
	return errors.Join(ctx.Err(), fmt.Errorf("%s splits no request: %w", x.of, last))
}

// writeTemp writes text to a file of its own and returns its path.
func writeTemp(pattern, text string) (string, error) {
	f, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(text)
	return f.Name(), errors.Join(err, f.Close())
}
