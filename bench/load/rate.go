package load

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// AtRate takes so many of a trace's sessions that, within a time, so many requests a second come. A session is taken whole: a
// request that goes on with another comes with it, so that as much of the prompts is a prefix seen before as in the trace. Which
// ones are taken is the same for the same seed, and whoever is taken at a rate is taken at a higher one.
func AtRate(trace []Request, within time.Duration, rate float64, seed uint64) []Request {
	trace = cutTrace(trace, 0, within)
	sessions := map[int][]Request{}
	for i, t := range trace {
		id := -1 - i // nobody goes on with a single block, which is the one that all share
		if len(t.Blocks) > 1 {
			id = t.Blocks[1]
		}
		sessions[id] = append(sessions[id], t)
	}
	ids := make([]int, 0, len(sessions))
	for id := range sessions {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	want := int(rate * within.Seconds())
	var taken []Request
	for _, id := range ids {
		if len(taken) >= want {
			break
		}
		taken = append(taken, sessions[id]...)
	}
	slices.SortStableFunc(taken, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return taken
}
