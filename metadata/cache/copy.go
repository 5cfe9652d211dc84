package cache

import (
	"maps"
	"slices"
	"time"

	"pdrouter/metadata"
)

// copied is what is known of one engine. It is never changed.
type copied struct {
	generation uint64
	recs       []metadata.Record           // in the order of their ranks
	until      []time.Time                 // ends of their leases
	terms      []term                      // when to read them again
	first      time.Time                   // the earliest of until: before it, recs can be handed out as they are
	seen       map[metadata.Rank]time.Time // when the newest record was published of each rank, also of those that are gone
	fence      time.Time                   // until when the generation is remembered
}

// term is when to read a checked record again.
type term struct {
	half    time.Time // half of its lease is over: until then a renewal that says nothing new need not be read
	content string    // what it says, see ContentOf
}

// found is a record that a store holds, and the end of its lease.
type found struct {
	rec   metadata.Record
	until time.Time
	term
}

// foundIn returns what a reading found, and when to read each record again.
func foundIn(recs []metadata.Found) []found {
	all := make([]found, len(recs))
	for i, f := range recs {
		all[i] = found{f.Record, f.Until, term{half: f.Until.Add(-f.Record.Lifetime() / 2), content: f.Content}}
	}
	return all
}

// live returns the records whose lease is running.
func (e *copied) live(now time.Time) []metadata.Record {
	if now.Before(e.first) {
		return e.recs
	}
	var recs []metadata.Record
	for i := range e.recs {
		if now.Before(e.until[i]) {
			recs = append(recs, e.recs[i])
		}
	}
	return recs
}

// place returns where the rank's record is.
func (e *copied) place(rank metadata.Rank) (int, bool) {
	return slices.BinarySearchFunc(e.recs, rank, func(r metadata.Record, rank metadata.Rank) int { return r.Rank.Compare(rank) })
}

// Knows reports whether a record of this generation and rank, published then with this content, need not be read: something newer
// was seen, or its content is known and more than half of the known lease is left. The announcement that it judges is not signed. A
// false one only delays the next read.
func (e *copied) Knows(generation uint64, rank metadata.Rank, published time.Time, content string, now time.Time) bool {
	switch {
	case e == nil || generation > e.generation:
		return false
	case generation < e.generation:
		return true
	}
	if seen, ok := e.seen[rank]; ok && !published.After(seen) {
		return true
	}
	i, ok := e.place(rank)
	return ok && content != "" && content == e.terms[i].content && now.Before(e.terms[i].half)
}

// Holds reports whether a withdrawal is of a record that the copy has.
func (e *copied) Holds(gone metadata.Change) bool {
	if e == nil {
		return false
	}
	i, ok := e.place(gone.Rank)
	return ok && withdraws(gone, e.recs[i])
}

// settled reports whether time has changed nothing since this was made: no lease has ended, and the fence is still kept.
func (e *copied) settled(now time.Time) bool {
	if e == nil {
		return true
	}
	if len(e.recs) == 0 {
		return !now.After(e.fence)
	}
	return now.Before(e.first)
}

// sameContent reports whether both have the same ranks of the same run, which say the same.
func (e *copied) sameContent(o *copied) bool {
	if e == nil || o == nil || len(e.recs) == 0 || len(o.recs) == 0 {
		return (e == nil || len(e.recs) == 0) == (o == nil || len(o.recs) == 0)
	}
	if e.generation != o.generation || len(e.recs) != len(o.recs) {
		return false
	}
	for i := range e.recs {
		if e.recs[i].Rank != o.recs[i].Rank || e.terms[i].content != o.terms[i].content {
			return false
		}
	}
	return true
}

// withdraws reports whether a withdrawal is of this record: it was published no later than what was withdrawn.
func withdraws(c metadata.Change, r metadata.Record) bool {
	return c.Rank == r.Rank && c.Incarnation == r.Incarnation && (c.Published.IsZero() || !r.Published.After(c.Published))
}

// merge returns what is known after the store held recs and said that others are gone, or nil if that is nothing. A record
// that was seen before, or one published before it, changes nothing: what has ended or was withdrawn does not come back, and
// no lease is lengthened by reading it again. It is a pure function.
func merge(old *copied, recs []found, gone []metadata.Change, now time.Time) *copied {
	next := &copied{fence: now.Add(metadata.FenceKept), seen: map[metadata.Rank]time.Time{}}
	if old != nil {
		next.generation = old.generation
		if len(recs) == 0 {
			next.fence = old.fence
		}
	}
	for _, f := range recs {
		next.generation = max(next.generation, f.rec.Generation)
	}
	ranks := map[metadata.Rank]found{}
	if old != nil && old.generation == next.generation {
		maps.Copy(next.seen, old.seen)
		for i, r := range old.recs {
			if w := slices.IndexFunc(gone, func(g metadata.Change) bool { return withdraws(g, r) }); w >= 0 {
				// Renewals that were not read are withdrawn with it. The time of the withdrawal is not signed.
				if at := gone[w].Published; at.After(next.seen[r.Rank]) && at.Before(r.Expires) {
					next.seen[r.Rank] = at
				}
			} else if now.Before(old.until[i]) {
				ranks[r.Rank] = found{r, old.until[i], old.terms[i]}
			}
		}
	}
	for _, f := range recs {
		seen, ok := next.seen[f.rec.Rank]
		if f.rec.Generation == next.generation && (!ok || f.rec.Published.After(seen)) {
			next.seen[f.rec.Rank] = f.rec.Published
			if ranks[f.rec.Rank] = f; !now.Before(f.until) {
				delete(ranks, f.rec.Rank)
			}
		}
	}
	for _, rank := range slices.SortedFunc(maps.Keys(ranks), metadata.Rank.Compare) {
		f := ranks[rank]
		next.recs, next.until, next.terms = append(next.recs, f.rec), append(next.until, f.until), append(next.terms, f.term)
		if next.first.IsZero() || f.until.Before(next.first) {
			next.first = f.until
		}
	}
	if len(next.recs) == 0 && now.After(next.fence) {
		return nil
	}
	return next
}
