package agent

import (
	"errors"
	"fmt"
	"time"

	"pdrouter/metadata"
)

// simDirectory is the store that engines publish their records in. It may answer late, with what was, or not at all,
// and a failover loses what was written last.
type simDirectory struct {
	newest map[string]*simRun // by engine
	lost   map[string]bool    // the last generation's records were lost; published again after a while
}

var errSimDirectory = errors.New("simulated: the directory does not answer")

func (d *simDirectory) publish(s *sim, r *simRun) {
	if d.newest == nil {
		d.newest, d.lost = map[string]*simRun{}, map[string]bool{}
	}
	if len(r.engine.runs) == 1 {
		d.newest[r.engine.name] = r
		return
	}
	s.after(s.some(50*time.Millisecond), func() {
		if old := d.newest[r.engine.name]; old == nil || old.inc.Generation <= r.inc.Generation {
			d.newest[r.engine.name] = r
			d.lost[r.engine.name] = false
		}
	})
}

func (d *simDirectory) failover(s *sim) {
	for _, e := range s.engines {
		e := e
		d.lost[e.name] = true
		s.after(s.extent(faultFailover, 4*time.Second), func() { d.lost[e.name] = false })
	}
}

// view is the generation that a reader sees.
func (d *simDirectory) view(s *sim, e *simEngine) *simRun {
	r := d.newest[e.name]
	if r == nil || len(e.runs) < 2 || r.inc.Generation < 2 {
		if d.lost[e.name] {
			return nil
		}
		return r
	}
	if d.lost[e.name] || s.strike(faultStale) {
		return e.runs[r.inc.Generation-2]
	}
	return r
}

// ask is a node's look-up.
func (n *simNode) ask(inc metadata.Incarnation, then func([]metadata.Record, error)) {
	s := n.s
	d := s.some(2 * time.Millisecond)
	troubled := s.strike(faultSlowLookup)
	if troubled {
		d = s.extent(faultSlowLookup, s.times.Lookup)
	}
	s.mix('l', uint64(n.record.Process.PID), inc.Generation)
	var answer func() ([]metadata.Record, error)
	if s.strike(faultLookup) {
		answer = func() ([]metadata.Record, error) { return nil, errSimDirectory }
	} else {
		var engine *simEngine
		for _, e := range s.engines {
			if e.name == inc.Engine {
				engine = e
			}
		}
		answer = func() ([]metadata.Record, error) {
			if engine == nil {
				return nil, fmt.Errorf("no engine %s", inc.Engine)
			}
			r := s.directory.view(s, engine)
			switch {
			case r == nil || r.inc.Generation < inc.Generation:
				return nil, fmt.Errorf("%s is not published", inc.ID())
			case r.inc.Generation > inc.Generation:
				return nil, fmt.Errorf("%s: %w", inc.ID(), ErrSuperseded)
			}
			return r.records, nil
		}
	}
	s.after(d, func() {
		records, err := answer()
		if err != nil || troubled {
			n.troubled = s.now
		}
		n.post(func() {
			switch {
			case errors.Is(err, ErrSuperseded):
				n.told(inc.Engine, inc.Generation+1)
			case err == nil:
				n.told(inc.Engine, inc.Generation)
			}
			then(records, err)
		})
	})
}
