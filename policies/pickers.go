package policies

import (
	"math"
	"math/bits"
)

// best takes the candidate with the highest score. Equals take turns.
type best struct{}

func (best) Pick(c *Candidates, scores []float64) (taken, other int) {
	high, next, equals := math.Inf(-1), -1, uint64(0)
	for _, s := range scores {
		switch {
		case s > high:
			high, equals = s, 1
		case s == high:
			equals++
		}
	}
	k := c.Draw.Turn % equals
	taken = -1
	for i, s := range scores {
		if s == high && taken < 0 {
			if k == 0 {
				taken = i
				continue
			}
			k--
		}
		if next < 0 || s > scores[next] {
			next = i
		}
	}
	return taken, next
}

// powerOfTwo draws two candidates and takes the one with the higher score, the first drawn among equals.
type powerOfTwo struct{}

func (powerOfTwo) Pick(c *Candidates, scores []float64) (taken, other int) {
	n := uint64(len(scores))
	k := below(c.Draw.Random, n)
	if n == 1 {
		return int(k), -1
	}
	first, second := int(k), int((k+1+below(mix(c.Draw.Random), n-1))%n)
	if scores[second] > scores[first] {
		first, second = second, first
	}
	return first, second
}

// roundRobin takes one candidate after the other, whatever their scores.
type roundRobin struct{}

func (roundRobin) Pick(c *Candidates, scores []float64) (taken, other int) {
	return int(c.Draw.Turn % uint64(len(scores))), -1
}

// random takes any candidate with the same odds, whatever their scores.
type random struct{}

func (random) Pick(c *Candidates, scores []float64) (taken, other int) {
	return int(below(c.Draw.Random, uint64(len(scores)))), -1
}

// weightedRandom takes a candidate with odds in proportion to its score; any, if all scores are 0.
type weightedRandom struct{}

func (weightedRandom) Pick(c *Candidates, scores []float64) (taken, other int) {
	sum := 0.0
	for _, s := range scores {
		sum += s
	}
	if sum <= 0 {
		return random{}.Pick(c, scores)
	}
	u := unit(c.Draw.Random) * sum
	for i, s := range scores {
		if s > 0 {
			taken = i
		}
		if u -= s; u < 0 {
			break
		}
	}
	return taken, -1
}

// below maps a uniform 64-bit value to 0..n-1.
func below(rnd, n uint64) uint64 {
	hi, _ := bits.Mul64(rnd, n)
	return hi
}

// unit maps a uniform 64-bit value to 0..1.
func unit(rnd uint64) float64 { return float64(rnd>>11) / (1 << 53) }

// mix derives a second random value from one, by the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
