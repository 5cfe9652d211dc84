package metadata

import (
	"maps"
	"slices"
	"time"
)

// copied is what is known of one engine. It is never changed.
type copied struct {
	generation uint64
	recs       []Record           // in the order of their ranks
	until      []time.Time        // ends of their leases
	first      time.Time          // the earliest of until: before it, recs can be handed out as they are
	seen       map[Rank]time.Time // when the newest record was published of each rank, also of those that are gone
	fence      time.Time          // until when the generation is remembered
}

// found is a record that a store holds and the end of its lease.
type found struct {
	rec   Record
	until time.Time
}

// reading is what came of reading one engine: what the store holds of it and was not known.
type reading struct {
	found []found
	err   error
}

// live returns the records whose lease is running.
func (e *copied) live(now time.Time) []Record {
	if now.Before(e.first) {
		return e.recs
	}
	var recs []Record
	for i := range e.recs {
		if now.Before(e.until[i]) {
			recs = append(recs, e.recs[i])
		}
	}
	return recs
}

// knows reports whether nothing newer is to be learned from a record of this generation and rank, published at so many
// nanoseconds.
func (e *copied) knows(generation uint64, rank string, published uint64) bool {
	if e == nil || generation > e.generation {
		return false
	}
	if generation < e.generation {
		return true
	}
	r, err := ParseRank(rank)
	if err != nil {
		return false // reading it will say what is wrong
	}
	seen, ok := e.seen[r]
	return ok && published <= uint64(seen.UnixNano())
}

// settled reports whether nothing has changed by itself since this was made: no lease has ended, and the fence is to
// be kept.
func (e *copied) settled(now time.Time) bool {
	if e == nil {
		return true
	}
	if len(e.recs) == 0 {
		return !now.After(e.fence)
	}
	return now.Before(e.first)
}

// edition is of which run an engine's records are, and of how many ranks; zero if there are none.
type edition struct {
	generation uint64
	ranks      int
}

func (e *copied) edition(now time.Time) edition {
	if e == nil || len(e.live(now)) == 0 {
		return edition{}
	}
	return edition{e.generation, len(e.live(now))}
}

// merge returns what is known after the store held recs, or nil if that is nothing. A record that was seen before, or
// one published before it, changes nothing: what has ended or was withdrawn does not come back, and no lease is
// lengthened by reading it again. It is a pure function.
func merge(old *copied, recs []found, gone []Change, now time.Time) *copied {
	next := &copied{fence: now.Add(fenceKept), seen: map[Rank]time.Time{}}
	if old != nil {
		next.generation = old.generation
		if len(recs) == 0 {
			next.fence = old.fence
		}
	}
	for _, f := range recs {
		next.generation = max(next.generation, f.rec.Generation)
	}
	ranks := map[Rank]found{}
	if old != nil && old.generation == next.generation {
		maps.Copy(next.seen, old.seen)
		for i, r := range old.recs {
			withdrawn := slices.ContainsFunc(gone, func(g Change) bool { return g.Rank == r.Rank && g.Incarnation == r.Incarnation })
			if !withdrawn && now.Before(old.until[i]) {
				ranks[r.Rank] = found{r, old.until[i]}
			}
		}
	}
	for _, f := range recs {
		seen, ok := next.seen[f.rec.Rank]
		if f.rec.Generation == next.generation && (!ok || f.rec.Published.After(seen)) {
			ranks[f.rec.Rank], next.seen[f.rec.Rank] = f, f.rec.Published
		}
	}
	for _, rank := range slices.SortedFunc(maps.Keys(ranks), Rank.compare) {
		f := ranks[rank]
		next.recs, next.until = append(next.recs, f.rec), append(next.until, f.until)
		if next.first.IsZero() || f.until.Before(next.first) {
			next.first = f.until
		}
	}
	if len(next.recs) == 0 && now.After(next.fence) {
		return nil
	}
	return next
}
