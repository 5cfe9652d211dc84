package plan

import (
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/kvplane/transfer"
	"pdrouter/metadata"
)

// FuzzShape plans between two records that anybody may have written: whatever they say, no address outside of the
// regions that they name comes out, and no block list brings one about.
func FuzzShape(f *testing.F) {
	add := func(p, d metadata.Record, n int) {
		pb, err := msgpack.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		db, err := msgpack.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(pb, db, n, 0, int32(1))
	}
	for _, v := range vectors {
		p, d := v.p.WithDefaults(), v.d.WithDefaults()
		add(p.Records("p")[0], d.Records("d")[0], v.n)
	}
	for seed := range uint64(20) {
		w := drawWorld(seed)
		p, _ := w.records(&w.p)
		d, _ := w.records(&w.d)
		add(p[0], d[0], w.n)
	}
	f.Fuzz(func(t *testing.T, pb, db []byte, n, first int, id int32) {
		var p, d metadata.Record
		if msgpack.Unmarshal(pb, &p) != nil || msgpack.Unmarshal(db, &d) != nil {
			return
		}
		for _, r := range []metadata.Record{p, d} {
			if s, err := newRankLayout(r); err == nil && max(s.kernel, len(s.regions)) > 1<<10 {
				return // sound, and slow
			}
		}
		q, err := New(p, d, Allow{TokensFirstSplit: true})
		if err != nil {
			return
		}
		n %= 1 << 12
		var lists []transfer.BlockList
		for range q.groups {
			lists = append(lists, transfer.BlockList{First: first, Blocks: []int32{id, 0, id / 2, 1}})
		}
		need := [2]int{first, n}
		ranges, err := q.Plan(nil, n, need, lists, lists)
		if err != nil && len(ranges) > 0 {
			t.Fatalf("%v, and %d ranges", err, len(ranges))
		}
		inside := func(regions []metadata.Region, at, length uint64) {
			for _, r := range regions {
				if at >= r.Base && at-r.Base <= r.Length && length <= r.Length-(at-r.Base) {
					return
				}
			}
			t.Fatalf("%d bytes at %#x lie in none of %+v", length, at, regions)
		}
		for _, r := range ranges {
			inside(p.Layout.Regions, r.Local, r.Length)
			inside(d.Layout.Regions, r.Remote, r.Length)
		}
		local, remote, err := q.PlanDescriptors(nil, nil, n, need, lists, lists)
		if err != nil {
			return
		}
		here, there := q.Descriptors()
		ends := [2]int{}
		for i := range here {
			for side, g := range [2]transfer.StridedRegion{here[i], there[i]} {
				reach, ok := g.Extent()
				if !ok {
					t.Fatalf("grid %+v", g)
				}
				inside([2][]metadata.Region{p.Layout.Regions, d.Layout.Regions}[side], g.Base, reach)
				ends[side] += g.Places()
			}
		}
		for i := range local {
			if local[i] < 0 || int(local[i]) >= ends[0] || remote[i] < 0 || int(remote[i]) >= ends[1] {
				t.Fatalf("places %d and %d of %v", local[i], remote[i], ends)
			}
		}
		q.Rest(nil, n, lists)
	})
}
