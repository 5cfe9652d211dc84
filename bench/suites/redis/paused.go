package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// Suite measures what it costs clients that Redis does not answer.
func Suite() harness.Suite {
	return harness.Suite{Name: "redis/paused", Brief: "p99 of requests while Redis is stopped, beside a gateway whose Redis is up", Run: func(ctx context.Context, r *harness.Run) error {
		if _, err := exec.LookPath("redis-server"); err != nil {
			r.Report.Notes = append(r.Report.Notes, "Nothing was measured: redis-server is not installed (`make deps`).")
			fmt.Fprintln(r.Out, "  left out: redis-server is not installed")
			return nil
		}
		return redisPaused(ctx, r)
	}}
}

// redisUp is what stands beside: the gateway whose Redis is up meanwhile.
const redisUp = "Redis up"

func redisPaused(ctx context.Context, r *harness.Run) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &pausing{}
	var targets []harness.Target
	for i := range p.servers {
		server, err := startRedis(ctx)
		if err != nil {
			return err
		}
		defer server.Stop()
		p.servers[i] = server
		x := harness.GatewayTarget()
		x.Start = func(ctx context.Context, s *harness.Stage) (*harness.Child, error) {
			own := *s
			own.Settings = fmt.Sprintf("metadata: {store: redis, redis: {address: \"unix://%s\"}}\ntenants: {default: {requests_per_minute: 100000000, concurrent: 100000}}\n", server.socket())
			return harness.StartGateway(ctx, &own)
		}
		targets = append(targets, x)
	}
	var err error
	if p.Stage, err = (harness.Setup{Connector: "vllm-nixl-pull", Where: harness.OneCPU, Targets: targets}).Open(ctx, r.Config); err != nil {
		return err
	}
	defer p.Close()
	goals := []report.Goal{{Beside: redisUp, Times: 1.05}}
	const name = "Redis stopped"
	err = r.Compare(ctx, harness.Comparison{
		Name: name, Where: p.Place.Where,
		Metrics: []harness.Metric{{What: "99th percentile", Unit: "µs", Goals: goals}, {What: "median", Unit: "µs", Goals: goals}, {What: "slowest", Unit: "µs"}, {What: "CPU a request", Unit: "µs"}},
		Systems: []harness.System{{Of: report.Us, Round: p.half(0)}, {Of: redisUp, Round: p.half(1)}},
	})
	if err != nil || len(p.stopped) == 0 {
		return err
	}
	low, ratio, high := pooled(p.stopped, p.up, 200)
	row := report.Row{Name: name, What: "99th percentile, all rounds", Where: p.Place.Where, Unit: "× " + redisUp, Ours: report.Figure{Of: report.Us, Rounds: []float64{low, ratio, high}}}
	row.Sum(report.Goal{Plus: 1.05})
	r.Report.Rows = append(r.Report.Rows, row)
	return nil
}

// pausing is two gateways, and what one load on both has given.
type pausing struct {
	*harness.Stage
	servers     [2]*redisServer
	rounds      int               // the first warms up
	other       *harness.Sample   // what the last load has given for the system that has not asked yet; nil if both have
	stopped, up [][]time.Duration // of the calm rounds: the requests of each tenth
}

// half is the round of one of the two systems. The load is on both, when the first of them asks.
func (p *pausing) half(which int) func(context.Context, time.Duration) (harness.Sample, error) {
	return func(ctx context.Context, d time.Duration) (harness.Sample, error) {
		if got := p.other; got != nil {
			p.other = nil
			return *got, nil
		}
		both, err := p.both(ctx, d)
		if err == nil && (p.rounds == 1 || both[which].Calm(p.Cfg)) { // else it is to be had again
			p.other = &both[1-which]
		}
		return both[which], err
	}
}

// both has one Redis stopped for five times d, and asks both gateways meanwhile. The first sample is of the one whose Redis is stopped.
func (p *pausing) both(ctx context.Context, d time.Duration) (got [2]harness.Sample, err error) {
	which := p.rounds % 2
	p.rounds++
	if err := p.servers[which].pause(); err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, p.servers[which].resume(ctx)) }()
	through := func(i int) load.Closed {
		return load.Closed{Address: p.Running[i].Address, Connections: 1, Body: fake.ChatBody(1<<10, false)}
	}
	var seen harness.Paired
	var used [2]time.Duration
	m, err := p.Watch(ctx, p.Running[which], func() (load.Result, fake.Counts, error) {
		before, err := p.used()
		if err != nil {
			return load.Result{}, fake.Counts{}, err
		}
		if seen, err = harness.Alternate(ctx, 5*d, through(which).Open, through(1-which).Open); err != nil {
			return load.Result{}, fake.Counts{}, err
		}
		if err := p.alone(ctx, which, 5*d); err != nil {
			return load.Result{}, fake.Counts{}, err
		}
		after, err := p.used()
		used = [2]time.Duration{after[which] - before[which], after[1-which] - before[1-which]}
		n := len(seen.Through)
		return load.Result{Completed: n, Took: seen.Through}, harness.Asked(2, int64(n+len(seen.Direct))), err
	})
	if err != nil {
		return got, err
	}
	for i, took := range [][]time.Duration{seen.Through, seen.Direct} {
		q := load.QuantilesOf(took)
		got[i] = harness.Sample{Disturbance: m.Disturbance, Done: len(took), Figures: []float64{report.InMicros(q.P99), report.InMicros(q.P50), report.InMicros(slices.Max(took)), report.InMicros(used[i]) / float64(len(took))}}
	}
	if p.rounds > 1 && got[0].Calm(p.Cfg) {
		p.stopped, p.up = append(p.stopped, tenths(seen.Through)...), append(p.up, tenths(seen.Direct)...)
	}
	return got, nil
}

// alone makes a round void in which the gateways' own metrics do not tell that one has lost its Redis, and the other has not.
func (p *pausing) alone(ctx context.Context, which int, stopped time.Duration) error {
	if stopped < 5*time.Second { // shorter than what it takes to be noticed
		return nil
	}
	for i, want := range map[int]string{which: "\npdrouter_limits_alone 1\n", 1 - which: "\npdrouter_limits_alone 0\n"} {
		_, said, err := harness.Get(ctx, "http://"+p.Running[i].Operations+"/metrics")
		if err != nil {
			return err
		}
		if !strings.Contains(string(said), want) {
			return fmt.Errorf("%w: Redis was stopped for %v, and a gateway's metrics lack %q", load.ErrVoid, stopped, strings.TrimSpace(want))
		}
	}
	return nil
}

// used is the CPU time that each gateway has used.
func (p *pausing) used() (used [2]time.Duration, err error) {
	for i := range used {
		if used[i], err = p.Running[i].CPU(); err != nil {
			break
		}
	}
	return used, err
}

// tenths are times in ten parts, in their order.
func tenths(times []time.Duration) [][]time.Duration {
	return slices.Collect(slices.Chunk(times, max(1, (len(times)+9)/10)))
}

// pooled is the quotient of the 99th percentiles of all times of a and of b, and the interval in which 95 of 100 lie of those of so many
// draws. A draw takes as many parts as there are, with repetition, the same of a and of b, which have the same moments.
func pooled(a, b [][]time.Duration, draws int) (low, ratio, high float64) {
	n := min(len(a), len(b))
	quotient := func(part func(int) int) float64 {
		var of [2][]time.Duration
		for i := range n {
			k := part(i)
			of[0], of[1] = append(of[0], a[k]...), append(of[1], b[k]...)
		}
		return float64(load.QuantilesOf(of[0]).P99) / float64(load.QuantilesOf(of[1]).P99)
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same in every run
	drawn := make([]float64, draws)
	for i := range drawn {
		drawn[i] = quotient(func(int) int { return random.IntN(n) })
	}
	slices.Sort(drawn)
	ratio = quotient(func(i int) int { return i })
	return min(ratio, drawn[draws/40]), ratio, max(ratio, drawn[draws-1-draws/40])
}

// pause stops the server's process where it is: whoever is connected stays connected, and gets no answer.
func (s *redisServer) pause() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// resume has it go on, and waits until it answers.
func (s *redisServer) resume(ctx context.Context) error {
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	db, err := s.Open()
	if err != nil {
		return err
	}
	defer db.Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = db.Ping(ctx).Err(); err == nil || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
	}
}
