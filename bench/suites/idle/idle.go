package idle

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

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// Suite measures the gateway at rest.
func Suite() harness.Suite {
	return harness.Suite{Name: "idle", Brief: "CPU of a gateway without traffic, in front of 100 and 1,000 engines", Run: func(ctx context.Context, r *harness.Run) error {
		for _, engines := range []int{100, 1000} {
			if err := idle(ctx, r, engines); err != nil {
				return err
			}
		}
		return nil
	}}
}

// restAtLeast is the least that a gateway is watched: every engine is checked in it.
const restAtLeast = 4 * time.Second

// idle measures one number of engines.
func idle(ctx context.Context, r *harness.Run, engines int) (err error) {
	name := fmt.Sprintf("%d engines", engines)
	if !r.Wants(name) {
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
	goal := []report.Goal{{Plus: 0.02}}
	c := harness.Comparison{Name: name, Metrics: []harness.Metric{{What: "CPU", Unit: "core", Goals: goal}}}
	for _, of := range []struct {
		name string
		n    int
	}{{report.Us, engines}, {"2 engines", 2}} {
		gateway, err := fleet.gateway(ctx, r.Config, of.n)
		if err != nil {
			return err
		}
		defer gateway.Stop()
		c.Systems = append(c.Systems, harness.System{Of: of.name, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
			return fleet.watch(ctx, gateway, of.n, max(d, restAtLeast))
		}})
	}
	return r.Compare(ctx, c)
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
	go func() { f.ended <- fake.ServeHTTP(ctx, f.serve, told) }()
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
		fmt.Fprintf(q, `{"object":"list","data":[{"id":%q,"object":"model","created":1700000000,"owned_by":"vllm","max_model_len":131072}]}`, fake.Model)
	default:
		q.SetStatusCode(fasthttp.StatusNotFound)
	}
}

// gateway starts one in front of n engines and waits until it has checked each.
func (f *idleFleet) gateway(ctx context.Context, cfg harness.Config, n int) (*harness.Child, error) {
	free, err := harness.FreeAddresses(2)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: %q, operations: %q}\nlog: {level: warn}\nmodels:\n  - name: %s\n    connector: sglang\n", free[0], free[1], fake.Model)
	for _, role := range []string{"prefill", "decode"} {
		fmt.Fprintf(&b, "    %s:\n", role)
		for i := range n / 2 {
			fmt.Fprintf(&b, "      - {name: %s-%d, url: \"http://%s\"}\n", role, i, f.address)
		}
	}
	path, err := harness.WriteTemp("pdrouter-bench-*.yaml", b.String())
	if err != nil {
		return nil, err
	}
	before := f.checks.Load()
	c, err := harness.Spawn(ctx, "the gateway", "", false, false, cfg.Binary, "serve", "-c", path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	c.Operations, c.Files = free[1], []string{path}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := c.Alive()
		if err == nil && f.checks.Load()-before >= int64(n) {
			if err = readiness(ctx, c.Operations); err == nil {
				return c, nil
			}
		}
		if c.Alive() != nil || time.Now().After(end) || ctx.Err() != nil {
			c.Stop()
			return nil, fmt.Errorf("bench: a gateway with %d engines is not ready: %w", n, errors.Join(err, ctx.Err()))
		}
	}
}

// readiness asks a gateway whether it is ready.
func readiness(ctx context.Context, operations string) error {
	status, _, err := harness.Get(ctx, "http://"+operations+"/ready")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("/ready says %d", status)
	}
	return err
}

// watch reads what the gateway uses in d.
func (f *idleFleet) watch(ctx context.Context, gateway *harness.Child, n int, d time.Duration) (harness.Sample, error) {
	s := &harness.Stage{Running: []*harness.Child{gateway}}
	checks := f.checks.Load()
	before, err := s.Read(ctx, gateway)
	if err != nil {
		return harness.Sample{}, err
	}
	if err := harness.Pause(ctx, d); err != nil {
		return harness.Sample{}, err
	}
	after, err := s.Read(ctx, gateway)
	if err != nil {
		return harness.Sample{}, err
	}
	took := after.At.Sub(before.At)
	checks = f.checks.Load() - checks
	if want := int64(float64(n) * took.Seconds() / 2 / 2); checks < want { // each 2 s by default; half of it may be another gateway's luck
		return harness.Sample{}, fmt.Errorf("%w: %d health checks of %d engines in %v", load.ErrVoid, checks, n, took)
	}
	return harness.Sample{
		Disturbance: after.Since(before.Use),
		Figures:     []float64{float64(after.Target-before.Target) / float64(took)},
		Done:        int(checks),
	}, nil
}
