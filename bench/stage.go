package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stage is the processes of a contest: fake engines, and the targets in front of them.
type stage struct {
	cfg             Config
	connector       string
	agents          string // the gateway's listener for engines that publish records; "" is none
	settings        string // more of the gateway's configuration
	place           place
	prefill, decode []*child
	targets         []target
	running         []*child // by target; nil if it cannot
	cannot          []string // by target: why
}

// place says which CPUs the target and the rest run on; "" where they cannot be bound.
type place struct {
	where        string
	target, rest string
}

// The two places of a run on a machine with at least two CPUs.
const (
	oneCPU   = "everything on one CPU"          // nothing is woken across CPUs: what a request costs
	aloneCPU = "the target on a CPU of its own" // what the target can carry
)

// placeOn finds a place among the CPUs that this process may use.
func placeOn(where string, cpus []int) place {
	if !canPin() {
		return place{where: "wherever the kernel puts it"}
	}
	first, last := strconv.Itoa(cpus[0]), strconv.Itoa(cpus[len(cpus)-1])
	if where == oneCPU || first == last {
		return place{oneCPU, last, last}
	}
	return place{where, last, first}
}

// cast is what a stage is made of.
type cast struct {
	connector       string
	where           string
	prefill, decode int // fake engines; 0 is one
	targets         []target
}

// open starts the processes of a contest and waits until every target splits requests. A peer that does not is left out.
func (c cast) open(ctx context.Context, cfg Config) (_ *stage, err error) {
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	s := &stage{cfg: cfg, connector: c.connector, place: placeOn(c.where, cpus), targets: c.targets}
	s.running, s.cannot = make([]*child, len(c.targets)), make([]string, len(c.targets))
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.place.rest != "" {
		if err := pinSelf(ctx, s.place.rest); err != nil {
			return nil, err
		}
	}
	if s.prefill, err = s.fakes(ctx, "prefill", max(1, c.prefill)); err != nil {
		return nil, err
	}
	if s.decode, err = s.fakes(ctx, "decode", max(1, c.decode)); err != nil {
		return nil, err
	}
	return s, s.start(ctx)
}

// start starts the targets in front of the engines.
func (s *stage) start(ctx context.Context) (err error) {
	for i, x := range s.targets {
		if x.cannot != nil {
			if s.cannot[i] = x.cannot(s.cfg, s.connector); s.cannot[i] != "" {
				continue
			}
		}
		s.running[i], err = x.start(ctx, s)
		if err == nil {
			err = x.await(ctx, s.running[i])
		}
		if err != nil && (!x.peer || ctx.Err() != nil) {
			return fmt.Errorf("bench: %s: %w", x.of, err)
		}
		if err != nil {
			s.cannot[i] = "does not start: " + firstLine(err.Error())
		}
	}
	return nil
}

// mode is what the fakes play for the connector.
func (s *stage) mode() string { return strings.TrimPrefix(s.connector, "vllm-nixl-") }

// fakes starts n fake engines of a role, as the connector has them.
func (s *stage) fakes(ctx context.Context, role string, n int) ([]*child, error) {
	var started []*child
	for range n {
		c, err := spawn(ctx, "a fake engine for "+role, s.place.rest, true, false, s.cfg.Binary, "bench", "fake", s.mode(), role)
		if err != nil {
			return started, err
		}
		started = append(started, c)
	}
	return started, nil
}

// close ends the processes, targets first.
func (s *stage) close() {
	for _, group := range [][]*child{s.running, s.prefill, s.decode} {
		for _, c := range group {
			if c != nil {
				c.stop()
			}
		}
	}
}

// measured is one round of one target.
type measured struct {
	disturbance
	loaded
	cpu time.Duration // that the target has used
}

// micros is the CPU time of the target for each request.
func (m measured) micros() float64 {
	return inMicros(m.cpu) / float64(m.completed)
}

// rate is requests per second.
func (m measured) rate() float64 { return float64(m.completed) / m.elapsed.Seconds() }

// reads is a figure that rounds of a stage give.
type reads struct {
	metric
	of func(measured) float64
}

// contest is a load on all targets of the stage.
func (s *stage) contest(name string, l load, figures ...reads) contest {
	return s.rounds(name, func(ctx context.Context, which int, d time.Duration) (measured, error) {
		return s.round(ctx, which, l, d)
	}, figures...)
}

// rounds is a contest of all targets of the stage by rounds of any kind.
func (s *stage) rounds(name string, round func(ctx context.Context, which int, d time.Duration) (measured, error), figures ...reads) contest {
	c := contest{name: name, where: s.place.where}
	for _, f := range figures {
		c.metrics = append(c.metrics, f.metric)
	}
	for i, x := range s.targets {
		c.contenders = append(c.contenders, contender{of: x.of, peer: x.peer, cannot: s.cannot[i], round: func(ctx context.Context, d time.Duration) (sample, error) {
			m, err := round(ctx, i, d)
			got := sample{disturbance: m.disturbance, done: m.completed}
			if err == nil {
				for _, f := range figures {
					got.figures = append(got.figures, f.of(m))
				}
			}
			return got, err
		}})
	}
	return c
}

// round applies the load to a target for d and reads what it cost.
func (s *stage) round(ctx context.Context, which int, l load, d time.Duration) (measured, error) {
	target := s.running[which]
	l.address = target.address
	return s.watch(ctx, target, func() (loaded, Counts, error) {
		seen, err := l.run(ctx, d)
		return seen, asked(s.targets[which].legs, int64(seen.completed)), err
	})
}

// watch has a load applied, which says what the engines were asked for it, and reads what that cost the target; nil is none.
// Counts that do not agree make it void: every request must have been as many legs as it says, and nothing else may have reached
// the engines.
func (s *stage) watch(ctx context.Context, target *child, apply func() (loaded, Counts, error)) (measured, error) {
	before, err := s.read(ctx, target)
	if err != nil {
		return measured{}, err
	}
	seen, want, err := apply()
	if err != nil {
		if target != nil {
			err = errors.Join(err, target.alive())
		}
		return measured{}, err
	}
	after, err := s.settled(ctx, target, before, want)
	if err != nil {
		return measured{}, err
	}
	if err := verdict(want, after.counts.minus(before.counts)); err != nil {
		return measured{}, err
	}
	return measured{
		disturbance: after.since(before.use),
		loaded:      seen,
		cpu:         after.target - before.target,
	}, nil
}

// asked is what engines are asked for so many requests.
func asked(legs int, completed int64) Counts {
	if legs == 1 {
		return Counts{Other: completed}
	}
	return Counts{Prefill: completed, Decode: completed}
}

// verdict compares what the engines should have been asked with what they were, over connections that are kept.
func verdict(want, got Counts) error {
	if err := askedFor(want, got); err != nil {
		return err
	}
	if got.Opened > mayOpen+(got.Prefill+got.Decode+got.Other)/10 {
		return fmt.Errorf("%w: connections to the engines are not kept: %+v", errVoid, got)
	}
	return nil
}

// askedFor compares the requests alone: streams that are all open at once have a connection each.
func askedFor(want, got Counts) error {
	switch {
	case want == Counts{}:
		return fmt.Errorf("%w: no request was completed", errVoid)
	case got.asked() != want:
		return fmt.Errorf("%w: for what the client completed the engines are asked %+v, and were asked %+v", errVoid, want, got)
	}
	return nil
}

// mayOpen is how many connections a round may open whatever it asks: those of its own that it has not used before.
const mayOpen = 256

// errVoid marks a run whose counts were wrong.
var errVoid = errors.New("void")

// reading is everything that is read before and after a round.
type reading struct {
	use
	target time.Duration // its CPU time
	counts Counts
}

// settled reads until the engines have been asked for every completed request: with push, decode's answer may be
// with the client before prefill has read its leg.
func (s *stage) settled(ctx context.Context, target *child, before reading, want Counts) (reading, error) {
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		r, err := s.read(ctx, target)
		if err != nil || r.counts.minus(before.counts).Prefill >= want.Prefill || time.Now().After(end) {
			return r, err
		}
	}
}

func (s *stage) read(ctx context.Context, target *child) (reading, error) {
	var r reading
	var err error
	if r.use, err = useNow(cpuOf); err != nil {
		return r, err
	}
	for _, group := range [][]*child{s.prefill, s.decode, s.running} {
		for _, c := range group {
			if c == nil || c != target && c.alive() != nil {
				continue
			}
			used, err := c.cpu()
			if err != nil {
				return r, errors.Join(err, c.alive())
			}
			if c == target {
				r.target = used
			}
			if c == target || !slices.Contains(s.running, c) { // a target that is not measured is somebody else
				r.own += used
			}
		}
	}
	for _, group := range [][]*child{s.prefill, s.decode} {
		for _, f := range group {
			c, err := countsOf(ctx, f.address)
			if err != nil {
				return r, err
			}
			r.counts = r.counts.plus(c)
		}
	}
	return r, nil
}

// countsOf asks a fake what it was asked.
func countsOf(ctx context.Context, address string) (Counts, error) {
	var c Counts
	err := getJSON(ctx, "http://"+address+countsPath, &c)
	return c, err
}

// freeAddresses returns n loopback addresses nobody listens on.
func freeAddresses(n int) ([]string, error) {
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
