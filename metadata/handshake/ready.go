package handshake

import (
	"maps"
	"sync/atomic"

	"pdrouter/metadata"
)

// readySet is the set of pairs that have shaken hands. has takes no lock and allocates nothing; the other methods need
// the registry's. The peers of each prefill run are a set of their own that is replaced whole, so that a handshake costs
// a copy of one run's pairs and not of all there are.
type readySet struct {
	runs atomic.Pointer[map[metadata.Incarnation]*peerSet]
	n    int
}

// peerSet is the decode runs that one prefill run has shaken hands with.
type peerSet struct {
	atomic.Pointer[map[metadata.Incarnation]struct{}]
}

func newReadySet() *readySet {
	s := &readySet{}
	s.runs.Store(&map[metadata.Incarnation]*peerSet{})
	return s
}

func (s *readySet) has(pair metadata.Pair) bool {
	peers := (*s.runs.Load())[pair.Prefill]
	if peers == nil {
		return false
	}
	_, ok := (*peers.Load())[pair.Decode]
	return ok
}

func (s *readySet) addLocked(pair metadata.Pair) {
	if s.has(pair) {
		return
	}
	s.n++
	runs := *s.runs.Load()
	if peers := runs[pair.Prefill]; peers != nil {
		next := maps.Clone(*peers.Load())
		next[pair.Decode] = struct{}{}
		peers.Store(&next)
		return
	}
	peers := &peerSet{}
	peers.Store(&map[metadata.Incarnation]struct{}{pair.Decode: {}})
	next := maps.Clone(runs)
	next[pair.Prefill] = peers
	s.runs.Store(&next)
}

// dropLocked takes out all pairs that match.
func (s *readySet) dropLocked(match func(metadata.Pair) bool) {
	runs := maps.Clone(*s.runs.Load())
	before := len(runs)
	for prefill, peers := range runs {
		old := *peers.Load()
		next := maps.Clone(old)
		maps.DeleteFunc(next, func(decode metadata.Incarnation, _ struct{}) bool {
			return match(metadata.Pair{Prefill: prefill, Decode: decode})
		})
		if len(next) == len(old) {
			continue
		}
		s.n -= len(old) - len(next)
		peers.Store(&next) // first: who has found it already must not find the pair in it
		if len(next) == 0 {
			delete(runs, prefill)
		}
	}
	if len(runs) < before {
		s.runs.Store(&runs)
	}
}

// removeLocked takes out one pair.
func (s *readySet) removeLocked(pair metadata.Pair) {
	peers := (*s.runs.Load())[pair.Prefill]
	if peers == nil || !s.has(pair) {
		return
	}
	s.n--
	next := maps.Clone(*peers.Load())
	delete(next, pair.Decode)
	peers.Store(&next)
}
