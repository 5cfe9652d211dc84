package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdrouter/metadata"
)

var errNoRecords = errors.New("no records")

// incarnations names the runs of two engines that publish records.
func (r *Router) incarnations(p, d *engine) (prefill, decode metadata.Incarnation, ok bool) {
	pr, dr := r.records(p), r.records(d)
	if len(pr) == 0 || len(dr) == 0 {
		return prefill, decode, false
	}
	return pr[0].Incarnation, dr[0].Incarnation, true
}

func (r *Router) records(e *engine) []metadata.Record {
	if r.parts.Records == nil {
		return nil
	}
	records, ok := r.parts.Records.Engine(e.name)
	if !ok {
		return nil
	}
	return records
}

// agree says why two engines that publish records cannot be paired, nil if they can. The verdict is kept as long
// as neither engine publishes anew.
func (r *Router) agree(p, d *engine) error {
	pr, dr := r.records(p), r.records(d)
	if len(pr) == 0 || len(dr) == 0 {
		return errNoRecords
	}
	key := agreement{prefill: p, decode: d}
	seen := edition{pr[0].Generation, dr[0].Generation, len(pr), len(dr)}
	if v, ok := r.agreed.Load(key); ok {
		if v := v.(verdictOf); v.edition == seen {
			return v.err
		}
	}
	err := metadata.Pairable(pr, dr)
	r.agreed.Store(key, verdictOf{edition: seen, err: err})
	if err != nil {
		r.log.Warn("engines cannot be paired", "prefill", p.name, "decode", d.name, "err", err)
	}
	return err
}

type agreement struct{ prefill, decode *engine }

// edition is what a verdict on two engines was made from: their generations and how many ranks had published.
type edition struct {
	prefill, decode           uint64
	prefillRanks, decodeRanks int
}

type verdictOf struct {
	edition edition
	err     error
}

// moved notes that a stock prefill engine was started anew: all its pairs are void.
func (r *Router) moved(e *engine, c *coordinates) {
	if old := e.coord.Load(); old != nil && old.EngineID == c.EngineID {
		return
	}
	e.generation.Add(1)
	e.coord.Store(c)
	r.pairs.Forget(e.name)
	r.log.Info("engine restarted", "engine", e.name)
}

// changed notes that an engine went down or came back. One that was down may have been started anew.
func (r *Router) changed(e *engine, up bool) {
	if !up {
		return
	}
	e.generation.Add(1)
	e.coord.Store(nil)
	r.pairs.Forget(e.name)
	r.warm()
}

// keepWarm has pairs whose handshake failed try again, until ctx ends.
func (r *Router) keepWarm(ctx context.Context) {
	tick := time.NewTicker(5 * r.cfg.Timeouts.Health)
	defer tick.Stop()
	for {
		r.warm()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// warm begins the handshakes of all pairs of stock engines that push and are up.
func (r *Router) warm() {
	for _, m := range r.fleet.models {
		if _, ok := m.conn.(push); !ok {
			continue
		}
		for _, p := range m.prefill {
			for _, d := range m.decode {
				if p.down.Load() || d.down.Load() {
					continue
				}
				_ = r.pairs.Start(metadata.Pair{Prefill: p.incarnation(), Decode: d.incarnation()})
			}
		}
	}
}

// probe is the handshake of a pair of stock engines: a whole two-leg request of two tokens, first prefill, whose
// answer has its coordinates, then decode under the same ids. It strands no block and warms the pair.
func (r *Router) probe(ctx context.Context, pair metadata.Pair) error {
	m, p, d := r.fleet.find(pair)
	if m == nil {
		return fmt.Errorf("router: probe: %s and %s are no pair of one model", pair.Prefill.Engine, pair.Decode.Engine)
	}
	if p.incarnation() != pair.Prefill || d.incarnation() != pair.Decode {
		return fmt.Errorf("router: probe: %w", metadata.ErrForgotten)
	}
	b, herr := parseBody(shapeCompletions, appendProbe(nil, m.name), r.limits)
	if herr != nil {
		return fmt.Errorf("router: probe: %w", herr)
	}
	a := &attempt{}
	a.h.shape = shapeCompletions
	a.h.draw()
	limit := r.cfg.Limits.Answer
	ask := func(l *call, e *engine, body []byte) error {
		l.open(ctx, e)
		defer l.end()
		v := l.send(&upstreamRequest{Path: pathCompletions, Header: l.header(nil, a.h.request, "", false), Body: body}, limit)
		if v == vUsable {
			v = l.whole(limit)
		}
		r.noteHealth(l, v)
		if v != vUsable {
			return fmt.Errorf("router: probe: engine %s: status %d: %s", e.name, l.status, l.cause())
		}
		return nil
	}
	if err := ask(&a.prefill, p, b.prefill(nil, m.conn.prefillParams(nil, &a.h))); err != nil {
		return err
	}
	c, ok := parseCoordinates(a.prefill.ans.kv)
	if !ok {
		return fmt.Errorf("router: probe: engine %s: answer without coordinates", p.name)
	}
	a.h.coord = c
	if err := ask(&a.decode, d, b.prefill(nil, m.conn.decodeParams(nil, &a.h))); err != nil {
		return err
	}
	if old := p.coord.Load(); old != nil && old.EngineID != c.EngineID {
		r.moved(p, c) // the pair is of a run that is over: whoever waits is told
		return fmt.Errorf("router: probe: %w", metadata.ErrForgotten)
	}
	p.coord.Store(c)
	return nil
}

// find returns the engines of a pair and their model, nil if there is none.
func (f *fleet) find(pair metadata.Pair) (*model, *engine, *engine) {
	for _, m := range f.models {
		for _, p := range m.prefill {
			if p.name != pair.Prefill.Engine {
				continue
			}
			for _, d := range m.decode {
				if d.name == pair.Decode.Engine {
					return m, p, d
				}
			}
		}
	}
	return nil, nil, nil
}
