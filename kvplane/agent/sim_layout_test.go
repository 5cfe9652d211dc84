package agent

import (
	"slices"

	"pdrouter/metadata"
)

// simModel is what every engine of a world must agree on.
type simModel struct {
	heads      int
	replicated bool
	layers     int
	groups     []metadata.Group
	order      metadata.Order
	planes     int // of one region
	regions    int // of one layer
	kernel     int // the smallest kernel block
}

// simShape is how one engine cuts the model.
type simShape struct {
	tp, pp  int
	stages  [][]int // layers of each stage
	kernel  int     // b
	logical int     // L
	rho     int
	blocks  int // logical blocks of each group
	pad     int
	outside bool // heads outside of the block stride
	odd     bool // the layout fits no other one
}

func (s *sim) drawModel() simModel {
	m := simModel{heads: 1 << s.rng.IntN(4), layers: 1 + s.rng.IntN(4), order: metadata.HeadsFirst, planes: 1, regions: 1, kernel: 1 << s.rng.IntN(3)}
	m.replicated = s.rng.IntN(4) == 0
	if m.replicated {
		m.heads = 1
	} else {
		switch s.rng.IntN(3) {
		case 0:
			m.planes = 2
		case 1:
			m.regions = 2
		}
	}
	if s.rng.IntN(3) == 0 {
		m.order = metadata.TokensFirst
	}
	if s.rng.IntN(2) == 0 || m.layers == 1 {
		return m
	}
	m.groups = []metadata.Group{{}, {Window: m.kernel * (1 + s.rng.IntN(4))}}
	for l := range m.layers {
		g := &m.groups[l%2]
		g.Layers = append(g.Layers, l)
	}
	return m
}

func (m *simModel) window(g int) int {
	if len(m.groups) == 0 {
		return 0
	}
	return m.groups[g].Window
}

func (m *simModel) groupCount() int { return max(1, len(m.groups)) }

func (s *sim) drawShape() simShape {
	m := &s.model
	h := simShape{tp: 1 << s.rng.IntN(3), pp: 1, rho: 1 << s.rng.IntN(2), kernel: m.kernel << s.rng.IntN(2)}
	if s.rng.IntN(12) == 0 {
		h.tp = 8
	}
	if m.layers > 1 && h.tp < 8 && s.rng.IntN(3) == 0 {
		h.pp = 2
	}
	cut := m.layers
	if h.pp == 2 {
		cut = 1 + s.rng.IntN(m.layers-1)
	}
	h.stages = make([][]int, h.pp)
	for l := range m.layers {
		stage := 0
		if l >= cut {
			stage = 1
		}
		h.stages[stage] = append(h.stages[stage], l)
	}
	h.logical = h.kernel * h.rho
	h.blocks = 14 + 32/h.logical*2
	if s.rng.IntN(3) == 0 {
		h.pad = 1 + s.rng.IntN(3)
	}
	h.outside = m.order == metadata.HeadsFirst && m.planes == 1 && s.rng.IntN(4) == 0
	return h
}

// layout lays one rank's regions out from base on and returns how many bytes they take.
func (h *simShape) layout(m *simModel, pp int, base uint64) (metadata.Layout, uint64) {
	heads := max(1, m.heads/h.tp)
	l := metadata.Layout{
		BlockTokens: h.logical, Physical: h.rho, Heads: m.heads, HeadBytes: 1, Order: m.order, DType: "tag",
		Replicated: m.replicated, Groups: m.groups,
	}
	at := base
	kernels := h.blocks * h.rho
	for _, layer := range h.stages[pp] {
		for range m.regions {
			r := metadata.Region{Layer: layer, Planes: m.planes, Base: at, Blocks: kernels}
			b := uint64(h.kernel)
			r.PlaneStride = uint64(heads) * b
			r.BlockStride = uint64(m.planes)*r.PlaneStride + uint64(h.pad)
			switch {
			case h.outside:
				r.BlockStride, r.TokenStride = b, 1
				r.HeadStride = b*uint64(kernels) + uint64(h.pad)
				r.PlaneStride = r.HeadStride * uint64(heads)
			case m.order == metadata.HeadsFirst:
				r.HeadStride, r.TokenStride = b, 1
			default:
				r.HeadStride, r.TokenStride = 1, uint64(heads)
			}
			r.Length = uint64(kernels-1)*r.BlockStride + uint64(m.planes-1)*r.PlaneStride + uint64(heads-1)*r.HeadStride + (b-1)*r.TokenStride + 1
			l.Regions = append(l.Regions, r)
			at += r.Length + uint64(h.pad)
		}
	}
	if h.odd {
		l.DType = "other"
		if len(l.Groups) > 0 && h.rho == 1 {
			l.DType, l.Groups = "tag", slices.Clone(l.Groups)
			l.Groups[1].Window++
		}
	}
	return l, at - base
}
