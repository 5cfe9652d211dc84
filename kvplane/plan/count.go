package plan

import (
	"errors"
	"fmt"

	"pdrouter/metadata"
)

// Producer is one rank that a consumer waits for before a transfer is settled.
type Producer struct {
	Record metadata.Record
	Writes bool // else it only notifies
}

// Producers returns the ranks of P that consumer d expects, in the order of stage and tensor-parallel rank. They come
// from the records of all ranks of P, never from a number in a message.
func Producers(p []metadata.Record, d metadata.Record, allow Allow) ([]Producer, error) {
	grid, err := Ranks(p)
	if err != nil {
		return nil, err
	}
	var out []Producer
	var q *Pair
	have := map[written]bool{}
	for _, r := range grid {
		if q, err = New(r, d, allow); err != nil {
			return nil, err
		}
		for _, g := range q.groups {
			for _, l := range g {
				if len(l.segments) > 0 {
					have[written{l.d.Layer, r.Rank.TP}] = true
				}
			}
		}
		if q.related() {
			out = append(out, Producer{Record: r, Writes: q.writes()})
		}
	}
	writers := make([][]int, len(q.d.groups))
	for _, r := range d.Layout.Regions {
		g := q.d.groupOf[r.Layer]
		if writers[g] == nil {
			writers[g] = q.writers(g)
		}
		for _, tp := range writers[g] {
			if !have[written{r.Layer, tp}] {
				return nil, unplannable(fmt.Sprintf("tensor-parallel rank %d, layer %d", tp, r.Layer), "missing", "present")
			}
		}
	}
	return out, nil
}

// written is a layer that the ranks of P with this tensor-parallel number write.
type written struct{ layer, tp int }

// writers returns the tensor-parallel ranks of P that together write all heads of a group that the consumer holds.
func (q *Pair) writers(g int) []int {
	var out []int
	of := &q.d.groups[g]
	for head := of.first; head < of.first+of.heads; head++ { // its writer never decreases
		tp := writerOf(q.d.rank.TP, head, q.p.size.TP, q.d.size.TP, of.model)
		if n := len(out); n == 0 || out[n-1] != tp {
			out = append(out, tp)
		}
	}
	return out
}

// Consumers returns the ranks of D that producer p owes a completion before it may free a transfer's blocks.
func Consumers(p metadata.Record, d []metadata.Record, allow Allow) ([]metadata.Record, error) {
	grid, err := Ranks(d)
	if err != nil {
		return nil, err
	}
	var out []metadata.Record
	for _, r := range grid {
		q, err := New(p, r, allow)
		if err != nil {
			return nil, err
		}
		if q.related() {
			out = append(out, r)
		}
	}
	return out, nil
}

// Ranks puts the records of one engine in order and refuses a set that is not whole.
func Ranks(records []metadata.Record) ([]metadata.Record, error) {
	if len(records) == 0 {
		return nil, errors.New("kvplane: no records")
	}
	size := records[0].Size
	if size.PP < 1 || size.TP < 1 || size.PP > MaxExtent || size.TP > MaxExtent || size.PP*size.TP > len(records) {
		return nil, unplannable("ranks of "+records[0].ID(), fmt.Sprintf("%d records", len(records)), "size "+size.String())
	}
	grid := make([]metadata.Record, size.PP*size.TP)
	agents := map[string]bool{}
	for _, r := range records {
		if r.Incarnation != records[0].Incarnation || r.Size != size || r.Rank.DP != 0 ||
			r.Rank.PP < 0 || r.Rank.PP >= size.PP || r.Rank.TP < 0 || r.Rank.TP >= size.TP ||
			r.Agent == "" || len(r.Agent) > MaxName || agents[r.Agent] {
			return nil, fmt.Errorf("kvplane: record of %s rank %s, agent %q, does not belong to %s of size %s",
				r.ID(), r.Rank, r.Agent, records[0].ID(), size)
		}
		if err := r.CheckAgent(); err != nil {
			return nil, fmt.Errorf("kvplane: record of %s rank %s: %w", r.ID(), r.Rank, err)
		}
		agents[r.Agent] = true
		grid[r.Rank.PP*size.TP+r.Rank.TP] = r
	}
	for i, r := range grid {
		if r.Agent == "" {
			return nil, fmt.Errorf("kvplane: record of %s rank 0/%d/%d is missing", records[0].ID(), i/size.TP, i%size.TP)
		}
	}
	return grid, nil
}

// MaxName bounds the name of an agent or an engine, in bytes.
const MaxName = 255

// Counts are the numbers that follow from the sizes alone: P's and D's tensor-parallel sizes, the model's heads, and
// with how many stages of the other side one stage shares a layer.
type Counts struct {
	Expected int // producers of a consumer
	Writers  int // of these, those that write
	Owed     int // consumers of a producer
}

// Count returns them for tensor-parallel sizes p and d, σ P stages per D stage and δ D stages per P stage.
func Count(p, d, heads, sigma, delta int) Counts {
	return Counts{
		Expected: sigma * max(1, p/d),
		Writers:  sigma * max(1, min(p, heads)/min(d, heads)),
		Owed:     delta * max(1, d/p),
	}
}
