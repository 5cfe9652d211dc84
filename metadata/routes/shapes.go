package routes

import (
	"errors"
	"slices"
	"sync"

	"pdrouter/metadata"
)

// shape is all that decides about which engines, and which of their ranks, exchange KV blocks with an engine's. Engines of one
// make share one, so what is found for two of them holds for all. It is never changed.
type shape struct {
	recs  []metadata.Record // of one of these engines, without what is bulky
	whole bool              // they are one record of each rank
}

// shapeKey is what a shape is looked for by.
type shapeKey struct {
	role                             metadata.Role
	size                             metadata.Rank
	ranks                            int
	connector, transport, compatible string
}

// verdict says what an engine's agents may read of another engine.
type verdict struct {
	reason metadata.PairReason // why nothing; 0 if the engines pair
	ranks  []metadata.Rank     // those that map onto the ranks asked for; nil if none were asked for
}

type verdictKey struct {
	own, other *shape
	ranks      string // of the token; "" for all
}

// shapes remembers the shapes of engines and what was found for two of them, so that neither a list of a thousand engines nor
// an event told to a thousand agents compares layouts again. It is safe for concurrent use.
type shapes struct {
	mu       sync.Mutex
	engines  map[string]shaped
	known    map[shapeKey][]*shape
	verdicts map[verdictKey]verdict
}

// shaped is the shape of the records that an engine had when they were last looked at.
type shaped struct {
	first *metadata.Record // of these records, which are never changed
	ranks int
	shape *shape
}

// Bounds of what shapes remembers. Beyond them it begins anew.
const (
	maxShaped   = 16 << 10 // engines
	maxAlike    = 64       // shapes of one key
	maxVerdicts = 64 << 10
)

func newShapes() *shapes {
	return &shapes{engines: map[string]shaped{}, known: map[shapeKey][]*shape{}, verdicts: map[verdictKey]verdict{}}
}

// of returns the shape of an engine's records. There must be at least one.
func (s *shapes) of(recs []metadata.Record) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	engine := recs[0].Engine
	old, ok := s.engines[engine]
	if ok && old.first == &recs[0] && old.ranks == len(recs) {
		return old.shape
	}
	now := shaped{first: &recs[0], ranks: len(recs), shape: old.shape}
	if !ok || !sameShape(old.shape.recs, recs) {
		now.shape = s.findLocked(recs)
	}
	if !ok && len(s.engines) >= maxShaped {
		clear(s.engines)
		clear(s.known)
		clear(s.verdicts)
	}
	s.engines[engine] = now
	return now.shape
}

func (s *shapes) findLocked(recs []metadata.Record) *shape {
	r := &recs[0]
	key := shapeKey{r.Role, r.Size, len(recs), r.Connector, r.Transport, r.Compatibility}
	for _, known := range s.known[key] {
		if sameShape(known.recs, recs) {
			return known
		}
	}
	_, err := metadata.Complete(recs)
	found := &shape{recs: slices.Clone(recs), whole: err == nil}
	for i := range found.recs {
		light := &found.recs[i]
		light.Blob, light.Key, light.Signature, light.Binding, light.Payload = nil, nil, nil, nil, nil
	}
	if len(s.known[key]) >= maxAlike {
		s.known[key] = nil
	}
	s.known[key] = append(s.known[key], found)
	return found
}

// judge returns what the agents of an engine of the shape own, of these ranks if there are any, may read of an engine of the
// shape other, whichever of the two prefills.
func (s *shapes) judge(own, other *shape, ranks []metadata.Rank, name string) verdict {
	key := verdictKey{own, other, name}
	s.mu.Lock()
	v, ok := s.verdicts[key]
	s.mu.Unlock()
	if ok {
		return v
	}
	var why *metadata.Unpairable
	if err := pairableEither(own.recs, other.recs); errors.As(err, &why) {
		v.reason = why.Reason
	} else if len(ranks) > 0 {
		v.ranks = mapped(own.recs, ranks, other.recs)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.verdicts) >= maxVerdicts {
		clear(s.verdicts)
	}
	s.verdicts[key] = v
	return v
}

// sameShape compares what Pairable and Maps look at. Both sets of records are in the order of their ranks.
func sameShape(xs, ys []metadata.Record) bool {
	if len(xs) != len(ys) {
		return false
	}
	for i := range xs {
		x, y := &xs[i], &ys[i]
		switch {
		case x.Role != y.Role, x.Rank != y.Rank, x.Size != y.Size, x.Connector != y.Connector, x.ConnectorVersion != y.ConnectorVersion,
			x.Compatibility != y.Compatibility, x.Transport != y.Transport, !metadata.SameLayout(x.Layout, y.Layout),
			(x.Incarnation == xs[0].Incarnation) != (y.Incarnation == ys[0].Incarnation),
			!slices.EqualFunc(x.Layout.Groups, y.Layout.Groups, sameGroup),
			!slices.EqualFunc(x.Layout.Regions, y.Layout.Regions, sameLayer):
			return false
		}
	}
	return true
}

func sameGroup(x, y metadata.Group) bool {
	return x.Window == y.Window && x.Heads == y.Heads && x.HeadBytes == y.HeadBytes && slices.Equal(x.Layers, y.Layers)
}

func sameLayer(x, y metadata.Region) bool { return x.Layer == y.Layer && x.Planes == y.Planes }

// pairableEither returns nil if the engines can exchange KV blocks, whichever of them prefills.
func pairableEither(x, y []metadata.Record) error {
	err := metadata.Pairable(x, y)
	if err == nil || len(x) > 0 && x[0].Role == metadata.Prefill || len(y) > 0 && y[0].Role == metadata.Decode {
		return err
	}
	return metadata.Pairable(y, x)
}

// mapped returns those of an engine's ranks that map onto one of these ranks of another engine.
func mapped(own []metadata.Record, ranks []metadata.Rank, recs []metadata.Record) []metadata.Rank {
	var out []metadata.Rank
	for _, rec := range recs {
		if slices.ContainsFunc(own, func(o metadata.Record) bool { return slices.Contains(ranks, o.Rank) && metadata.Maps(o, rec) }) {
			out = append(out, rec.Rank)
		}
	}
	return out
}
