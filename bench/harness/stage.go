package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// Stage is the processes of a comparison: fake engines, and the targets in front of them.
type Stage struct {
	Cfg             Config
	Connector       string
	Agents          string // the gateway's listener for engines that publish records; "" is none
	Settings        string // more of the gateway's configuration
	Place           Place
	Prefill, Decode []*Child
	Targets         []Target
	Running         []*Child // by target; nil if it cannot
	Cannot          []string // by target: why
}

// Place says which CPUs the target and the rest run on; "" where they cannot be bound.
type Place struct {
	Where        string
	Target, Rest string
}

// The two places of a run on a machine with at least two CPUs.
const (
	OneCPU   = "everything on one CPU"          // nothing is woken across CPUs: what a request costs
	AloneCPU = "the target on a CPU of its own" // what the target can carry
)

// PlaceOn finds a place among the CPUs that this process may use.
func PlaceOn(where string, cpus []int) Place {
	if !CanPin() {
		return Place{Where: "wherever the kernel puts it"}
	}
	first, last := strconv.Itoa(cpus[0]), strconv.Itoa(cpus[len(cpus)-1])
	if where == OneCPU || first == last {
		return Place{OneCPU, last, last}
	}
	return Place{where, last, first}
}

// Setup is what a stage is made of.
type Setup struct {
	Connector       string
	Where           string
	Prefill, Decode int // fake engines; 0 is one
	Targets         []Target
}

// Open starts the processes of a comparison and waits until every target splits requests. A peer that does not is left out.
func (c Setup) Open(ctx context.Context, cfg Config) (_ *Stage, err error) {
	cpus, err := report.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	s := &Stage{Cfg: cfg, Connector: c.Connector, Place: PlaceOn(c.Where, cpus), Targets: c.Targets}
	s.Running, s.Cannot = make([]*Child, len(c.Targets)), make([]string, len(c.Targets))
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.Place.Rest != "" {
		if err := PinSelf(ctx, s.Place.Rest); err != nil {
			return nil, err
		}
	}
	if s.Prefill, err = s.fakes(ctx, "prefill", max(1, c.Prefill)); err != nil {
		return nil, err
	}
	if s.Decode, err = s.fakes(ctx, "decode", max(1, c.Decode)); err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// Start starts the targets in front of the engines.
func (s *Stage) Start(ctx context.Context) (err error) {
	for i, x := range s.Targets {
		if x.Cannot != nil {
			if s.Cannot[i] = x.Cannot(s.Cfg, s.Connector); s.Cannot[i] != "" {
				continue
			}
		}
		s.Running[i], err = x.Start(ctx, s)
		if err == nil {
			err = x.Await(ctx, s.Running[i])
		}
		if err != nil && (!x.Peer || ctx.Err() != nil) {
			return fmt.Errorf("bench: %s: %w", x.Of, err)
		}
		if err != nil {
			s.Cannot[i] = "does not start: " + FirstLine(err.Error())
		}
	}
	return nil
}

// mode is what the fakes play for the connector.
func (s *Stage) mode() string { return strings.TrimPrefix(s.Connector, "vllm-nixl-") }

// fakes starts n fake engines of a role, as the connector has them.
func (s *Stage) fakes(ctx context.Context, role string, n int) ([]*Child, error) {
	var started []*Child
	for range n {
		c, err := Spawn(ctx, "a fake engine for "+role, s.Place.Rest, true, false, s.Cfg.Binary, "bench", "fake", s.mode(), role)
		if err != nil {
			return started, err
		}
		started = append(started, c)
	}
	return started, nil
}

// Close ends the processes, targets first.
func (s *Stage) Close() {
	for _, group := range [][]*Child{s.Running, s.Prefill, s.Decode} {
		for _, c := range group {
			if c != nil {
				c.Stop()
			}
		}
	}
}

// Measured is one round of one target.
type Measured struct {
	Disturbance
	load.Result
	cpu time.Duration // that the target has used
}

// Micros is the CPU time of the target for each request.
func (m Measured) Micros() float64 {
	return report.InMicros(m.cpu) / float64(m.Completed)
}

// Rate is requests per second.
func (m Measured) Rate() float64 { return float64(m.Completed) / m.Elapsed.Seconds() }

// Reads is a figure that rounds of a stage give.
type Reads struct {
	Metric
	Of func(Measured) float64
}

// Comparison is a load on all targets of the stage.
func (s *Stage) Comparison(name string, l load.Closed, figures ...Reads) Comparison {
	return s.ComparisonBy(name, func(ctx context.Context, which int, d time.Duration) (Measured, error) {
		return s.Round(ctx, which, l, d)
	}, figures...)
}

// ComparisonBy is a comparison of all targets of the stage by rounds of any kind.
func (s *Stage) ComparisonBy(name string, round func(ctx context.Context, which int, d time.Duration) (Measured, error), figures ...Reads) Comparison {
	c := Comparison{Name: name, Where: s.Place.Where}
	for _, f := range figures {
		c.Metrics = append(c.Metrics, f.Metric)
	}
	for i, x := range s.Targets {
		c.Systems = append(c.Systems, System{Of: x.Of, Peer: x.Peer, Cannot: s.Cannot[i], Round: func(ctx context.Context, d time.Duration) (Sample, error) {
			m, err := round(ctx, i, d)
			got := Sample{Disturbance: m.Disturbance, Done: m.Completed}
			if err == nil {
				for _, f := range figures {
					got.Figures = append(got.Figures, f.Of(m))
				}
			}
			return got, err
		}})
	}
	return c
}

// Round applies the load to a target for d and reads what it cost.
func (s *Stage) Round(ctx context.Context, which int, l load.Closed, d time.Duration) (Measured, error) {
	target := s.Running[which]
	l.Address = target.Address
	return s.Watch(ctx, target, func() (load.Result, fake.Counts, error) {
		seen, err := l.Run(ctx, d)
		return seen, Asked(s.Targets[which].Legs, int64(seen.Completed)), err
	})
}

// Watch has a load applied, which says what the engines were asked for it, and reads what that cost the target; nil is none.
// Counts that do not agree make it void: every request must have been as many legs as it says, and nothing else may have reached
// the engines.
func (s *Stage) Watch(ctx context.Context, target *Child, apply func() (load.Result, fake.Counts, error)) (Measured, error) {
	before, err := s.Read(ctx, target)
	if err != nil {
		return Measured{}, err
	}
	seen, want, err := apply()
	if err != nil {
		if target != nil {
			err = errors.Join(err, target.Alive())
		}
		return Measured{}, err
	}
	after, err := s.Settled(ctx, target, before, want)
	if err != nil {
		return Measured{}, err
	}
	if err := Verdict(want, after.Counts.Minus(before.Counts)); err != nil {
		return Measured{}, err
	}
	return Measured{
		Disturbance: after.Since(before.Use),
		Result:      seen,
		cpu:         after.Target - before.Target,
	}, nil
}

// Asked is what engines are asked for so many requests.
func Asked(legs int, completed int64) fake.Counts {
	if legs == 1 {
		return fake.Counts{Other: completed}
	}
	return fake.Counts{Prefill: completed, Decode: completed}
}

// Verdict compares what the engines should have been asked with what they were, over connections that are kept.
func Verdict(want, got fake.Counts) error {
	if err := AskedFor(want, got); err != nil {
		return err
	}
	if got.Opened > mayOpen+(got.Prefill+got.Decode+got.Other)/10 {
		return fmt.Errorf("%w: connections to the engines are not kept: %+v", load.ErrVoid, got)
	}
	return nil
}

// AskedFor compares the requests alone: streams that are all open at once have a connection each.
func AskedFor(want, got fake.Counts) error {
	switch {
	case want == fake.Counts{}:
		return fmt.Errorf("%w: no request was completed", load.ErrVoid)
	case got.Asked() != want:
		return fmt.Errorf("%w: for what the client completed the engines are asked %+v, and were asked %+v", load.ErrVoid, want, got)
	}
	return nil
}

// mayOpen is how many connections a round may open whatever it asks: those of its own that it has not used before.
const mayOpen = 256

// Reading is everything that is read before and after a round.
type Reading struct {
	Use
	Target time.Duration // its CPU time
	Counts fake.Counts
}

// Settled reads until the engines have been asked for every completed request: with push, decode's answer may be
// with the client before prefill has read its leg.
func (s *Stage) Settled(ctx context.Context, target *Child, before Reading, want fake.Counts) (Reading, error) {
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		r, err := s.Read(ctx, target)
		if err != nil || r.Counts.Minus(before.Counts).Prefill >= want.Prefill || time.Now().After(end) {
			return r, err
		}
	}
}

func (s *Stage) Read(ctx context.Context, target *Child) (Reading, error) {
	var r Reading
	var err error
	if r.Use, err = useNow(CPUOf); err != nil {
		return r, err
	}
	for _, group := range [][]*Child{s.Prefill, s.Decode, s.Running} {
		for _, c := range group {
			if c == nil || c != target && c.Alive() != nil {
				continue
			}
			used, err := c.CPU()
			if err != nil {
				return r, errors.Join(err, c.Alive())
			}
			if c == target {
				r.Target = used
			}
			if c == target || !slices.Contains(s.Running, c) { // a target that is not measured is somebody else
				r.own += used
			}
		}
	}
	for _, group := range [][]*Child{s.Prefill, s.Decode} {
		for _, f := range group {
			c, err := countsOf(ctx, f.Address)
			if err != nil {
				return r, err
			}
			r.Counts = r.Counts.Plus(c)
		}
	}
	return r, nil
}

// countsOf asks a fake what it was asked.
func countsOf(ctx context.Context, address string) (fake.Counts, error) {
	var c fake.Counts
	err := GetJSON(ctx, "http://"+address+fake.CountsPath, &c)
	return c, err
}

// FreeAddresses returns n loopback addresses nobody listens on.
func FreeAddresses(n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		defer ln.Close()
		addresses[i] = ln.Addr().String()
	}
	return addresses, nil
}
