package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// modelledStage is modelled engines, and targets in front of them.
type modelledStage struct {
	*stage
	engines *child
	asked   int // requests, of which each has its own prompt
}

// modelledCast is what a modelledStage is made of.
type modelledCast struct {
	spec     ModelledSpec
	settings string // more of the gateway's configuration
	where    string
	targets  []target
}

// allCPUs is a place without bounds: what counts takes longer than a wake-up.
const allCPUs = "all CPUs"

// open starts the processes and waits until every target answers. A peer that does not is left out.
func (c modelledCast) open(ctx context.Context, cfg Config) (_ *modelledStage, err error) {
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	place := placeOn(c.where, cpus)
	if c.where == allCPUs && place.rest != "" {
		place.target = listOf(cpus)
		place.rest = place.target
	}
	m := &modelledStage{stage: &stage{cfg: cfg, connector: c.spec.Connector, settings: c.settings, place: place, targets: c.targets}}
	m.running, m.cannot = make([]*child, len(c.targets)), make([]string, len(c.targets))
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if place.rest != "" {
		if err := pinSelf(ctx, place.rest); err != nil {
			return nil, err
		}
	}
	argv := append([]string{cfg.Binary, "bench", "engines"}, c.spec.args()...)
	if m.engines, err = spawn(ctx, "the modelled engines", place.rest, true, false, argv...); err != nil {
		return nil, err
	}
	for i, address := range strings.Fields(m.engines.address) {
		e := &child{name: fmt.Sprintf("modelled engine %d", i), address: address}
		if i < c.spec.Prefill {
			m.prefill = append(m.prefill, e)
		} else {
			m.decode = append(m.decode, e)
		}
	}
	return m, m.start(ctx)
}

// listOf names CPUs as taskset reads them.
func listOf(cpus []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(cpus), " ", ","), "[]")
}

// close ends the processes, targets first.
func (m *modelledStage) close() {
	for _, c := range append(slices.Clone(m.running), m.engines) {
		if c != nil {
			c.stop()
		}
	}
}

// use reads the machine, the targets and the engines.
func (m *modelledStage) use() (use, error) {
	u, err := useNow(cpuOf)
	if err != nil {
		return u, err
	}
	for _, c := range append(slices.Clone(m.running), m.engines) {
		if c == nil {
			continue
		}
		used, err := c.cpu()
		if err != nil {
			return u, errors.Join(err, c.alive())
		}
		u.own += used
	}
	return u, nil
}

// fleet asks what the engines have done.
func (m *modelledStage) fleet(ctx context.Context) (fleetReading, Counts, error) {
	var r fleetReading
	var sum Counts
	for _, group := range [][]*child{m.prefill, m.decode} {
		for _, e := range group {
			c, err := countsOf(ctx, e.address)
			if err != nil {
				return r, sum, err
			}
			sum = sum.plus(c)
		}
	}
	err := getJSON(ctx, "http://"+m.decode[0].address+fleetPath, &r)
	return r, sum, err
}

// quiet waits until the engines have been asked nothing for a while: routers try pairs of engines before they use them. It
// returns what they were asked.
func (m *modelledStage) quiet(ctx context.Context) (Counts, error) {
	var last Counts
	for same := 0; same < 5; same++ {
		_, c, err := m.fleet(ctx)
		if err != nil {
			return c, err
		}
		if c != last {
			last, same = c, 0
		}
		if err := pause(ctx, 60*time.Millisecond); err != nil {
			return c, err
		}
	}
	return last, nil
}

// scaled is what an open loop has seen in shrunk time, in the engines' time.
func scaled(outcomes []outcome, speed float64) {
	by := func(d *time.Duration) { *d = time.Duration(float64(*d) * speed) }
	for i := range outcomes {
		o := &outcomes[i]
		by(&o.at)
		by(&o.sent)
		by(&o.ended)
		for j := range o.chunks {
			by(&o.chunks[j])
		}
	}
}
