package refengine

import (
	"errors"
	"fmt"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// Plane says how an engine hands KV to others and takes it from them. Without a Transport it does neither.
type Plane struct {
	Transport    func(rank int) (kvplane.Transport, error) // makes the transport of one rank's agent
	Directory    kvplane.Directory                         // finds the peers that legs name
	Times        kvplane.Times
	Events       *kvplane.Events // may be nil
	SerialStarts bool            // as in kvplane.Config
	HTTP         string          // base URL of the engine's OpenAI routes, for its records
	Control      string          // base URL of its control routes, for its records
	// AwaitEnrolment refuses all legs until Engine.Enrol was called, with keys or with none.
	AwaitEnrolment bool
}

// plane is the agents of one engine, one per rank.
type plane struct {
	agents []*kvplane.Agent
	ranks  []metadata.Rank
}

// openPlane starts the agents. report is called on their goroutines.
func openPlane(c Config, g *group, self metadata.Incarnation, report func(kvplane.Report)) (*plane, error) {
	p := &plane{}
	for i, r := range g.ranks {
		t, err := c.Plane.Transport(i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("refengine: transport of rank %d: %w", i, err), p.close())
		}
		rank := metadata.Rank{TP: i}
		a, err := kvplane.Open(kvplane.Config{
			Self: metadata.Record{
				Version: metadata.RecordVersion, Incarnation: self, Role: c.Role,
				Rank: rank, Size: metadata.Rank{DP: 1, PP: 1, TP: c.TP},
				Connector: "kvplane", Compatibility: c.Shape.Compatibility(),
				HTTP: c.Plane.HTTP, Control: c.Plane.Control, EngineID: self.ID(), Layout: r.cache.layout(c.Shape.Heads),
			},
			Memory: []kvplane.Memory{r.cache.memory.where()}, Transport: t, Directory: c.Plane.Directory,
			Report: report, Events: c.Plane.Events, Times: c.Plane.Times, SerialStarts: c.Plane.SerialStarts,
			Log: c.Log.With("rank", rank.String()),
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("refengine: agent of rank %d: %w", i, err), p.close())
		}
		p.agents, p.ranks = append(p.agents, a), append(p.ranks, rank)
	}
	return p, nil
}

// Records returns the complete record of every rank, for publishing.
func (e *Engine) Records() []metadata.Record {
	var out []metadata.Record
	if e.plane != nil {
		for _, a := range e.plane.agents {
			out = append(out, a.Record())
		}
	}
	return out
}

// Agents returns what each rank's agent holds and has seen.
func (e *Engine) Agents() []kvplane.Status {
	var out []kvplane.Status
	if e.plane != nil {
		for _, a := range e.plane.agents {
			out = append(out, a.Status())
		}
	}
	return out
}

func (p *plane) abandon(id kvplane.TransferID, why string) {
	for _, a := range p.agents {
		a.Abandon(id, why)
	}
}

func (p *plane) close() error {
	var errs []error
	for _, a := range p.agents {
		errs = append(errs, a.Close())
	}
	p.agents = nil
	return errors.Join(errs...)
}
