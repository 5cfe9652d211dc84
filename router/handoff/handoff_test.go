package handoff

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is engines whose hand-offs are modelled, in virtual time.
type world struct {
	w       *Watch
	now     time.Time
	r       *rand.Rand
	factor  func(prefill, decode string) float64 // of the time of a hand-off
	changes []string
	seen    map[string]Seen // the latest of each pair
	lasted  time.Duration   // of the latest change
}

func newWorld(seed uint64) *world {
	return &world{w: New(), now: time.Unix(1000, 0), r: rand.New(rand.NewPCG(seed, 7)), factor: func(string, string) float64 { return 1 }, seen: map[string]Seen{}}
}

// run has pairs hand over for d, each of them once in every, and judges every 5 s. It returns after how long the first change came; d if
// none did.
func (x *world) run(d, every time.Duration, pairs []string, also func(decode string, tokens int)) (first time.Duration) {
	begun, had := x.now, len(x.changes)
	first = d
	next, judge := x.now, x.now
	for x.now.Sub(begun) < d {
		if !x.now.Before(next) {
			for _, pair := range pairs {
				prefill, decode, _ := strings.Cut(pair, ">")
				tokens := 500 + x.r.IntN(8000)
				took := (.005 + 4e-6*float64(tokens)) * x.factor(prefill, decode) * (.7 + .6*x.r.Float64())
				x.seen[pair] = x.w.FirstToken(x.now, HandOff{Model: "m", Prefill: prefill, Decode: decode, Tokens: tokens,
					Took: time.Duration(took * float64(time.Second)), Computing: time.Duration(float64(tokens) * 5e-5 * float64(time.Second))})
				if also != nil {
					also(decode, tokens)
				}
			}
			next = next.Add(every)
		}
		if !x.now.Before(judge) {
			for _, c := range x.w.Judge(x.now) {
				x.changes = append(x.changes, fmt.Sprintf("%s>%s %v", c.Prefill, c.Decode, c.Begins))
				x.lasted = c.Lasted
			}
			judge = judge.Add(5 * time.Second)
		}
		if len(x.changes) > had && first == d {
			first = x.now.Sub(begun)
		}
		x.now = x.now.Add(100 * time.Millisecond)
	}
	return first
}

func (x *world) want(t *testing.T, want ...string) {
	t.Helper()
	if strings.Join(x.changes, ", ") != strings.Join(want, ", ") {
		t.Errorf("changes %v; want %v", x.changes, want)
	}
}

var four = []string{"p0>d0", "p0>d1", "p1>d0", "p1>d1"}

// TestFault70SlowPair: a pair whose hand-offs take five times as long is found within a minute, also if it is the only one, and its end too.
// Nothing else is said to be slow.
func TestFault70SlowPair(t *testing.T) {
	for name, pairs := range map[string][]string{"of four": four, "the only one": {"p0>d0"}} {
		for _, every := range []time.Duration{200 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprint(name, " every ", every), func(t *testing.T) {
				x := newWorld(1)
				x.run(10*time.Minute, every, pairs, nil)
				x.want(t)
				x.factor = func(p, d string) float64 {
					if p == "p0" && d == "d0" {
						return 5
					}
					return 1
				}
				if found := x.run(10*time.Minute, every, pairs, nil); found > time.Minute {
					t.Errorf("found after %v", found)
				}
				if at := x.w.Troubled(); at == nil || !at("p0", "d0") || at("p1", "d0") || at("p0", "d1") {
					t.Error("it is not told which pair is slow, or more than that")
				}
				x.factor = func(string, string) float64 { return 1 }
				if ended := x.run(5*time.Minute, every, pairs, nil); ended > 2*time.Minute {
					t.Errorf("ended after %v", ended)
				}
				x.want(t, "p0>d0 true", "p0>d0 false")
				if x.lasted < 9*time.Minute || x.lasted > 12*time.Minute {
					t.Errorf("it is said to have lasted %v", x.lasted)
				}
				if x.w.Troubled() != nil {
					t.Error("a pair that is not slow any more is told")
				}
			})
		}
	}
}

// TestSlowFromTheStart: a pair that was never faster is found beside others.
func TestSlowFromTheStart(t *testing.T) {
	x := newWorld(2)
	x.factor = func(p, d string) float64 {
		if p+d == "p1d1" {
			return 8
		}
		return 1
	}
	if found := x.run(10*time.Minute, time.Second, four, nil); found > time.Minute {
		t.Errorf("found after %v", found)
	}
	x.want(t, "p1>d1 true")
}

// only has one pair take so many times as long.
func (x *world) only(pair string, times float64) {
	x.factor = func(p, d string) float64 {
		if p+">"+d == pair {
			return times
		}
		return 1
	}
}

// timesOf is how many times as long as usual a pair is said to take.
func (x *world) timesOf(pair string) float64 {
	for _, p := range x.w.Pairs(x.now) {
		if p.Prefill+">"+p.Decode == pair {
			return p.Times
		}
	}
	return 0
}

// TestSeenOfOne: while one pair is slow, its hand-offs are late, and what they take more is the path's. Where all pairs of an engine are slow, it is
// not the path.
func TestSeenOfOne(t *testing.T) {
	x := newWorld(14)
	x.run(5*time.Minute, time.Second, four, nil)
	x.only("p0>d0", 70)
	x.run(time.Minute, time.Second, four, nil)
	for pair, seen := range x.seen {
		if slow := pair == "p0>d0"; seen.Late != slow || (seen.Path > 100*time.Millisecond) != slow {
			t.Errorf("%s: %+v", pair, seen)
		}
	}
	x.factor = func(_, d string) float64 {
		if d == "d0" {
			return 70
		}
		return 1
	}
	x.run(2*time.Minute, time.Second, four, func(d string, tokens int) { x.w.Counted(x.now, d, tokens, tokens) })
	for pair, seen := range x.seen {
		if slow := strings.HasSuffix(pair, ">d0"); seen.Late != slow || seen.Path != 0 {
			t.Errorf("with a slow engine, %s: %+v", pair, seen)
		}
	}
}

// TestUsualBesideAFault: beside an engine that computes prompts, the other one's pairs are as usual, and what is usual for them stays.
func TestUsualBesideAFault(t *testing.T) {
	x := newWorld(15)
	counts := func(decode string, tokens int) { x.w.Counted(x.now, decode, tokens, tokens) }
	x.run(5*time.Minute, time.Second, four, counts)
	x.factor = func(_, d string) float64 {
		if d == "d1" {
			return 14
		}
		return 1
	}
	x.run(10*time.Minute, time.Second, four, func(decode string, tokens int) {
		held := tokens
		if decode == "d1" {
			held = 0
		}
		x.w.Counted(x.now, decode, tokens, held)
	})
	x.want(t, ">d1 true")
	for _, pair := range four {
		if got, want := x.timesOf(pair), x.factor("", pair[3:]); got < .6*want || got > 1.5*want {
			t.Errorf("%s takes %.1f times as long; want about %v", pair, got, want)
		}
	}
}

// TestUsualDoesNotGrowWithTheFault: a pair that takes 70 times as long is said to take about that, also where what is usual was known for half a
// minute only, and as long as the fault lasts.
func TestUsualDoesNotGrowWithTheFault(t *testing.T) {
	for name, pairs := range map[string][]string{"of four": four, "the only one": {"p0>d0"}} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(10)
			x.run(30*time.Second, 500*time.Millisecond, pairs, nil)
			x.only("p0>d0", 70)
			x.run(2*time.Minute, 500*time.Millisecond, pairs, nil)
			soon := x.timesOf("p0>d0")
			x.run(50*time.Minute, 500*time.Millisecond, pairs, nil)
			if late := x.timesOf("p0>d0"); soon < 50 || soon > 90 || late < 50 || late > 90 {
				t.Errorf("it is said to take %.1f and later %.1f times as long; want about 70", soon, late)
			}
			x.want(t, "p0>d0 true")
		})
	}
}

// TestLastingChange: a pair that stays slow is not slow any more after an hour if no other pair shows that it could be faster; what it takes then is
// usual. Beside faster pairs it stays slow.
func TestLastingChange(t *testing.T) {
	x := newWorld(11)
	x.run(10*time.Minute, time.Second, []string{"p0>d0"}, nil)
	x.only("p0>d0", 5)
	x.run(55*time.Minute, time.Second, []string{"p0>d0"}, nil)
	x.want(t, "p0>d0 true")
	x.run(2*time.Hour, time.Second, []string{"p0>d0"}, nil)
	x.want(t, "p0>d0 true", "p0>d0 false")
	if got := x.timesOf("p0>d0"); got < .5 || got > 1.5 {
		t.Errorf("it takes %.1f times as long as usual; want about 1", got)
	}

	x = newWorld(12)
	x.run(10*time.Minute, time.Second, four, nil)
	x.only("p0>d0", 5)
	x.run(3*time.Hour, time.Second, four, nil)
	x.want(t, "p0>d0 true")
	x.only("", 1)
	x.run(5*time.Minute, time.Second, four, nil)
	x.want(t, "p0>d0 true", "p0>d0 false")
}

// TestSlowWithLittleTraffic: the end of a slow time is seen too where few hand-offs have shown what is usual.
func TestSlowWithLittleTraffic(t *testing.T) {
	x := newWorld(13)
	x.run(3*time.Minute, 7*time.Second, []string{"p0>d0"}, nil)
	x.only("p0>d0", 10)
	x.run(30*time.Minute, 7*time.Second, []string{"p0>d0"}, nil)
	x.only("", 1)
	x.run(5*time.Minute, 7*time.Second, []string{"p0>d0"}, nil)
	x.want(t, "p0>d0 true", "p0>d0 false")
}

// TestBusyEngines: where all pairs become slower together, as engines are busy, none is said to be slow; nor for single slow hand-offs, nor
// where what a pair takes more is nothing that a client would notice.
func TestBusyEngines(t *testing.T) {
	x := newWorld(3)
	x.run(10*time.Minute, time.Second, four, nil)
	x.factor = func(string, string) float64 { return 6 }
	x.run(30*time.Minute, time.Second, four, nil)
	x.want(t)
	x.factor = func(p, d string) float64 { // that is usual now
		if p+d == "p0d0" {
			return 6 * 5
		}
		return 6
	}
	x.run(2*time.Minute, time.Second, four, nil)
	if got := x.timesOf("p0>d0"); got < 4 || got > 6 {
		t.Errorf("beside busy pairs it takes %.1f times as long; want about 5", got)
	}
	x.want(t, "p0>d0 true")

	x = newWorld(4)
	x.factor = func(string, string) float64 {
		if x.r.IntN(50) == 0 {
			return 20
		}
		return 1
	}
	x.run(time.Hour, time.Second, four, nil)
	x.want(t)

	x = newWorld(5)
	fast := func(p, d string) float64 { return .02 }
	x.factor = fast
	x.run(10*time.Minute, time.Second, four, nil)
	x.factor = func(p, d string) float64 {
		if p+d == "p0d0" {
			return .2
		}
		return fast(p, d)
	}
	x.run(5*time.Minute, time.Second, four, nil)
	x.want(t)
}

// TestFault71Recompute: an engine that computes what it should receive is found within a minute, by its own count, by the plane, or by time
// where it does not count. Its pairs are not blamed.
func TestFault71Recompute(t *testing.T) {
	for _, by := range []By{ByCount, ByTransfer, ByTime} {
		for _, every := range []time.Duration{200 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprint(by, " every ", every), func(t *testing.T) {
				x, broken := newWorld(6), false
				x.factor = func(p, d string) float64 {
					if broken && d == "d1" {
						return 14 // as long as computing
					}
					return 1
				}
				also := func(decode string, tokens int) {
					recomputes := broken && decode == "d1"
					switch {
					case by == ByTransfer && recomputes:
						x.w.Answered(x.now, decode)
					case by == ByCount && recomputes:
						x.w.Counted(x.now, decode, tokens, x.r.IntN(tokens/3))
					case by != ByTime:
						x.w.Counted(x.now, decode, tokens, tokens-x.r.IntN(16))
					}
				}
				x.run(10*time.Minute, every, four, also)
				x.want(t)
				broken = true
				if found := x.run(5*time.Minute, every, four, also); found > time.Minute {
					t.Errorf("found after %v", found)
				}
				got := x.w.Engine("d1")
				for sign, n := range got.Prompts {
					if (n > 0) != (By(sign) == by) {
						t.Errorf("%d prompts were seen by %v", n, By(sign))
					}
				}
				broken = false
				if ended := x.run(5*time.Minute, every, four, also); ended > 2*time.Minute {
					t.Errorf("ended after %v", ended)
				}
				if by == ByTime { // a pair may be slow before all are
					x.changes = slices.DeleteFunc(x.changes, func(c string) bool { return !strings.HasPrefix(c, ">") })
				}
				x.want(t, ">d1 true", ">d1 false")
				for _, p := range x.w.Pairs(x.now) {
					if p.Slow {
						t.Errorf("%s to %s is said to be slow", p.Prefill, p.Decode)
					}
				}
				if got := x.w.Engine("d0"); got.Prompts != [Signs]uint64{} {
					t.Errorf("d0 is said to have computed %v prompts", got.Prompts)
				}
			})
		}
	}
}

// TestShortPrompts: the rest of a block that is computed again is nothing to report.
func TestShortPrompts(t *testing.T) {
	x := newWorld(8)
	x.run(5*time.Minute, time.Second, four, func(decode string, _ int) { x.w.Counted(x.now, decode, 100, 0) })
	x.want(t)
}

// TestForget: nothing is kept of engines that are gone, and nothing is held against those without hand-offs.
func TestForget(t *testing.T) {
	x := newWorld(9)
	bad := func(decode string, tokens int) { x.w.Counted(x.now, decode, tokens, 0) }
	x.run(2*time.Minute, time.Second, []string{"p0>d0", "p0>d1"}, bad)
	if at := x.w.Troubled(); at == nil || !at("any", "d0") || at("p0", "d2") {
		t.Error("it is not told which engines compute, or more than that")
	}
	x.run(6*time.Minute, time.Second, nil, nil)
	x.want(t, ">d0 true", ">d1 true", ">d0 false", ">d1 false")
	if len(x.w.Pairs(x.now)) != 0 {
		t.Errorf("pairs %v", x.w.Pairs(x.now))
	}
	x.w.Forget("p0")
	x.w.Forget("d0")
	if len(x.w.pairs) != 0 || x.w.Engine("d0") != nil || x.w.Engine("d1") == nil {
		t.Errorf("%d pairs, %v, %v", len(x.w.pairs), x.w.Engine("d0"), x.w.Engine("d1"))
	}
}

func BenchmarkFirstToken(b *testing.B) {
	w, at := New(), time.Unix(1000, 0)
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(time.Millisecond)
		w.FirstToken(at, HandOff{Model: "m", Prefill: "p", Decode: "d", Tokens: 1000, Took: 10 * time.Millisecond})
	}
}

// TestEndsWithFewHandOffs: that a pair is not slow any more, and that an engine does not compute prompts any more, is seen too where hand-offs have become
// so few that nothing would be said to begin by them.
func TestEndsWithFewHandOffs(t *testing.T) {
	x := newWorld(16)
	x.run(10*time.Minute, time.Second, four, nil)
	x.only("p0>d0", 10)
	x.run(5*time.Minute, time.Second, four, nil)
	x.run(15*time.Minute, 20*time.Second, four, nil)
	x.want(t, "p0>d0 true")
	x.only("", 1)
	x.run(10*time.Minute, 20*time.Second, four, nil)
	x.want(t, "p0>d0 true", "p0>d0 false")

	x = newWorld(17)
	held := 0
	counts := func(decode string, tokens int) {
		if decode == "d0" {
			x.w.Counted(x.now, decode, tokens, held*tokens)
		} else {
			x.w.Counted(x.now, decode, tokens, tokens)
		}
	}
	pairs := []string{"p0>d0", "p0>d1"}
	x.run(5*time.Minute, time.Second, pairs, counts)
	x.run(15*time.Minute, 20*time.Second, pairs, counts)
	x.want(t, ">d0 true")
	held = 1
	x.run(10*time.Minute, 20*time.Second, pairs, counts)
	x.want(t, ">d0 true", ">d0 false")
}

// TestSlowBesideRecomputing: of a pair that is slow from the start, beside no pair that is sound, it is said too how many times as long it takes.
func TestSlowBesideRecomputing(t *testing.T) {
	x := newWorld(18)
	counts := func(decode string, tokens int) {
		x.w.Counted(x.now, decode, tokens, map[string]int{"d0": tokens, "d1": 0}[decode])
	}
	x.run(2*time.Minute, time.Second, []string{"p0>d1"}, counts)
	x.only("p0>d0", 10)
	x.run(5*time.Minute, time.Second, []string{"p0>d0", "p0>d1"}, counts)
	x.want(t, ">d1 true", "p0>d0 true")
	if got := x.timesOf("p0>d0"); got < 6 || got > 15 {
		t.Errorf("it is said to take %.1f times as long; want about 10", got)
	}
}
