package agent

import (
	"errors"
	"time"

	"pdrouter/internal/field"
)

// RebuildPolicy says how much of the cache a silent peer may keep in quarantine, and for how long. Beyond that the ranks that
// wait for it are rebuilt, and nothing lands through their old agents any more. Nothing is freed on time alone.
type RebuildPolicy struct {
	Share float64       `yaml:"share"` // of the blocks, for one peer; default 0.05
	Grace time.Duration `yaml:"grace"` // how long that much may be in quarantine; default 5 s
	Age   time.Duration `yaml:"age"`   // how long any block may be; default 60 s
}

// WithDefaults fills what was left zero.
func (p RebuildPolicy) WithDefaults() RebuildPolicy {
	if p.Share == 0 {
		p.Share = 0.05
	}
	if p.Grace == 0 {
		p.Grace = 5 * time.Second
	}
	if p.Age == 0 {
		p.Age = time.Minute
	}
	return p
}

// Validate reports every mistake at once, each by its key.
func (p RebuildPolicy) Validate() error {
	var errs []error
	if p.Share < 0 || p.Share > 1 {
		errs = append(errs, field.Errorf("quarantine.share", "is %v; want 0 to 1", p.Share))
	}
	if p.Grace < 0 || p.Age < 0 {
		errs = append(errs, field.Errorf("quarantine.grace", "is %v and age %v; want 0 or more", p.Grace, p.Age))
	}
	return errors.Join(errs...)
}

// Every is how often to check while there is a quarantine.
func (p RebuildPolicy) Every() time.Duration { return max(min(p.Grace, p.Age)/4, 10*time.Millisecond) }

// HeldBlocks is what one peer keeps in quarantine that a rebuild would free.
type HeldBlocks struct {
	Blocks int
	Since  time.Time // when the first of them failed
}

// RebuildCandidates remembers which peers keep more than their share, and since when. The zero value knows none.
type RebuildCandidates[Peer comparable] struct{ since map[Peer]time.Time }

// Due returns the peers that have had their time, of those that keep something now, of a cache of so many blocks.
func (s *RebuildCandidates[Peer]) Due(p RebuildPolicy, now time.Time, blocks int, kept map[Peer]HeldBlocks) []Peer {
	if s.since == nil {
		s.since = map[Peer]time.Time{}
	}
	crowded := func(peer Peer) bool { return float64(kept[peer].Blocks) > p.Share*float64(blocks) }
	for peer := range s.since {
		if !crowded(peer) {
			delete(s.since, peer)
		}
	}
	var due []Peer
	for peer, k := range kept {
		since, known := s.since[peer]
		if crowded(peer) && !known {
			since, known = now, true
			s.since[peer] = now
		}
		if known && now.Sub(since) >= p.Grace || k.Blocks > 0 && now.Sub(k.Since) >= p.Age {
			due = append(due, peer)
		}
	}
	return due
}
