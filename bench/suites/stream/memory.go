package stream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// The load of stream/memory.
const (
	idleStreams  = 4000
	idleOpening  = 64            // streams that are opened at once
	idleSettling = time.Second   // behind which what opening them took is over
	idleFor      = 2 * time.Hour // until their second token
)

// streamMemory measures the suite stream/memory.
func streamMemory(ctx context.Context, r *harness.Run) error {
	files, err := load.RaiseFiles()
	if err != nil {
		return err
	}
	n := idleStreams
	if room := (int(files) - 256) / 2; room < n { // a router has two connections a stream
		n = room
		r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("The system lets a process have %d files open: %d streams were held, not %d.", files, n, idleStreams))
	}
	name := fmt.Sprintf("%d idle streams", n)
	if !r.Wants(name) {
		return nil
	}
	s, err := harness.Setup{Connector: "vllm-nixl-pull", Where: harness.AloneCPU}.Open(ctx, r.Config)
	if err != nil {
		return err
	}
	defer s.Close()
	c := harness.Comparison{Name: name, Where: s.Place.Where, Metrics: []harness.Metric{
		{What: "RSS a stream", Unit: "KiB", Goals: []report.Goal{{Beside: report.Baseline, Times: 1}, {Plus: 20}}},
		{What: "RSS before", Unit: "MiB"},
		{What: "CPU while idle", Unit: "%", Goals: []report.Goal{{Plus: 2}}},
	}}
	for _, x := range streamTargets() {
		cannot := ""
		if x.Cannot != nil {
			cannot = x.Cannot(r.Config, s.Connector)
		}
		if cannot == "" {
			r.Names(x)
		}
		c.Systems = append(c.Systems, harness.System{Of: x.Of, Peer: x.Peer, Cannot: cannot, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
			return idleRound(ctx, s, x, n, d)
		}})
	}
	return r.Compare(ctx, c)
}

// idleRound starts the target, opens n streams of it, and looks what they take for d.
func idleRound(ctx context.Context, s *harness.Stage, x harness.Target, n int, d time.Duration) (_ harness.Sample, err error) {
	c, err := x.Start(ctx, s)
	if err != nil {
		return harness.Sample{}, err
	}
	s.Running = []*harness.Child{c} // its CPU time is the bench's own
	defer func() {
		s.Running = nil
		c.Stop()
	}()
	if err := x.Await(ctx, c); err != nil {
		return harness.Sample{}, err
	}
	before, err := s.Read(ctx, c)
	if err != nil {
		return harness.Sample{}, err
	}
	fresh, err := rssOf("/proc", c.Process.PID())
	if err != nil {
		return harness.Sample{}, err
	}
	held, err := load.StreamLoad{Address: c.Address, Streams: n, Opening: idleOpening, Pace: fake.Pace{Tokens: 2, Every: idleFor}}.Open(ctx)
	if err != nil {
		return harness.Sample{}, errors.Join(err, c.Alive())
	}
	defer func() { err = errors.Join(err, held.Cut()) }()
	time.Sleep(idleSettling)
	steady, _, err := steady(s, held, func() (harness.Reading, error) { return s.Read(ctx, c) }, d)
	if err != nil {
		return harness.Sample{}, errors.Join(err, c.Alive())
	}
	full, err := rssOf("/proc", c.Process.PID())
	if err != nil {
		return harness.Sample{}, errors.Join(err, c.Alive())
	}
	want := harness.Asked(x.Legs, int64(n))
	after, err := s.Settled(ctx, c, before, want)
	if err == nil {
		err = harness.AskedFor(want, after.Counts.Minus(before.Counts))
	}
	if err != nil {
		return harness.Sample{}, fmt.Errorf("%s: %w", c.Name, err)
	}
	return harness.Sample{Disturbance: steady.Disturbance, Done: n, Figures: []float64{
		float64(full-fresh) / float64(n) / (1 << 10), float64(fresh) / (1 << 20), 100 * float64(steady.target) / float64(steady.elapsed),
	}}, nil
}

// rssOf is the resident memory of a process in bytes, without what it has mapped of files: that is its program, and comes and goes.
func rssOf(proc string, pid int) (int64, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("bench: process %d: %w", pid, err)
	}
	kb, err := strconv.ParseInt(strings.TrimSuffix(report.Field(string(b), "RssAnon"), " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("bench: process %d: RssAnon: %w", pid, err)
	}
	return kb << 10, nil
}
