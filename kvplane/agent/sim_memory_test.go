package agent

import (
	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// simMemory is one rank's memory. Each byte of KV stands for one head of one token of one plane of one layer and holds
// a tag that says whose it is; addresses come from the formula of docs/kvplane.md and not from the plan.
type simMemory struct {
	run    *simRun
	base   uint64
	tags   []uint64
	block  []int32 // of which logical block a byte is, as an index into the pool; -1: padding
	layout metadata.Layout
	first  int // the first head here
	heads  int
}

// simTag is what prefill leaves behind for one element.
func simTag(attempt, layer, plane, head, token int) uint64 {
	return uint64(attempt)<<40 | uint64(layer)<<32 | uint64(plane)<<28 | uint64(head)<<20 | uint64(token)
}

func simTagAttempt(tag uint64) int { return int(tag >> 40) }

func newSimMemory(run *simRun, rank metadata.Rank, base uint64) *simMemory {
	h, model := &run.engine.shape, &run.s.model
	layout, n := h.layout(model, rank.PP, base)
	m := &simMemory{run: run, base: base, tags: make([]uint64, n), block: make([]int32, n), layout: layout, heads: max(1, model.heads/h.tp)}
	m.first = rank.TP * model.heads / h.tp
	for i := range m.block {
		m.block[i] = -1
	}
	for g := range model.groupCount() {
		for id := range h.blocks {
			list := kvplane.BlockList{Blocks: []int32{int32(id)}}
			m.each(g, list, 0, h.logical, func(at int, _ uint64) { m.block[at] = int32(g*h.blocks + id) })
		}
	}
	return m
}

// holds says whether a layer is in a group.
func (m *simModel) holds(g, layer int) bool { return len(m.groups) == 0 || layer%2 == g }

// each visits the bytes of tokens [from, to) of a group's list, with the tag of attempt 0.
func (m *simMemory) each(g int, l kvplane.BlockList, from, to int, visit func(at int, tag uint64)) {
	h, model := &m.run.engine.shape, &m.run.s.model
	plane, last := 0, -1
	for i := range m.layout.Regions {
		r := &m.layout.Regions[i]
		if r.Layer != last {
			plane, last = 0, r.Layer
		} else {
			plane += r.Planes
		}
		if !model.holds(g, r.Layer) {
			continue
		}
		for t := from; t < to; t++ {
			j := (t - l.First/h.logical*h.logical) / h.logical
			o := t % h.logical
			id := uint64(int(l.Blocks[j])*h.rho + o/h.kernel)
			at := r.Base - m.base + id*r.BlockStride + uint64(o%h.kernel)*r.TokenStride
			for k := range r.Planes {
				for x := range m.heads {
					visit(int(at+uint64(k)*r.PlaneStride+uint64(x)*r.HeadStride), simTag(0, r.Layer, plane+k, m.first+x, t))
				}
			}
		}
	}
}

// simPool is one engine's blocks, the same on all its ranks: who owns each.
type simPool struct {
	owner []int // by group · blocks + id: the number of the attempt, 0 for nobody
	free  [][]int32
}

func newSimPool(groups, blocks int) *simPool {
	p := &simPool{owner: make([]int, groups*blocks), free: make([][]int32, groups)}
	for g := range p.free {
		for id := blocks - 1; id >= 0; id-- {
			p.free[g] = append(p.free[g], int32(id))
		}
	}
	return p
}

// take reserves blocks; the last freed come first, so that what lands late is seen. nil if there are too few.
func (p *simPool) take(attempt, blocks int, wanted []int, at []int) []kvplane.BlockList {
	for g, n := range wanted {
		if len(p.free[g]) < n {
			return nil
		}
	}
	out := make([]kvplane.BlockList, len(wanted))
	for g, n := range wanted {
		out[g].First = at[g]
		for range n {
			last := len(p.free[g]) - 1
			id := p.free[g][last]
			p.free[g] = p.free[g][:last]
			p.owner[g*blocks+int(id)] = attempt
			out[g].Blocks = append(out[g].Blocks, id)
		}
	}
	return out
}

func (p *simPool) give(blocks int, lists []kvplane.BlockList) {
	for g := range lists {
		for i := len(lists[g].Blocks) - 1; i >= 0; i-- {
			id := lists[g].Blocks[i]
			p.owner[g*blocks+int(id)] = 0
			p.free[g] = append(p.free[g], id)
		}
	}
}
