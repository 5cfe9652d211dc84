package router

import (
	"math/rand/v2"
	"testing"
	"time"
)

// oracleBreaker is a breaker as its description says it, kept as a list of all that happened.
type oracleBreaker struct {
	rules  breakerRules
	now    time.Time
	log    []bool // successes (true) and failures of the kind, since it closed; of either kind
	kinds  []sign
	opened time.Time // zero: closed
	pause  time.Duration
	why    sign
	streak int // openings
	shut   time.Time
	probes []time.Time // since it became half open
}

func (o *oracleBreaker) state() circuit {
	switch {
	case o.opened.IsZero():
		return circuitClosed
	case o.now.Sub(o.opened) < o.pause:
		return circuitOpen
	}
	return circuitHalfOpen
}

// row counts the failures of a kind at the end of the log.
func (o *oracleBreaker) row(s sign) (n int) {
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

func (o *oracleBreaker) open(s sign) {
	o.pause = o.rules.open
	for range o.streak {
		o.pause = min(o.rules.longest, 2*o.pause)
	}
	o.opened, o.why, o.log, o.kinds, o.probes = o.now, s, nil, nil, nil
	o.streak++
}

func (o *oracleBreaker) saw(ok bool, s sign) {
	switch o.state() {
	case circuitOpen:
		return
	case circuitClosed:
		o.log, o.kinds = append(o.log, ok), append(o.kinds, s)
		if o.row(s) >= o.rules.failures {
			if o.now.Sub(o.shut) > 2*o.rules.longest {
				o.streak = 0
			}
			o.open(s)
		}
	case circuitHalfOpen:
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
	case circuitOpen:
		return false
	case circuitClosed:
		return true
	}
	for _, at := range o.probes {
		if o.now.Sub(at) < o.rules.open {
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
		rules := breakerRules{failures: 1 + rng.IntN(5), open: time.Second, longest: time.Duration(1+rng.IntN(8)) * time.Second}
		now := time.Unix(1_000_000, 0)
		var b breaker
		o := &oracleBreaker{rules: rules, now: now}
		opened := 0
		for step := range 400 {
			o.now = now
			what := rng.IntN(10)
			switch s := sign(rng.IntN(int(signs))); {
			case what < 4:
				was := b.at(now)
				if out := b.fail(s, now, rules, 0); out != (o.state() != circuitOpen && func() bool { o.saw(false, s); return o.state() == circuitOpen }()) {
					t.Fatalf("seed %d, step %d: failure in %v opened: %v", seed, step, was, out)
				} else if out {
					opened++
				}
			case what < 5:
				was := o.state()
				o.saw(true, s)
				if in := b.ok(s, now); in != (was == circuitHalfOpen && o.state() == circuitClosed) {
					t.Fatalf("seed %d, step %d: success in %v closed: %v", seed, step, was, in)
				}
			case what < 9:
				lets := b.lets(now)
				if got, want := b.take(now, rules), o.take(); got != want || lets != want {
					t.Fatalf("seed %d, step %d: in %v takes %v, lets %v; want %v", seed, step, o.state(), got, lets, want)
				}
			default:
				now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			}
			if o.now = now; b.at(now) != o.state() {
				t.Fatalf("seed %d, step %d: %v; want %v", seed, step, b.at(now), o.state())
			}
		}
		if rules.failures == 1 && opened == 0 {
			t.Errorf("seed %d: never opened", seed)
		}
	}
}

// TestBreakerScript: the life of one, step by step.
func TestBreakerScript(t *testing.T) {
	rules := breakerRules{failures: 3, open: 4 * time.Second, longest: 10 * time.Second}
	start := time.Unix(1_000_000, 0)
	var b breaker
	for i, row := range []struct {
		at   int // seconds
		do   string
		want bool
		then circuit
	}{
		{0, "fail", false, circuitClosed}, {0, "fail", false, circuitClosed},
		{0, "ok", false, circuitClosed}, // in a row, not in all
		{0, "fail", false, circuitClosed}, {0, "fail stream", false, circuitClosed}, {0, "fail", false, circuitClosed},
		{1, "fail", true, circuitOpen}, {2, "take", false, circuitOpen}, {2, "ok", false, circuitOpen}, {3, "fail", false, circuitOpen},
		{5, "take", true, circuitHalfOpen}, {5, "take", false, circuitHalfOpen}, // one probe
		{6, "fail", true, circuitOpen}, {13, "take", false, circuitOpen}, // for twice as long
		{14, "take", true, circuitHalfOpen},
		{18, "take", true, circuitHalfOpen}, // a probe that says nothing for so long is no probe
		{18, "fail", true, circuitOpen}, {27, "take", false, circuitOpen},
		{28, "take", true, circuitHalfOpen}, {28, "ok stream", false, circuitHalfOpen}, {28, "ok", true, circuitClosed},
		{28, "take", true, circuitClosed}, {28, "take", true, circuitClosed},
		{29, "fail", false, circuitClosed}, {29, "fail", false, circuitClosed}, {29, "fail", true, circuitOpen},
		{38, "take", false, circuitOpen}, {39, "ok", true, circuitClosed}, // the longest; that it closed for a moment counts for nothing
		{100, "fail stream", false, circuitClosed}, {100, "fail stream", false, circuitClosed}, {100, "ok", false, circuitClosed},
		{100, "fail stream", true, circuitOpen}, // first tokens say nothing of streams
		{104, "ok stream", true, circuitClosed}, // closed for long: it begins anew
	} {
		now := start.Add(time.Duration(row.at) * time.Second)
		got := false
		switch row.do {
		case "fail":
			got = b.fail(signAnswer, now, rules, 0)
		case "fail stream":
			got = b.fail(signStream, now, rules, 0)
		case "ok":
			got = b.ok(signAnswer, now)
		case "ok stream":
			got = b.ok(signStream, now)
		case "take":
			got = b.take(now, rules)
		}
		if got != row.want || b.at(now) != row.then {
			t.Fatalf("row %d, %s at %d s: %v, then %v; want %v, then %v", i, row.do, row.at, got, b.at(now), row.want, row.then)
		}
	}
}

// TestBreakerChance: chance makes the time shorter by a quarter at most, so that not all are probed at once.
func TestBreakerChance(t *testing.T) {
	rules := breakerRules{failures: 1, open: 4 * time.Second, longest: 10 * time.Second}
	now := time.Unix(1_000_000, 0)
	for _, row := range []struct {
		chance float64
		want   time.Duration
	}{{0, 4 * time.Second}, {0.5, 3500 * time.Millisecond}, {1, 3 * time.Second}} {
		var b breaker
		if b.fail(signAnswer, now, rules, row.chance); b.until.Sub(now) != row.want {
			t.Errorf("chance %g: open for %v; want %v", row.chance, b.until.Sub(now), row.want)
		}
	}
}

// TestWholeAnswerCloses has traffic that is not streamed close a circuit that streams have opened: of a whole answer nothing
// can break any more.
func TestWholeAnswerCloses(t *testing.T) {
	var v vitals
	rules := breakerRules{failures: 5, open: 5 * time.Second, longest: time.Minute}
	now := time.Unix(1000, 0)
	for range rules.failures {
		v.bad(signStream, now, rules)
	}
	now = now.Add(rules.open + time.Second)
	if may, _ := v.take(now, rules); !may {
		t.Fatal("no probe is let through")
	}
	if v.good(signAnswer, now) {
		t.Error("the beginning of a stream closes it")
	}
	if !v.whole(now) || v.stand(now, 0).circuit != circuitClosed {
		t.Error("a whole answer does not close it")
	}
}
