// Package exercise is pdrouter exercise: a gateway with a fleet of reference engines under load, in which one thing goes wrong that nobody is told.
// People who are to be on call find it by the page, the metrics and docs/runbook.md, as they would at night. Gateway, engines and load are of one
// process; Redis is a process of its own, behind a forwarder that can cut the gateway off.
package exercise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/internal/configfile"
	"pdrouter/internal/gateway"
	"pdrouter/internal/telemetry"
)

// Faults are what can go wrong, in words for its end.
var faults = map[string]string{
	"slow-pair": "hand-offs from prefill-1 to decode-0 were slow, as over a bad link",
	"recompute": "decode-1 computed every prompt again and used no KV that it received, without an error",
	"redis":     "the gateway was cut off from Redis, which itself ran on",
}

// names of the engines: pairs of each prefill with each decode engine.
var prefill, decode = []string{"prefill-0", "prefill-1"}, []string{"decode-0", "decode-1"}

const model = "reference"

// Config is what can be chosen.
type Config struct {
	Fault string        // "": one of them, by chance
	Calm  time.Duration // how long at least nothing is wrong at first; longer on a slow machine, as what is usual has to be known
	Redis string        // path of redis-server; "": there is none, and the fault redis cannot be had
}

// Command is pdrouter exercise.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use: "exercise", Args: cobra.NoArgs,
		Short: "Practise for being on call: a fleet on this machine in which something goes wrong.",
		Long: `Runs a gateway with two prefill and two decode reference engines under load on this machine. After a while one thing goes wrong: a pair becomes
slow, an engine computes prompts that it should receive, or the gateway cannot reach Redis. Which, you are not told. Find it with the page, the metrics
and the runbook, whose addresses are printed. Ctrl-C ends it and says what it was.

The fault redis needs redis-server on PATH; without it that fault is left out.`,
	}
	var cfg Config
	f := c.Flags()
	f.StringVar(&cfg.Fault, "fault", "", "slow-pair, recompute or redis; default: one of them, by chance")
	f.DurationVar(&cfg.Calm, "calm", 30*time.Second, "how long nothing is wrong at first")
	f.StringVar(&cfg.Redis, "redis-server", findRedis(), "`path` of redis-server")
	c.RunE = func(c *cobra.Command, _ []string) error {
		e, err := Start(c.Context(), cfg)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), about, e.Operations, e.Operations, e.log.Name(), cfg.Calm)
		<-c.Context().Done()
		was := "It was"
		if !e.begun.Load() {
			was = "Nothing was wrong yet. It was to be"
		}
		fmt.Fprintf(c.OutOrStdout(), "\n%s %s: %s.\n", was, e.fault, faults[e.fault])
		return e.Stop()
	}
	return c
}

const about = `A gateway with four engines is under load. Something goes wrong within a minute. Find out what, where and why.

  page      %s/ui
  metrics   %s/metrics
  log       %s
  runbook   docs/runbook.md

Nothing is wrong in the first %v. Ctrl-C ends it and says what it was.
`

// Exercise is one that runs.
type Exercise struct {
	Operations string // base URL
	clients    string
	fault      string
	begun      atomic.Bool // the fault is there
	dir        string

	log   *os.File // the gateway's
	fleet *fleet
	redis *redis // nil: there is none
	stop  context.CancelFunc
	ended chan error
}

// Start starts everything, and has the fault begin after the calm. ctx ends it; then Stop must be called.
func Start(ctx context.Context, cfg Config) (_ *Exercise, err error) {
	e := &Exercise{fault: cfg.Fault, ended: make(chan error, 1)}
	if e.fault == "" {
		e.fault = anyFault(cfg)
	}
	switch {
	case faults[e.fault] == "":
		return nil, fmt.Errorf("--fault is %q; want slow-pair, recompute or redis", e.fault)
	case cfg.Calm < 0:
		return nil, fmt.Errorf("--calm is %v; want 0 or more", cfg.Calm)
	case e.fault == "redis" && cfg.Redis == "":
		return nil, errors.New("--fault redis needs redis-server, which is not on PATH; name it by --redis-server")
	}
	if e.dir, err = os.MkdirTemp("", "pdrouter-exercise-"); err != nil {
		return nil, err
	}
	ctx, e.stop = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			e.ended <- nil
			err = errors.Join(err, e.Stop())
		}
	}()
	if cfg.Redis != "" {
		if e.redis, err = startRedis(e.dir, cfg.Redis); err != nil {
			return nil, err
		}
	}
	if e.fleet, err = startFleet(); err != nil {
		return nil, err
	}
	g, err := e.gateway()
	if err != nil {
		return nil, err
	}
	e.clients, e.Operations = "http://"+g.Clients().String(), "http://"+g.Operations().String()
	go func() { e.ended <- e.run(ctx, g, cfg.Calm) }()
	return e, nil
}

// anyFault draws one of the faults that can be had.
func anyFault(cfg Config) string {
	var names []string
	for name := range faults {
		if name != "redis" || cfg.Redis != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[rand.IntN(len(names))]
}

// gateway makes the gateway, which listens and does not serve yet.
func (e *Exercise) gateway() (*gateway.Gateway, error) {
	path := filepath.Join(e.dir, "pdrouter.yaml")
	if err := os.WriteFile(path, []byte(e.config()), 0o600); err != nil {
		return nil, err
	}
	l, err := configfile.Load(path)
	if err != nil {
		return nil, err
	}
	if e.log, err = os.Create(filepath.Join(e.dir, "gateway.log")); err != nil {
		return nil, err
	}
	return gateway.New(l, slog.New(slog.NewTextHandler(e.log, nil)), gateway.Options{Version: "exercise", Logs: new(telemetry.Logs), SideChannels: e.fleet})
}

func (e *Exercise) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels:\n- name: %s\n  connector: vllm-nixl-pull\n", model)
	for _, list := range []struct {
		key   string
		names []string
	}{{"prefill", prefill}, {"decode", decode}} {
		fmt.Fprintf(&b, "  %s:\n", list.key)
		for _, name := range list.names {
			fmt.Fprintf(&b, "  - {name: %s, url: \"http://%s\"}\n", name, e.fleet.at[name])
		}
	}
	b.WriteString("policy: {default: {split: {min_prompt_tokens: 16}, prefill: round_robin, decode: round_robin}}\n")
	// The reference engines have no NIXL: a warning about it would look like what is to be found.
	b.WriteString("timeouts: {health: 500ms, pre_stop_delay: 1ms}\nreclaim: off\nhealth: {slow_start: 0s}\nlog: {format: text}\n")
	if e.redis != nil {
		fmt.Fprintf(&b, "metadata: {store: redis, redis: {address: %q}}\n", e.redis.address())
	}
	return b.String()
}

// run serves, asks and injects until ctx ends.
func (e *Exercise) run(ctx context.Context, g *gateway.Gateway, calm time.Duration) error {
	load, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	usual := make(chan struct{})
	running.Go(func() { ask(load, e.clients, usual) })
	running.Go(func() {
		select {
		case <-load.Done():
			return
		case <-time.After(calm):
		}
		select {
		case <-load.Done():
		case <-usual:
			e.inject()
		}
	})
	err := g.Run(ctx)
	stop()
	running.Wait()
	return err
}

// enough is after how many answers the gateway knows what is usual: 50 hand-offs of each pair. Package handoff wants 20.
const enough = 200

// inject has the fault begin.
func (e *Exercise) inject() {
	e.begun.Store(true)
	if e.fault == "redis" {
		e.redis.cut()
		return
	}
	e.fleet.inject(e.fault)
}

// Stop ends everything.
func (e *Exercise) Stop() error {
	e.stop()
	err := <-e.ended
	if e.fleet != nil {
		err = errors.Join(err, e.fleet.close())
	}
	if e.redis != nil {
		err = errors.Join(err, e.redis.close())
	}
	if e.log != nil {
		err = errors.Join(err, e.log.Close())
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}
