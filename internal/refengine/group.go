package refengine

import (
	"errors"
	"sync"
)

// group is the ranks of one engine, stage by stage. One goroutine may call it at a time.
type group struct {
	model *Model
	ranks []*rank
	tp    int            // ranks of a stage
	wg    sync.WaitGroup // the ranks' goroutines
}

// newGroup allocates the memory of every rank and starts their goroutines.
func newGroup(m *Model, c Config) (*group, error) {
	g := &group{model: m, tp: c.TP}
	stages := max(c.PP, 1)
	for i := range stages * c.TP {
		k, err := newCache(c, i, headsOf(c.Shape.Heads, i%c.TP, c.TP), layersOf(c.Shape.Layers, i/c.TP, stages))
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
		rk := newRank(m, k)
		g.ranks = append(g.ranks, rk)
		g.wg.Go(rk.run)
	}
	return g, nil
}

// forward runs a step stage by stage: every layer on every rank of its stage, with these ranks' sums added between
// layers. The states of the items are those after the last layer when it returns.
func (g *group) forward(items []item) {
	stage := g.ranks
	var layer sync.WaitGroup
	for l := range g.model.shape.Layers {
		for !stage[0].cache.layers.has(l) {
			stage = stage[g.tp:]
		}
		ranks := stage[:g.tp]
		layer.Add(len(ranks))
		for _, r := range ranks {
			r.jobs <- job{layer: l, items: items, done: layer.Done}
		}
		layer.Wait()
		for i := range items {
			for t := range items[i].states {
				h := reduce(ranks, i, t)
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

// reduce adds the partial sums of a stage's ranks for one token. Ranks that keep the same head must agree: the first one's sum
// counts, and what another one differs by is added, so that damage in any rank's memory reaches the answer.
func reduce(ranks []*rank, item, token int) hidden {
	var sum hidden
	first := 0
	for r := range ranks {
		p := &ranks[r].partial[item][token]
		if r > 0 && ranks[r].cache.heads != ranks[r-1].cache.heads {
			first = r
		}
		if r == first {
			for i := range sum {
				sum[i] += p[i]
			}
			continue
		}
		base := &ranks[first].partial[item][token]
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
