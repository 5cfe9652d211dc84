package refengine

// item is one sequence's share of a step: the tokens at positions [first, first+len(states)).
type item struct {
	table  []int32  // block of each BlockTokens positions
	first  int      // position of states[0]
	stored bool     // the K and V of these positions are in memory already: only the query runs
	states []hidden // one per token, updated layer by layer
}

// rank computes the share of one tensor-parallel rank of one stage. Its goroutine (run) is the only user of its memory.
type rank struct {
	model *Model
	cache *cache
	jobs  chan job

	partial [][]hidden // [item][token]: the sum of this rank's heads
	query   []uint64
	words   [planes][]uint64
	sums    [planes][]uint64
}

// job is one layer of a step. done is called when the rank's partial sums are in place.
type job struct {
	layer int
	items []item
	done  func()
}

func newRank(m *Model, c *cache) *rank {
	r := &rank{model: m, cache: c, jobs: make(chan job)}
	d := m.shape.HeadDim
	r.query = make([]uint64, d)
	for p := range planes {
		r.words[p] = make([]uint64, d)
		r.sums[p] = make([]uint64, d)
	}
	return r
}

// run serves jobs until the channel is closed.
func (r *rank) run() {
	for j := range r.jobs {
		r.compute(j.layer, j.items)
		j.done()
	}
}

// compute fills partial for one layer.
func (r *rank) compute(layer int, items []item) {
	for len(r.partial) < len(items) {
		r.partial = append(r.partial, nil)
	}
	for i := range items {
		it := &items[i]
		if cap(r.partial[i]) < len(it.states) {
			r.partial[i] = make([]hidden, len(it.states))
		}
		r.partial[i] = r.partial[i][:len(it.states)]
		clear(r.partial[i])
		for h := range r.cache.heads.count {
			r.head(layer, r.cache.heads.first+h, it, r.partial[i])
		}
	}
	r.cache.memory.settle()
}

// head runs one head of one item: what memory holds before the first token is summed once, then each token stores
// its K and V, adds them to the sums and asks its query.
func (r *rank) head(layer, head int, it *item, out []hidden) {
	m := r.model
	before := it.first
	if it.stored {
		before++ // one token, whose own K and V are there too
	}
	var keys [planes][]uint64
	for p := range planes {
		keys[p] = m.keys(layer, p, head)
		clear(r.sums[p])
		r.cache.sum(r.sums[p], layer, p, head, it.table, before, keys[p])
	}
	for i := range it.states {
		t := it.first + i
		if !it.stored {
			block, place := it.table[t/r.cache.tokens], t%r.cache.tokens
			step := uint64(t) * positionStep
			for p := range planes {
				m.projectTo(r.words[p], layer, p, head, &it.states[i])
				r.cache.put(layer, block, p, head, place, r.words[p])
				for w, x := range r.words[p] {
					r.sums[p][w] += scramble(x + keys[p][w] + step)
				}
			}
		}
		m.projectTo(r.query, layer, projectionQ, head, &it.states[i])
		m.attend(&out[i], layer, head, r.query, r.sums[planeK], r.sums[planeV])
	}
}
