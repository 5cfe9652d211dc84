package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

const redisPausedAbout = "The gateway with a Redis of the run's own for the engines' records, for clients' limits and for what gateways tell each other. In turns Redis is up, or stopped (SIGSTOP) for five times `-round`: 10 s unless it says otherwise. In either time there is one request after the other, and the figure is the median of the 99th percentiles of ten windows: of one long window it would be the scheduler's. Redis is let go on, and answers again, before the next turn begins.\n"

// redisSuite measures what it costs clients that Redis does not answer.
func redisSuite() Suite {
	return Suite{Name: "redis/paused", Brief: "99th percentile of requests while Redis is stopped, beside Redis up", About: redisPausedAbout, run: func(ctx context.Context, r *Run) error {
		if _, err := exec.LookPath("redis-server"); err != nil {
			r.report.Notes = append(r.report.Notes, "Nothing was measured: redis-server is not installed (`make deps`).")
			fmt.Fprintln(r.out, "  left out: redis-server is not installed")
			return nil
		}
		return r.redisPaused(ctx)
	}}
}

func (r *Run) redisPaused(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer server.stop()
	s := &stage{cfg: r.Config, connector: "vllm-nixl-pull", targets: []target{gatewayTarget()}, running: make([]*child, 1), cannot: make([]string, 1)}
	s.settings = fmt.Sprintf("metadata: {store: redis, redis: {address: \"unix://%s\"}}\ntenants: {default: {requests_per_minute: 100000000, concurrent: 100000}}\n", server.socket())
	defer s.close()
	if s.prefill, err = s.fakes(ctx, "prefill", 1); err != nil {
		return err
	}
	if s.decode, err = s.fakes(ctx, "decode", 1); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	up := func(ctx context.Context, d time.Duration) (sample, error) { return s.windows(ctx, 5*d) }
	paused := func(ctx context.Context, d time.Duration) (_ sample, err error) {
		if err := server.pause(); err != nil {
			return sample{}, err
		}
		defer func() { err = errors.Join(err, server.resume(ctx)) }()
		return s.windows(ctx, 5*d)
	}
	const beside = "Redis up"
	return r.contest(ctx, contest{
		name: "Redis stopped", where: s.place.where,
		metrics: []metric{
			{what: "99th percentile", unit: "µs", goals: []Goal{{Beside: beside, Times: 1.05}}},
			{what: "median", unit: "µs"},
		},
		contenders: []contender{{of: us, round: paused}, {of: beside, round: up}},
	})
}

// windows loads the gateway for d and returns the medians of the 99th percentiles and of the medians of ten windows.
func (s *stage) windows(ctx context.Context, d time.Duration) (sample, error) {
	const windows = 10
	var got sample
	var p99, p50 []float64
	for range windows {
		m, err := s.round(ctx, 0, load{connections: 1, body: chatBody(1<<10, false)}, d/windows)
		if err != nil {
			return got, err
		}
		q := quantilesOf(m.took)
		p99, p50 = append(p99, float64(q.p99)/1000), append(p50, float64(q.p50)/1000)
		got.done += m.completed
		got.others, got.steal = got.others+m.others/windows, got.steal+m.steal/windows
	}
	got.figures = []float64{spread(p99).Median, spread(p50).Median}
	return got, nil
}

// pause stops the server's process where it is: whoever is connected stays connected, and gets no answer.
func (s *redisServer) pause() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// resume has it go on, and waits until it answers.
func (s *redisServer) resume(ctx context.Context) error {
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	db, err := s.open()
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
