package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The load of stream/memory.
const (
	idleStreams  = 4000
	idleOpening  = 64            // streams that are opened at once
	idleSettling = time.Second   // behind which what opening them took is over
	idleFor      = 2 * time.Hour // until their second token
)

// streamMemory measures the suite stream/memory.
func (r *Run) streamMemory(ctx context.Context) error {
	files, err := raiseFiles()
	if err != nil {
		return err
	}
	n := idleStreams
	if room := (int(files) - 256) / 2; room < n { // a router has two connections a stream
		n = room
		r.report.Notes = append(r.report.Notes, fmt.Sprintf("The system lets a process have %d files open: %d streams were held, not %d.", files, n, idleStreams))
	}
	name := fmt.Sprintf("%d idle streams", n)
	if !r.wants(name) {
		return nil
	}
	s, err := cast{connector: "vllm-nixl-pull", where: aloneCPU}.open(ctx, r.Config)
	if err != nil {
		return err
	}
	defer s.close()
	c := contest{name: name, where: s.place.where, metrics: []metric{
		{what: "RSS a stream", unit: "KiB", goals: []Goal{{Beside: "floor", Times: 1}, {Plus: 20}}},
		{what: "RSS before", unit: "MiB"},
		{what: "CPU while idle", unit: "%", goals: []Goal{{Plus: 2}}},
	}}
	for _, x := range streamTargets() {
		cannot := ""
		if x.cannot != nil {
			cannot = x.cannot(r.Config, s.connector)
		}
		if cannot == "" {
			r.names(x)
		}
		c.contenders = append(c.contenders, contender{of: x.of, peer: x.peer, cannot: cannot, round: func(ctx context.Context, d time.Duration) (sample, error) {
			return s.idleRound(ctx, x, n, d)
		}})
	}
	return r.contest(ctx, c)
}

// idleRound starts the target, opens n streams of it, and looks what they take for d.
func (s *stage) idleRound(ctx context.Context, x target, n int, d time.Duration) (_ sample, err error) {
	c, err := x.start(ctx, s)
	if err != nil {
		return sample{}, err
	}
	s.running = []*child{c} // its CPU time is the bench's own
	defer func() {
		s.running = nil
		c.stop()
	}()
	if err := x.await(ctx, c); err != nil {
		return sample{}, err
	}
	before, err := s.read(ctx, c)
	if err != nil {
		return sample{}, err
	}
	fresh, err := rssOf("/proc", c.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	held, err := streamLoad{address: c.address, streams: n, opening: idleOpening, pace: pace{Tokens: 2, Every: idleFor}}.open(ctx)
	if err != nil {
		return sample{}, errors.Join(err, c.alive())
	}
	defer func() { err = errors.Join(err, held.cut()) }()
	time.Sleep(idleSettling)
	steady, _, err := s.steady(held, func() (reading, error) { return s.read(ctx, c) }, d)
	if err != nil {
		return sample{}, errors.Join(err, c.alive())
	}
	full, err := rssOf("/proc", c.cmd.Process.Pid)
	if err != nil {
		return sample{}, errors.Join(err, c.alive())
	}
	want := asked(x.legs, int64(n))
	after, err := s.settled(ctx, c, before, want)
	if err == nil {
		err = askedFor(want, after.counts.minus(before.counts))
	}
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", c.name, err)
	}
	return sample{disturbance: steady.disturbance, done: n, figures: []float64{
		float64(full-fresh) / float64(n) / (1 << 10), float64(fresh) / (1 << 20), 100 * float64(steady.target) / float64(steady.elapsed),
	}}, nil
}

// rssOf is the resident memory of a process in bytes, without what it has mapped of files: that is its program, and comes and goes.
func rssOf(proc string, pid int) (int64, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("bench: process %d: %w", pid, err)
	}
	kb, err := strconv.ParseInt(strings.TrimSuffix(field(string(b), "RssAnon"), " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("bench: process %d: RssAnon: %w", pid, err)
	}
	return kb << 10, nil
}
