package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/sim"
)

// SimStage is modelled engines, and targets in front of them.
type SimStage struct {
	*Stage
	engines *Child
	Asked   int // requests, of which each has its own prompt
}

// SimSetup is what a modelledStage is made of.
type SimSetup struct {
	Spec     sim.Spec
	Settings string // more of the gateway's configuration
	Where    string
	Targets  []Target
}

// AllCPUs is a place without bounds: what counts takes longer than a wake-up.
const AllCPUs = "all CPUs"

// Open starts the processes and waits until every target answers. A peer that does not is left out.
func (c SimSetup) Open(ctx context.Context, cfg Config) (_ *SimStage, err error) {
	cpus, err := report.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	place := PlaceOn(c.Where, cpus)
	if c.Where == AllCPUs && place.Rest != "" {
		place.Target = ListOf(cpus)
		place.Rest = place.Target
	}
	m := &SimStage{Stage: &Stage{Cfg: cfg, Connector: c.Spec.Connector, Settings: c.Settings, Place: place, Targets: c.Targets}}
	m.Running, m.Cannot = make([]*Child, len(c.Targets)), make([]string, len(c.Targets))
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	if place.Rest != "" {
		if err := PinSelf(ctx, place.Rest); err != nil {
			return nil, err
		}
	}
	argv := append([]string{cfg.Binary, "bench", "engines"}, c.Spec.Args()...)
	if m.engines, err = Spawn(ctx, "the modelled engines", place.Rest, true, false, argv...); err != nil {
		return nil, err
	}
	for i, address := range strings.Fields(m.engines.Address) {
		e := &Child{Name: fmt.Sprintf("modelled engine %d", i), Address: address}
		if i < c.Spec.Prefill {
			m.Prefill = append(m.Prefill, e)
		} else {
			m.Decode = append(m.Decode, e)
		}
	}
	return m, m.Start(ctx)
}

// ListOf names CPUs as taskset reads them.
func ListOf(cpus []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(cpus), " ", ","), "[]")
}

// Close ends the processes, targets first.
func (m *SimStage) Close() {
	for _, c := range append(slices.Clone(m.Running), m.engines) {
		if c != nil {
			c.Stop()
		}
	}
}

// Use reads the machine, the targets and the engines.
func (m *SimStage) Use() (Use, error) {
	u, err := useNow(CPUOf)
	if err != nil {
		return u, err
	}
	for _, c := range append(slices.Clone(m.Running), m.engines) {
		if c == nil {
			continue
		}
		used, err := c.CPU()
		if err != nil {
			return u, errors.Join(err, c.Alive())
		}
		u.own += used
	}
	return u, nil
}

// Fleet asks what the engines have done.
func (m *SimStage) Fleet(ctx context.Context) (sim.FleetReading, fake.Counts, error) {
	var r sim.FleetReading
	var sum fake.Counts
	for _, group := range [][]*Child{m.Prefill, m.Decode} {
		for _, e := range group {
			c, err := countsOf(ctx, e.Address)
			if err != nil {
				return r, sum, err
			}
			sum = sum.Plus(c)
		}
	}
	err := GetJSON(ctx, "http://"+m.Decode[0].Address+sim.FleetPath, &r)
	return r, sum, err
}

// Quiet waits until the engines have been asked nothing for a while: routers try pairs of engines before they use them. It
// returns what they were asked.
func (m *SimStage) Quiet(ctx context.Context) (fake.Counts, error) {
	var last fake.Counts
	for same := 0; same < 5; same++ {
		_, c, err := m.Fleet(ctx)
		if err != nil {
			return c, err
		}
		if c != last {
			last, same = c, 0
		}
		if err := Pause(ctx, 60*time.Millisecond); err != nil {
			return c, err
		}
	}
	return last, nil
}

// Scaled is what an open loop has seen in shrunk time, in the engines' time.
func Scaled(outcomes []load.Outcome, speed float64) {
	by := func(d *time.Duration) { *d = time.Duration(float64(*d) * speed) }
	for i := range outcomes {
		o := &outcomes[i]
		by(&o.At)
		by(&o.Sent)
		by(&o.Ended)
		for j := range o.Chunks {
			by(&o.Chunks[j])
		}
	}
}
