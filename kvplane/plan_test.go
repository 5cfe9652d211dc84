package kvplane

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/metadata"
)

// spec describes one side of a test in the words of docs/kvplane.md; zero values are the usual ones.
type spec struct {
	tp, pp  int
	heads   int
	logical int
	rho     int
	order   metadata.Order
	planes  int
	c       int
	outside bool   // heads outside of the block stride
	stride  uint64 // S, if more than the least
	blocks  int    // kernel blocks of a region
	stages  [][]int
	groups  []metadata.Group
	lists   []BlockList
	base    uint64
}

func (s spec) withDefaults() spec {
	s.tp, s.pp, s.rho, s.planes, s.c = max(s.tp, 1), max(s.pp, 1), max(s.rho, 1), max(s.planes, 1), max(s.c, 1)
	if s.order == "" {
		s.order = metadata.HeadsFirst
	}
	if s.blocks == 0 {
		s.blocks = 64
	}
	if s.stages == nil {
		s.stages = make([][]int, s.pp)
		s.stages[0] = []int{0}
	}
	return s
}

func (s spec) local() int { return max(1, s.heads/s.tp) }

// records returns one record per rank. Regions of one rank lie behind each other from base on.
func (s spec) records(engine string) []metadata.Record {
	var out []metadata.Record
	h, b, c := uint64(s.local()), uint64(s.logical/s.rho), uint64(s.c)
	for pp := range s.pp {
		for tp := range s.tp {
			r := metadata.Record{
				Version: 1, Incarnation: metadata.Incarnation{Engine: engine, Generation: 1},
				Rank: metadata.Rank{PP: pp, TP: tp}, Size: metadata.Rank{DP: 1, PP: s.pp, TP: s.tp},
				Connector: "kvplane", Transport: "test", Agent: fmt.Sprintf("%s@1/0/%d/%d", engine, pp, tp),
				Layout: metadata.Layout{
					BlockTokens: s.logical, Physical: s.rho, Heads: s.heads, HeadBytes: s.c, Order: s.order,
					DType: "u8", Groups: s.groups,
				},
			}
			base := s.base
			for _, layer := range s.stages[pp] {
				region := metadata.Region{Layer: layer, Planes: s.planes, Base: base, Blocks: s.blocks}
				if s.order == metadata.TokensFirst {
					region.TokenStride, region.HeadStride = h*c, c
				} else {
					region.TokenStride, region.HeadStride = c, b*c
				}
				region.PlaneStride = h * b * c
				region.BlockStride = max(s.stride, uint64(s.planes)*h*b*c)
				region.Length = uint64(s.blocks) * region.BlockStride
				if s.outside {
					region.BlockStride = b * c
					region.HeadStride = uint64(s.blocks) * region.BlockStride
					region.PlaneStride = h * region.HeadStride
					region.Length = uint64(s.planes) * region.PlaneStride
				}
				base += region.Length
				r.Layout.Regions = append(r.Layout.Regions, region)
			}
			out = append(out, r)
		}
	}
	return out
}

func list(first int, ids ...int32) []BlockList { return []BlockList{{First: first, Blocks: ids}} }

func rangesText(rs []Range) string {
	slices.SortFunc(rs, func(a, b Range) int { return int(a.Remote) - int(b.Remote) })
	var out []string
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%d>%d:%d", r.Local, r.Remote, r.Length))
	}
	return strings.Join(out, " ")
}

func bytesText(rs []Range) string {
	var at []uint64
	for _, r := range rs {
		for i := range r.Length {
			at = append(at, r.Remote+i)
		}
	}
	slices.Sort(at)
	var out []string
	for i := 0; i < len(at); {
		j := i
		for j+1 < len(at) && at[j+1] == at[j]+1 {
			j++
		}
		out = append(out, fmt.Sprintf("%d..%d", at[i], at[j]))
		i = j + 1
	}
	return strings.Join(out, " ")
}

func TestPlanVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			p, d := v.p.withDefaults(), v.d.withDefaults()
			got, only := map[string]string{}, []string{}
			for _, pr := range p.records("p") {
				for _, dr := range d.records("d") {
					name := fmt.Sprintf("P%d→D%d", pr.Rank.TP, dr.Rank.TP)
					if p.pp > 1 {
						name = fmt.Sprintf("P%d/%d→D%d", pr.Rank.PP, pr.Rank.TP, dr.Rank.TP)
					}
					q, err := NewPair(pr, dr, v.allow)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if !q.related() {
						continue
					}
					rs, err := q.Plan(nil, v.n, v.need, p.lists, d.lists)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if len(rs) > 0 {
						got[name] = rangesText(rs)
					}
					if !q.writes() {
						only = append(only, name)
					}
					if v.rest != "" {
						if rest := bytesText(q.Rest(nil, v.n, d.lists)); rest != v.rest {
							t.Errorf("rest of %s is %q; want %q", name, rest, v.rest)
						}
					}
				}
			}
			if diff := cmp.Diff(got, v.want); diff != "" {
				t.Errorf("ranges differ (-got +want):\n%s", diff)
			}
			if diff := cmp.Diff(strings.Join(only, " "), v.only); diff != "" {
				t.Errorf("notify-only pairs differ (-got +want):\n%s", diff)
			}
		})
	}
}

// address is the formula of docs/kvplane.md, written a second time for naive models.
func address(s spec, r metadata.Record, region metadata.Region, l BlockList, plane, head, token int) uint64 {
	b := s.logical / s.rho
	id := int(l.Blocks[(token-l.First)/s.logical])*s.rho + token%s.logical/b
	f := r.Rank.TP * s.heads / s.tp
	return region.Base + uint64(id)*region.BlockStride + uint64(plane)*region.PlaneStride +
		uint64(head-f)*region.HeadStride + uint64(token%b)*region.TokenStride
}

// each calls do for every byte address of a rank's tokens [from, to), with the content that belongs there.
func each(s spec, r metadata.Record, l BlockList, from, to int, do func(at uint64, content string)) {
	f := r.Rank.TP * s.heads / s.tp
	for _, region := range r.Layout.Regions {
		for plane := range region.Planes {
			for head := f; head < f+s.local(); head++ {
				for token := from; token < to; token++ {
					at := address(s, r, region, l, plane, head, token)
					for c := range uint64(s.c) {
						do(at+c, fmt.Sprintf("layer %d plane %d head %d token %d byte %d", region.Layer, plane, head, token, c))
					}
				}
			}
		}
	}
}
