package health

import (
	"math/rand/v2"
	"testing"
	"time"
)

// oracleBreaker is a breaker as its description says it, kept as a list of all that happened.
type oracleBreaker struct {
	rules  BreakerRules
	now    time.Time
	log    []bool // successes (true) and failures of the kind, since it closed; of either kind
	kinds  []FailureKind
	opened time.Time // zero: closed
	pause  time.Duration
	why    FailureKind
	streak int // openings
	shut   time.Time
	probes []time.Time // since it became half open
}

func (o *oracleBreaker) state() Circuit {
	switch {
	case o.opened.IsZero():
		return Closed
	case o.now.Sub(o.opened) < o.pause:
		return Open
	}
	return HalfOpen
}

// row counts the failures of a kind at the end of the log.
func (o *oracleBreaker) row(s FailureKind) (n int) {
	for i := len(o.log) - 1; i >= 0; i-- {
		if o.kinds[i] != s {
			continue
		}
		if o.log[i] {
			break
		}
		n++
	}
	return n
}

func (o *oracleBreaker) open(s FailureKind) {
	o.pause = o.rules.Open
	for range o.streak {
		o.pause = min(o.rules.Longest, 2*o.pause)
	}
	o.opened, o.why, o.log, o.kinds, o.probes = o.now, s, nil, nil, nil
	o.streak++
}

func (o *oracleBreaker) saw(ok bool, s FailureKind) {
	switch o.state() {
	case Open:
		return
	case Closed:
		o.log, o.kinds = append(o.log, ok), append(o.kinds, s)
		if o.row(s) >= o.rules.Failures {
			if o.now.Sub(o.shut) > 2*o.rules.Longest {
				o.streak = 0
			}
			o.open(s)
		}
	case HalfOpen:
		if !ok {
			o.open(s)
		} else if s == o.why {
			o.opened, o.shut, o.log, o.kinds, o.probes = time.Time{}, o.now, nil, nil, nil
		}
	}
}

// take says whether one more is let through.
func (o *oracleBreaker) take() bool {
	switch o.state() {
	case Open:
		return false
	case Closed:
		return true
	}
	for _, at := range o.probes {
		if o.now.Sub(at) < o.rules.Open {
			return false
		}
	}
	o.probes = append(o.probes, o.now)
	return true
}

// TestBreakerIsItsOracle walks breakers at random, and checks each step.
func TestBreakerIsItsOracle(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 11))
		rules := BreakerRules{Failures: 1 + rng.IntN(5), Open: time.Second, Longest: time.Duration(1+rng.IntN(8)) * time.Second}
		now := time.Unix(1_000_000, 0)
		var b Breaker
		o := &oracleBreaker{rules: rules, now: now}
		opened := 0
		for step := range 400 {
			o.now = now
			what := rng.IntN(10)
			switch s := FailureKind(rng.IntN(int(signs))); {
			case what < 4:
				was := b.At(now)
				if out := b.Fail(s, now, rules, 0); out != (o.state() != Open && func() bool { o.saw(false, s); return o.state() == Open }()) {
					t.Fatalf("seed %d, step %d: failure in %v opened: %v", seed, step, was, out)
				} else if out {
					opened++
				}
			case what < 5:
				was := o.state()
				o.saw(true, s)
				if in := b.OK(s, now); in != (was == HalfOpen && o.state() == Closed) {
					t.Fatalf("seed %d, step %d: success in %v closed: %v", seed, step, was, in)
				}
			case what < 9:
				lets := b.Lets(now)
				if got, want := b.Take(now, rules), o.take(); got != want || lets != want {
					t.Fatalf("seed %d, step %d: in %v takes %v, lets %v; want %v", seed, step, o.state(), got, lets, want)
				}
			default:
				now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			}
			if o.now = now; b.At(now) != o.state() {
				t.Fatalf("seed %d, step %d: %v; want %v", seed, step, b.At(now), o.state())
			}
		}
		if rules.Failures == 1 && opened == 0 {
			t.Errorf("seed %d: never opened", seed)
		}
	}
}

// TestBreakerScript: the life of one, step by step.
func TestBreakerScript(t *testing.T) {
	rules := BreakerRules{Failures: 3, Open: 4 * time.Second, Longest: 10 * time.Second}
	start := time.Unix(1_000_000, 0)
	var b Breaker
	for i, row := range []struct {
		at   int // seconds
		do   string
		want bool
		then Circuit
	}{
		{0, "fail", false, Closed}, {0, "fail", false, Closed},
		{0, "ok", false, Closed}, // in a row, not in all
		{0, "fail", false, Closed}, {0, "fail stream", false, Closed}, {0, "fail", false, Closed},
		{1, "fail", true, Open}, {2, "take", false, Open}, {2, "ok", false, Open}, {3, "fail", false, Open},
		{5, "take", true, HalfOpen}, {5, "take", false, HalfOpen}, // one probe
		{6, "fail", true, Open}, {13, "take", false, Open}, // for twice as long
		{14, "take", true, HalfOpen},
		{18, "take", true, HalfOpen}, // a probe that says nothing for so long is no probe
		{18, "fail", true, Open}, {27, "take", false, Open},
		{28, "take", true, HalfOpen}, {28, "ok stream", false, HalfOpen}, {28, "ok", true, Closed},
		{28, "take", true, Closed}, {28, "take", true, Closed},
		{29, "fail", false, Closed}, {29, "fail", false, Closed}, {29, "fail", true, Open},
		{38, "take", false, Open}, {39, "ok", true, Closed}, // the longest; that it closed for a moment counts for nothing
		{100, "fail stream", false, Closed}, {100, "fail stream", false, Closed}, {100, "ok", false, Closed},
		{100, "fail stream", true, Open}, // first tokens say nothing of streams
		{104, "ok stream", true, Closed}, // closed for long: it begins anew
	} {
		now := start.Add(time.Duration(row.at) * time.Second)
		got := false
		switch row.do {
		case "fail":
			got = b.Fail(AnswerFailed, now, rules, 0)
		case "fail stream":
			got = b.Fail(StreamFailed, now, rules, 0)
		case "ok":
			got = b.OK(AnswerFailed, now)
		case "ok stream":
			got = b.OK(StreamFailed, now)
		case "take":
			got = b.Take(now, rules)
		}
		if got != row.want || b.At(now) != row.then {
			t.Fatalf("row %d, %s at %d s: %v, then %v; want %v, then %v", i, row.do, row.at, got, b.At(now), row.want, row.then)
		}
	}
}

// TestBreakerChance: chance makes the time shorter by a quarter at most, so that not all are probed at once.
func TestBreakerChance(t *testing.T) {
	rules := BreakerRules{Failures: 1, Open: 4 * time.Second, Longest: 10 * time.Second}
	now := time.Unix(1_000_000, 0)
	for _, row := range []struct {
		chance float64
		want   time.Duration
	}{{0, 4 * time.Second}, {0.5, 3500 * time.Millisecond}, {1, 3 * time.Second}} {
		var b Breaker
		if b.Fail(AnswerFailed, now, rules, row.chance); b.until.Sub(now) != row.want {
			t.Errorf("chance %g: open for %v; want %v", row.chance, b.until.Sub(now), row.want)
		}
	}
}

// TestWholeAnswerCloses has traffic that is not streamed close a circuit that streams have opened: of a whole answer nothing
// can break any more.
func TestWholeAnswerCloses(t *testing.T) {
	var v State
	rules := BreakerRules{Failures: 5, Open: 5 * time.Second, Longest: time.Minute}
	now := time.Unix(1000, 0)
	for range rules.Failures {
		v.Failed(StreamFailed, now, rules)
	}
	now = now.Add(rules.Open + time.Second)
	if may, _ := v.Take(now, rules); !may {
		t.Fatal("no probe is let through")
	}
	if v.Succeeded(AnswerFailed, now) {
		t.Error("the beginning of a stream closes it")
	}
	if !v.SucceededWhole(now) || v.Standing(now, 0).Circuit != Closed {
		t.Error("a whole answer does not close it")
	}
}
