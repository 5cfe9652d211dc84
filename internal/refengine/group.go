package refengine

import (
	"errors"
	"sync"
)

// group is the ranks of one engine. One goroutine may call it at a time.
type group struct {
	model *Model
	ranks []*rank
	wg    sync.WaitGroup // the ranks' goroutines
}

// newGroup allocates the memory of every rank and starts their goroutines.
func newGroup(m *Model, c Config) (*group, error) {
	g := &group{model: m}
	for r := range c.TP {
		k, err := newCache(c, r, headsOf(c.Shape.Heads, r, c.TP))
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
		rk := newRank(m, k)
		g.ranks = append(g.ranks, rk)
		g.wg.Go(rk.run)
	}
	return g, nil
}

// forward runs a step: every layer on every rank, with the ranks' sums added between layers. The states of the items
// are those after the last layer when it returns.
func (g *group) forward(items []item) {
	var layer sync.WaitGroup
	for l := range g.model.shape.Layers {
		layer.Add(len(g.ranks))
		for _, r := range g.ranks {
			r.jobs <- job{layer: l, items: items, done: layer.Done}
		}
		layer.Wait()
		for i := range items {
			for t := range items[i].states {
				h := g.reduce(i, t)
				items[i].states[t] = g.model.next(l, &items[i].states[t], &h)
			}
		}
	}
}

// sync waits until every rank's memory holds all that was stored in it, for readers beside the engine, and shows to the
// engine what others have stored. An error says that memory failed, now or earlier: its contents are of no use.
func (g *group) sync() error {
	var errs []error
	for _, r := range g.ranks {
		errs = append(errs, r.cache.memory.sync())
	}
	return errors.Join(errs...)
}

// reduce adds the ranks' partial sums for one token. Ranks that keep the same head must agree: the first one's sum
// counts, and what another one differs by is added, so that damage in any rank's memory reaches the answer.
func (g *group) reduce(item, token int) hidden {
	var sum hidden
	first := 0
	for r := range g.ranks {
		p := &g.ranks[r].partial[item][token]
		if r > 0 && g.ranks[r].cache.heads != g.ranks[r-1].cache.heads {
			first = r
		}
		if r == first {
			for i := range sum {
				sum[i] += p[i]
			}
			continue
		}
		base := &g.ranks[first].partial[item][token]
		for i := range sum {
			sum[i] += (p[i] - base[i]) * uint64(2*(r-first)+1)
		}
	}
	return sum
}

// close ends the ranks' goroutines and frees their memory.
func (g *group) close() error {
	for _, r := range g.ranks {
		close(r.jobs)
	}
	g.wg.Wait()
	var errs []error
	for _, r := range g.ranks {
		errs = append(errs, r.cache.memory.close())
	}
	g.ranks = nil
	return errors.Join(errs...)
}
