package discovery

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func at(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 8000)
}

func idle(netip.AddrPort) bool { return false }

func changesOf(changes []Change) (all []string) {
	for _, c := range changes {
		all = append(all, c.Do.String()+" "+c.At.Addr().String())
	}
	return all
}

// TestSetScript tells what is done about one engine after the other, in seconds from the start.
func TestSetScript(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	s := Set{Damping: Damping{GoneAfter: 15 * time.Second, MaxStale: time.Minute}}
	busy := false
	for _, step := range []struct {
		second int
		what   string
		answer []int // nil: none
		busy   bool
		want   []string
	}{
		{0, "the first answer", []int{1, 2}, false, []string{"add 10.0.0.1", "add 10.0.0.2"}},
		{5, "the same in another order", []int{2, 1}, false, nil},
		{10, "one is lacking, which is not believed yet", []int{2}, false, nil},
		{20, "nor now", []int{2}, true, nil},
		{25, "but now", []int{2}, true, []string{"drain 10.0.0.1"}},
		{30, "it has requests", []int{2}, true, nil},
		{35, "it has none", []int{2}, false, []string{"remove 10.0.0.1"}},
		{40, "it is started again: the first time is free", []int{1, 2}, false, []string{"add 10.0.0.1"}},
		{45, "DNS fails", nil, false, nil},
		{99, "and goes on failing", nil, false, nil},
		{100, "for too long", nil, true, []string{"drain 10.0.0.1", "drain 10.0.0.2"}},
		{105, "still", nil, true, nil},
		{110, "it is there again, with another one", []int{1, 2, 3}, true, []string{"resume 10.0.0.1", "resume 10.0.0.2", "add 10.0.0.3"}},
		{115, "lacks two", []int{3}, false, nil},
		{120, "one of them was only late", []int{1, 3}, false, nil},
		{130, "the other was not", []int{1, 3}, true, []string{"drain 10.0.0.2"}},
		{135, "and comes back before its requests have ended", []int{1, 2, 3}, true, []string{"resume 10.0.0.2"}},
		{140, "an answer without an address is none", []int{}, false, nil},
	} {
		now := start.Add(time.Duration(step.second) * time.Second)
		busy = step.busy
		var got []Change
		if step.answer == nil {
			got = s.Lacked(now)
		} else {
			answer := []netip.AddrPort{}
			for _, n := range step.answer {
				answer = append(answer, at(n))
			}
			got = s.Saw(now, answer)
		}
		if len(got) == 0 {
			got = s.Settle(func(netip.AddrPort) bool { return busy })
		}
		if diff := cmp.Diff(changesOf(got), step.want, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%ds, %s (-got +want):\n%s", step.second, step.what, diff)
		}
	}
}

// TestSetDampsWhatComesAndGoes has an address be there for 20 s and away for 20 s, for an hour: it may not be used and drained
// each time.
func TestSetDampsWhatComesAndGoes(t *testing.T) {
	s, now, drains := Set{Damping: Damping{GoneAfter: 15 * time.Second}}, time.Unix(0, 0), 0
	for i := range 720 {
		answer := []netip.AddrPort{at(1)}
		if i/4%2 == 0 {
			answer = append(answer, at(2))
		}
		for _, c := range append(s.Saw(now, answer), s.Settle(idle)...) {
			if c.At == at(1) && c.Do != Add {
				t.Fatalf("%v of the address that was always there", c)
			}
			if c.Do == Drain {
				drains++
			}
		}
		now = now.Add(5 * time.Second)
	}
	if drains == 0 || drains > 16 {
		t.Errorf("%d drains in an hour of 90 times away; want some, at most 16", drains)
	}
	for range 13 { // and then it stays
		s.Saw(now, []netip.AddrPort{at(1), at(2)})
		now = now.Add(calm / 10)
	}
	if diff := cmp.Diff(s.Members(), []Member{{at(1), false}, {at(2), false}}, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Error("what stays is used in the end (-got +want):\n" + diff)
	}
}

// walk is one random history of a name, with what must hold of what is done about it.
type walk struct {
	t      *testing.T
	random *rand.Rand
	set    Set
	now    time.Time
	busy   map[netip.AddrPort]bool
	is     map[netip.AddrPort]string      // what the changes say of each address: in or leaving
	good   time.Time                      // of the last good answer
	has    map[netip.AddrPort]bool        // what it had
	lacks  map[netip.AddrPort]time.Time   // since when good answers lack an address
	steady map[netip.AddrPort]bool        // had by every answer since it was added
	drains map[netip.AddrPort][]time.Time // of each, with answers
}

// check takes in what is done, and fails where that is not allowed.
func (w *walk) check(changes []Change, answered bool) {
	w.t.Helper()
	for _, c := range changes {
		was := w.is[c.At]
		stale := !answered && w.now.Sub(w.good) >= w.set.MaxStale
		switch c.Do {
		case Add, Resume:
			if was != map[Action]string{Add: "", Resume: "leaving"}[c.Do] || !w.has[c.At] || !answered {
				w.t.Fatalf("%v of %s, which was %q", c.Do, c.At, was)
			}
			if w.is[c.At] = "in"; was == "" {
				w.steady[c.At] = true
			}
		case Drain:
			lacks, away := w.lacks[c.At]
			if was != "in" || !stale && (!answered || !away || w.now.Sub(lacks) < w.set.GoneAfter || w.steady[c.At]) {
				w.t.Fatalf("drain of %s, which was %q, away %v since %v", c.At, was, away, w.now.Sub(lacks))
			}
			if w.is[c.At] = "leaving"; !stale {
				w.drains[c.At] = append(w.drains[c.At], w.now)
			}
		case Remove:
			if was != "leaving" || w.busy[c.At] {
				w.t.Fatalf("remove of %s, which was %q, busy %v", c.At, was, w.busy[c.At])
			}
			delete(w.is, c.At)
			delete(w.steady, c.At)
		}
	}
	members := w.set.Members()
	if len(members) != len(w.is) {
		w.t.Fatalf("members %v; the changes say %v", members, w.is)
	}
	for _, m := range members {
		if (w.is[m.At] == "leaving") != m.Leaving {
			w.t.Fatalf("member %v; the changes say %s", m, w.is[m.At])
		}
	}
}

func (w *walk) step() {
	w.now = w.now.Add(time.Duration(w.random.IntN(8000)) * time.Millisecond)
	for n := range 6 {
		if w.random.IntN(4) == 0 {
			w.busy[at(n)] = !w.busy[at(n)]
		}
	}
	switch w.random.IntN(6) {
	case 0, 1:
		for range w.random.IntN(20) {
			before := len(w.is)
			changes := w.set.Lacked(w.now)
			w.check(changes, false)
			if w.now.Sub(w.good) < w.set.MaxStale && (len(changes) > 0 || len(w.is) != before) {
				w.t.Fatalf("%v although the last good answer is %v old", changes, w.now.Sub(w.good))
			}
			w.now = w.now.Add(time.Duration(w.random.IntN(5000)) * time.Millisecond)
		}
	case 2:
		w.check(w.set.Settle(func(a netip.AddrPort) bool { return w.busy[a] }), false)
	default:
		var answer []netip.AddrPort
		for n := range 6 {
			if n == 0 || w.random.IntN(3) > 0 {
				answer = append(answer, at(n))
			}
		}
		w.answer(answer)
	}
}

// answer gives one good answer, in any order, to the set and to a copy of what must hold.
func (w *walk) answer(answer []netip.AddrPort) {
	w.has = map[netip.AddrPort]bool{}
	for _, a := range answer {
		w.has[a] = true
		delete(w.lacks, a)
	}
	for n := range 6 {
		if a := at(n); !w.has[a] {
			delete(w.steady, a)
			if _, ok := w.lacks[a]; !ok {
				w.lacks[a] = w.now
			}
		}
	}
	w.good = w.now
	w.random.Shuffle(len(answer), func(i, j int) { answer[i], answer[j] = answer[j], answer[i] })
	w.check(w.set.Saw(w.now, answer), true)
	for a, since := range w.lacks {
		if w.is[a] == "in" && w.now.Sub(since) >= w.set.GoneAfter {
			w.t.Fatalf("%s is in use, although answers have lacked it for %v", a, w.now.Sub(since))
		}
	}
	if w.is[at(0)] != "in" {
		w.t.Fatalf("%s, which every answer has, is %q", at(0), w.is[at(0)])
	}
}

// TestSetWalks: 1,000 random histories keep what a set promises, and end in what DNS says if it stays.
func TestSetWalks(t *testing.T) {
	for seed := range uint64(1000) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &walk{t: t, random: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1_000_000, 0), busy: map[netip.AddrPort]bool{},
				is: map[netip.AddrPort]string{}, lacks: map[netip.AddrPort]time.Time{}, steady: map[netip.AddrPort]bool{}, drains: map[netip.AddrPort][]time.Time{}}
			w.set.Damping = Damping{GoneAfter: 15 * time.Second, MaxStale: time.Minute}
			w.good = w.now
			for range 200 {
				w.step()
			}
			for a, when := range w.drains { // a leaving costs more and more waiting
				for i := 8; i < len(when); i++ {
					if when[i].Sub(when[i-8]) < 8*15*time.Second {
						t.Fatalf("%s was drained 9 times in %v", a, when[i].Sub(when[i-8]))
					}
				}
			}
			w.busy = map[netip.AddrPort]bool{}
			for range 40 {
				w.answer([]netip.AddrPort{at(0), at(2), at(4)})
				w.check(w.set.Settle(idle), false)
				w.now = w.now.Add(10 * time.Second)
			}
			if diff := cmp.Diff(w.set.Members(), []Member{{at(0), false}, {at(2), false}, {at(4), false}}, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
				t.Error("in the end (-got +want):\n" + diff)
			}
			if n := len(w.set.known); n > 6 {
				t.Errorf("%d addresses are kept", n)
			}
		})
	}
}

// TestSetForgets: addresses that are gone for good do not stay in memory.
func TestSetForgets(t *testing.T) {
	var s Set
	now := time.Unix(0, 0)
	for i := range 500 {
		answer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1)
		for range 10 {
			s.Saw(now, []netip.AddrPort{answer})
			s.Settle(idle)
			now = now.Add(10 * time.Second)
		}
	}
	if n := len(s.known); n > 20 {
		t.Errorf("%d addresses are kept; want those of the last ten minutes", n)
	}
	if got := s.Members(); len(got) != 1 || slices.ContainsFunc(got, func(m Member) bool { return m.Leaving }) {
		t.Errorf("members %v; want the last one", got)
	}
}
