package scaling

import "math"

// Latency is a distribution of times over their objective in the last minute, in bounded memory (1.2 kB). The zero value is empty.
type Latency struct {
	slots [slots]histogram
}

const (
	slots       = 6
	slotSeconds = 10
	// Bounds of the buckets are bucketFactor apart, from leastRatio on: a quantile is at most 15 % too high. The last bucket has all above 16.
	buckets      = 50
	leastRatio   = 1. / 50
	bucketFactor = 1.15
)

type histogram struct {
	slot  int64 // which ten seconds it is of
	count [buckets]uint32
}

// Add takes in one time, as a multiple of its objective.
func (l *Latency) Add(now, ratio float64) {
	if !(ratio >= 0) { // not a number, where there is no objective
		return
	}
	at := slotOf(now)
	h := &l.slots[at%slots]
	if h.slot != at {
		*h = histogram{slot: at}
	}
	i := 0
	if ratio > leastRatio {
		i = int(min(buckets-1, math.Ceil(math.Log(ratio/leastRatio)/math.Log(bucketFactor))))
	}
	h.count[i]++
}

// Quantile returns the ratio that a part q of the times does not exceed; known is false if there were none in the last minute.
func (l *Latency) Quantile(now, q float64) (ratio float64, known bool) {
	var all [buckets]uint64
	total, at := uint64(0), slotOf(now)
	for i := range l.slots {
		if h := &l.slots[i]; h.slot > at-slots {
			for b, n := range h.count {
				all[b] += uint64(n)
				total += uint64(n)
			}
		}
	}
	if total == 0 {
		return 0, false
	}
	rank, below := uint64(math.Ceil(q*float64(total))), uint64(0)
	for b, n := range all {
		if below += n; below >= rank {
			return leastRatio * math.Pow(bucketFactor, float64(b)), true
		}
	}
	return 0, false
}

func slotOf(now float64) int64 { return int64(max(0, now)/slotSeconds) + 1 } // the zero value is of none
