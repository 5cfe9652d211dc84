package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// restSuite measures the gateway at rest.
func restSuite() Suite {
	return Suite{Name: "idle", Brief: "CPU of a gateway without traffic, in front of 100 and 1,000 engines", run: func(ctx context.Context, r *Run) error {
		for _, engines := range []int{100, 1000} {
			if err := r.idle(ctx, engines); err != nil {
				return err
			}
		}
		return nil
	}}
}

// restAtLeast is the least that a gateway is watched: every engine is checked in it.
const restAtLeast = 4 * time.Second

// idle measures one number of engines.
func (r *Run) idle(ctx context.Context, engines int) (err error) {
	name := fmt.Sprintf("%d engines", engines)
	if !r.wants(name) {
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	fleet, err := startIdleFleet(ctx)
	if err != nil {
		return err
	}
	defer func() {
		stop()
		err = errors.Join(err, <-fleet.ended)
	}()
	goal := []Goal{{Plus: 0.02}}
	c := contest{name: name, metrics: []metric{{what: "CPU", unit: "core", goals: goal}}}
	for _, of := range []struct {
		name string
		n    int
	}{{us, engines}, {"2 engines", 2}} {
		gateway, err := fleet.gateway(ctx, r.Config, of.n)
		if err != nil {
			return err
		}
		defer gateway.stop()
		c.contenders = append(c.contenders, contender{of: of.name, round: func(ctx context.Context, d time.Duration) (sample, error) {
			return fleet.watch(ctx, gateway, of.n, max(d, restAtLeast))
		}})
	}
	return r.contest(ctx, c)
}

// idleFleet is any number of engines at one address, told apart by the credential that the gateway shows each.
type idleFleet struct {
	address string
	ended   chan error
	checks  atomic.Int64
}

func startIdleFleet(ctx context.Context) (*idleFleet, error) {
	f := &idleFleet{ended: make(chan error, 1)}
	told := make(telling, 1)
	go func() { f.ended <- serveHTTP(ctx, f.serve, told) }()
	select {
	case f.address = <-told:
		return f, nil
	case err := <-f.ended:
		return nil, err
	}
}

// telling takes the address that a server of this process prints.
type telling chan string

func (t telling) Write(p []byte) (int, error) {
	t <- strings.TrimSpace(string(p))
	return len(p), nil
}

func (f *idleFleet) serve(q *fasthttp.RequestCtx) {
	switch string(q.Path()) {
	case "/health":
		f.checks.Add(1)
	case "/v1/models":
		q.SetContentType("application/json")
		fmt.Fprintf(q, `{"object":"list","data":[{"id":%q,"object":"model","created":1700000000,"owned_by":"vllm","max_model_len":131072}]}`, benchModel)
	default:
		q.SetStatusCode(fasthttp.StatusNotFound)
	}
}

// gateway starts one in front of n engines and waits until it has checked each.
func (f *idleFleet) gateway(ctx context.Context, cfg Config, n int) (*child, error) {
	free, err := freeAddresses(2)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, operations: %q}\nlog: {level: warn}\nmodels:\n  - name: %s\n    connector: sglang\n", free[0], free[1], benchModel)
	for _, role := range []string{"prefill", "decode"} {
		fmt.Fprintf(&b, "    %s:\n", role)
		for i := range n / 2 {
			fmt.Fprintf(&b, "      - {name: %s-%d, url: \"http://%s\"}\n", role, i, f.address)
		}
	}
	path, err := writeTemp("pdrouter-bench-*.yaml", b.String())
	if err != nil {
		return nil, err
	}
	before := f.checks.Load()
	c, err := spawn(ctx, "the gateway", "", false, false, cfg.Binary, "serve", "-c", path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	c.operations, c.files = free[1], []string{path}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := c.alive()
		if err == nil && f.checks.Load()-before >= int64(n) {
			if err = readiness(ctx, c.operations); err == nil {
				return c, nil
			}
		}
		if c.alive() != nil || time.Now().After(end) || ctx.Err() != nil {
			c.stop()
			return nil, fmt.Errorf("bench: a gateway with %d engines is not ready: %w", n, errors.Join(err, ctx.Err()))
		}
	}
}

// readiness asks a gateway whether it is ready.
func readiness(ctx context.Context, operations string) error {
	status, _, err := get(ctx, "http://"+operations+"/ready")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("/ready says %d", status)
	}
	return err
}

// watch reads what the gateway uses in d.
func (f *idleFleet) watch(ctx context.Context, gateway *child, n int, d time.Duration) (sample, error) {
	s := &stage{running: []*child{gateway}}
	checks := f.checks.Load()
	before, err := s.read(ctx, gateway)
	if err != nil {
		return sample{}, err
	}
	if err := pause(ctx, d); err != nil {
		return sample{}, err
	}
	after, err := s.read(ctx, gateway)
	if err != nil {
		return sample{}, err
	}
	took := after.at.Sub(before.at)
	checks = f.checks.Load() - checks
	if want := int64(float64(n) * took.Seconds() / 2 / 2); checks < want { // each 2 s by default; half of it may be another gateway's luck
		return sample{}, fmt.Errorf("%w: %d health checks of %d engines in %v", errVoid, checks, n, took)
	}
	return sample{
		disturbance: after.since(before.use),
		figures:     []float64{float64(after.target-before.target) / float64(took)},
		done:        int(checks),
	}, nil
}
