package discovery

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Action is what is to be done about one address.
type Action uint8

// The actions.
const (
	Add    Action = iota + 1 // use it
	Drain                    // it takes no more requests
	Resume                   // it takes requests again
	Remove                   // it is gone, and so are its requests
)

// String returns the action's name.
func (a Action) String() string {
	return [...]string{"none", "add", "drain", "resume", "remove"}[a]
}

// Change is one action about one address.
type Change struct {
	Do Action
	At netip.AddrPort
}

// Member is an address that is known.
type Member struct {
	At      netip.AddrPort
	Leaving bool // it takes no more requests, and is removed when those that it has have ended
}

const (
	// calm is how long an address must not have left for its earlier leavings to be forgotten.
	calm = 10 * time.Minute
	// longestWait bounds how long an address that comes and goes has to stay until it is used again.
	longestWait = 5 * time.Minute
)

// Set is what is known of the addresses of one name. It is a value that is told what was seen and when: it does no I/O and
// reads no clock. It is not safe for concurrent use. The zero Set with its Damping is empty.
type Set struct {
	Damping
	known map[netip.AddrPort]*address
	good  time.Time // of the last good answer; zero before the first
	stale bool      // that was too long ago
}

// address is what is known of one address.
type address struct {
	state  state
	lacked time.Time // since when good answers lack it; zero if the last one has it
	seen   time.Time // since when good answers have it without a break; zero if the last one lacks it
	left   int       // how often it has left lately
	leftAt time.Time // when it left last
}

type state uint8

const (
	out     state = iota // not used; kept for how often it has left
	in                   // takes requests
	leaving              // takes no more requests
)

// seed has an empty set know what another one knew, whose last good answer was at good.
func (s *Set) seed(known []Member, good time.Time) {
	s.known, s.good = make(map[netip.AddrPort]*address, len(known)), good
	for _, m := range known {
		if m.Leaving {
			s.known[m.At] = &address{state: leaving}
		} else {
			s.known[m.At] = &address{state: in, seen: good}
		}
	}
}

// Saw takes in a good answer and returns what is to be done. An empty answer is none: see Lacked.
func (s *Set) Saw(now time.Time, answer []netip.AddrPort) (changes []Change) {
	if len(answer) == 0 {
		return s.Lacked(now)
	}
	s.Damping = s.withDefaults()
	if s.known == nil {
		s.known = map[netip.AddrPort]*address{}
	}
	s.good, s.stale = now, false
	has := make(map[netip.AddrPort]bool, len(answer))
	for _, at := range answer {
		has[at] = true
		if s.known[at] == nil {
			s.known[at] = &address{}
		}
	}
	for _, at := range s.sorted() {
		a := s.known[at]
		if a.left > 0 && now.Sub(a.leftAt) >= calm {
			a.left = 0
		}
		switch {
		case has[at]:
			a.lacked = time.Time{}
			if a.seen.IsZero() {
				a.seen = now
			}
			if a.state == in || now.Sub(a.seen) < s.stay(a.left) {
				break
			}
			do := Add
			if a.state == leaving {
				do = Resume
			}
			a.state = in
			changes = append(changes, Change{do, at})
		default:
			a.seen = time.Time{}
			if a.lacked.IsZero() {
				a.lacked = now
			}
			switch {
			case a.state == in && now.Sub(a.lacked) >= s.GoneAfter:
				a.state, a.left, a.leftAt = leaving, a.left+1, now
				changes = append(changes, Change{Drain, at})
			case a.state == out && a.left == 0:
				delete(s.known, at)
			}
		}
	}
	return changes
}

// stay returns how long an address must have been seen to be used again, having left so often. The first time is free:
// whatever is started anew at its address leaves once.
func (s *Set) stay(left int) time.Duration {
	if left <= 1 {
		return 0
	}
	return min(s.GoneAfter<<min(left-1, 16), longestWait)
}

// Lacked takes in that there was no good answer. What is known holds on until the last good answer is older than MaxStale.
func (s *Set) Lacked(now time.Time) (changes []Change) {
	s.Damping = s.withDefaults()
	if s.good.IsZero() || s.stale || now.Sub(s.good) < s.MaxStale {
		return nil
	}
	s.stale = true
	for _, at := range s.sorted() {
		if a := s.known[at]; a.state == in {
			a.state = leaving
			changes = append(changes, Change{Drain, at})
		}
		s.known[at].seen = time.Time{}
	}
	return changes
}

// Settle removes addresses that are leaving, were not seen in the last good answer, and are not busy.
func (s *Set) Settle(busy func(netip.AddrPort) bool) (changes []Change) {
	for _, at := range s.sorted() {
		a := s.known[at]
		if a.state != leaving || !a.seen.IsZero() || busy(at) {
			continue
		}
		a.state = out
		changes = append(changes, Change{Remove, at})
		if a.left == 0 {
			delete(s.known, at)
		}
	}
	return changes
}

// Members returns the addresses that are used, and those that are leaving, in order.
func (s *Set) Members() []Member {
	var all []Member
	for _, at := range s.sorted() {
		if a := s.known[at]; a.state != out {
			all = append(all, Member{at, a.state == leaving})
		}
	}
	return all
}

// Stale reports whether there has been no good answer for too long.
func (s *Set) Stale() bool { return s.stale }

// leaves reports whether some address is leaving.
func (s *Set) leaves() bool {
	for _, a := range s.known {
		if a.state == leaving {
			return true
		}
	}
	return false
}

func (s *Set) sorted() []netip.AddrPort {
	all := make([]netip.AddrPort, 0, len(s.known))
	for at := range s.known {
		all = append(all, at)
	}
	slices.SortFunc(all, func(x, y netip.AddrPort) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Port(), y.Port()))
	})
	return all
}
