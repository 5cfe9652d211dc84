package scaling

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var objective = Objective{TTFT: 1, ITL: .05}

func TestLoads(t *testing.T) {
	ready := func(e Engine) []Engine { return []Engine{e, {Replica: "b"}} }
	for _, c := range []struct {
		name            string
		prefill, decode []Engine
		queue           Queue
		p, d            float64 // saturation
		backlog         float64
	}{
		{name: "idle", prefill: ready(Engine{}), decode: ready(Engine{})},
		{name: "prompts", prefill: ready(Engine{Prompts: 1.5, Wait: .5}), decode: ready(Engine{}), p: .75, backlog: .25},
		{name: "backlog", prefill: ready(Engine{Prompts: 1, Wait: 8}), decode: ready(Engine{}), p: 4, backlog: 4},
		{name: "tokens", prefill: ready(Engine{}), decode: ready(Engine{Streams: 9, ITL: .03, IdleITL: .01}), d: .25},
		{name: "one stream alone", prefill: ready(Engine{}), decode: ready(Engine{Streams: 1, ITL: .02, IdleITL: .02})},
		{name: "no engine can keep it", prefill: ready(Engine{}), decode: ready(Engine{Streams: 2, ITL: .07, IdleITL: .06}), d: 1},
		{name: "KV", prefill: ready(Engine{}), decode: ready(Engine{Streams: 9, ITL: .011, IdleITL: .01, KV: .9}), d: .5},
		{name: "the queue waits for prefill", prefill: ready(Engine{Prompts: 1}), decode: ready(Engine{Streams: 2, ITL: .011, IdleITL: .01, KV: .18}), queue: Queue{8, .5}, p: 2, d: .1, backlog: 2},
		{name: "the queue waits for decode", prefill: ready(Engine{}), decode: ready(Engine{Streams: 4, KV: .9}), queue: Queue{8, .1}, p: .4, d: 1.5, backlog: .4},
		{name: "decode does both", decode: ready(Engine{Prompts: .5, Streams: 4, KV: .09}), queue: Queue{4, .5}, d: 1, backlog: 1},
		{name: "two ranks", prefill: []Engine{{Replica: "a", Prompts: 1}, {Replica: "a", Prompts: .5}}, decode: ready(Engine{}), p: .75},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d := Loads(c.prefill, c.decode, c.queue, objective)
			computes := p
			if c.prefill == nil {
				computes = d
			}
			gotP, _ := p.Saturation()
			gotD, _ := d.Saturation()
			if math.Abs(gotP-c.p) > 1e-9 || math.Abs(gotD-c.d) > 1e-9 || math.Abs(computes.Backlog-c.backlog) > 1e-9 {
				t.Errorf("saturation %v and %v, backlog %v s; want %v, %v, %v", gotP, gotD, computes.Backlog, c.p, c.d, c.backlog)
			}
		})
	}
	if _, known := (Load{Out: 2, Work: 1}).Saturation(); known {
		t.Error("a role without an engine that serves has a saturation")
	}
}

func TestReplicas(t *testing.T) {
	for _, c := range []struct {
		name string
		load Load
		want int
	}{
		{"nothing there", Load{}, 1},
		{"idle", Load{Ready: 1}, 1},
		{"one less at a time", Load{Ready: 8}, 7},
		{"between", Load{Ready: 4, Work: 2}, 4},
		{"more", Load{Ready: 4, Work: 3}, 6},
		{"at most twice as many", Load{Ready: 4, Work: 400}, 8},
		{"those that start count", Load{Ready: 4, Starting: 2, Work: 3}, 6},
		{"none is given up while some start", Load{Ready: 4, Starting: 2}, 6},
		{"none is given up that would be asked for again", Load{Ready: 2, Work: .7}, 2},
		{"those that are out are replaced", Load{Ready: 3, Out: 1, Work: 2}, 5},
		{"those that are out are no reason", Load{Ready: 3, Out: 1, Work: 1.5}, 4},
		{"all are out", Load{Out: 3, Work: 9}, 3},
		{"all start", Load{Starting: 1, Work: 9}, 2},
	} {
		if got := new(Replicas).Step(0, c.load); got != c.want {
			t.Errorf("%s: %d are wanted, want %d", c.name, got, c.want)
		}
	}
}

// TestReplicasSmooth: a burst of a few seconds asks for nothing, one of a minute does, however often the load is seen.
func TestReplicasSmooth(t *testing.T) {
	for _, every := range []float64{1, 15} {
		var r Replicas
		r.Step(0, Load{Ready: 4, Work: 1.9})
		asked := math.Inf(1)
		for now := every; now <= 120; now += every {
			if r.Step(now, Load{Ready: 4, Work: 3}) > 4 {
				asked = min(asked, now)
			}
		}
		if asked < 10 || asked > 30 {
			t.Errorf("seen every %v s, more are asked for after %v s; want 10 to 30", every, asked)
		}
	}
}

// TestReplicasForget: what is not a number does not stay, nor what was seen before all engines were gone.
func TestReplicasForget(t *testing.T) {
	var r Replicas
	r.Step(0, Load{Ready: 2, Work: math.NaN()})
	r.Step(1, Load{Ready: 2, Work: math.Inf(1)})
	if got := r.Step(600, Load{Ready: 4, Work: 3}); got != 6 {
		t.Errorf("%d are wanted, want 6", got)
	}
	r.Step(601, Load{})
	if got := r.Step(602, Load{Ready: 4, Work: 1.7}); got != 4 {
		t.Errorf("%d are wanted, want 4", got)
	}
}

// scaler has a modelled role the engines that are wanted: it looks every 15 s, removals too, and a new engine takes startSeconds to load its model.
type scaler struct {
	now      float64
	startsAt []float64 // when each engine starts; it works from then on
	replicas Replicas
	counts   []int // of engines
}

const startSeconds = 90

// state is an engine's; seen is false while it loads its model.
func (s *scaler) state(i int) (state State, seen bool) {
	if s.startsAt[i] > 0 && s.now < s.startsAt[i]+30 {
		state = Starting
	}
	return state, s.startsAt[i] <= s.now
}

// scale does what is wanted under a load. The last engine may go.
func (s *scaler) scale(l Load) {
	wanted := s.replicas.Step(s.now, l)
	if int(s.now)%15 != 0 {
		return
	}
	for len(s.startsAt) < wanted {
		s.startsAt = append(s.startsAt, s.now+startSeconds)
	}
	if n := len(s.startsAt) - 1; wanted <= n && s.startsAt[n] <= s.now {
		s.startsAt = s.startsAt[:n]
	}
	s.counts = append(s.counts, len(s.startsAt))
}

// role is a modelled one, under a load that comes at random.
type role interface {
	run(rate, seconds float64) (counts []int) // with so many requests a second; counts are of engines, every 15 s
	full(rate float64, engines int) float64   // the part that they are used
}

// prompting computes prompts of random length, each at the engine that is free first.
type prompting struct {
	scaler
	rand  *rand.Rand
	free  []float64
	given []float64 // decayed over 20 s
}

const promptSeconds = .3

func newPrompting(seed uint64, engines int) *prompting {
	return &prompting{scaler: scaler{startsAt: make([]float64, engines)}, rand: rand.New(rand.NewPCG(seed, 1)), free: make([]float64, engines), given: make([]float64, engines)}
}

func (f *prompting) full(rate float64, engines int) float64 {
	return rate * promptSeconds / float64(engines)
}

func (f *prompting) run(rate, seconds float64) []int {
	f.counts = nil
	next := f.now + f.rand.ExpFloat64()/rate
	for end := f.now + seconds; f.now < end; {
		f.now++
		for ; next < f.now; next += f.rand.ExpFloat64() / rate {
			best := -1
			for i := range f.free {
				if f.startsAt[i] <= next && (best < 0 || f.free[i] < f.free[best]) {
					best = i
				}
			}
			work := promptSeconds * (.5 + f.rand.Float64())
			f.free[best] = max(f.free[best], next) + work
			f.given[best] += work
		}
		var engines []Engine
		for i := range f.free {
			f.given[i] *= math.Exp(-1. / 20)
			if state, seen := f.state(i); seen {
				engines = append(engines, Engine{Replica: string(rune('a' + i)), State: state, Wait: max(0, f.free[i]-f.now), Prompts: f.given[i] / 20})
			}
		}
		p, _ := Loads(engines, []Engine{{}}, Queue{}, objective)
		f.scale(p)
		for len(f.free) < len(f.startsAt) {
			f.free, f.given = append(f.free, 0), append(f.given, 0)
		}
		f.free, f.given = f.free[:len(f.startsAt)], f.given[:len(f.startsAt)]
	}
	return f.counts
}

// answering gives answers of random length, each at the engine with the fewest streams. An engine that goes ends its streams first.
type answering struct {
	scaler
	rand    *rand.Rand
	streams [][]float64 // of each engine: the tokens that each of its streams has yet to say
}

const (
	idleITL   = .02    // seconds between the tokens of one stream alone
	streamITL = .00025 // seconds that each stream adds to that
	answer    = 400    // tokens in the mean
	held      = 3000   // tokens that a stream holds
	cache     = 600000 // tokens that an engine has room for
)

func newAnswering(seed uint64, engines int) *answering {
	return &answering{scaler: scaler{startsAt: make([]float64, engines)}, rand: rand.New(rand.NewPCG(seed, 2)), streams: make([][]float64, engines)}
}

func itlOf(streams int) float64 { return idleITL + streamITL*float64(streams) }

// full is the part of the tokens that engines can give within the objective that is asked of them.
func (f *answering) full(rate float64, engines int) float64 {
	most := (objective.ITL - idleITL) / streamITL // streams
	n := 0.0                                      // streams at each engine: as many as come while one lasts
	for range 100 {
		n = rate * answer * (idleITL + streamITL*n) / float64(engines)
	}
	return n / most
}

func (f *answering) run(rate, seconds float64) []int {
	f.counts = nil
	next := f.now + f.rand.ExpFloat64()/rate
	for end := f.now + seconds; f.now < end; {
		f.now++
		for ; next < f.now; next += f.rand.ExpFloat64() / rate {
			best := -1
			for i := range f.streams {
				if i < len(f.startsAt) && f.startsAt[i] <= next && (best < 0 || len(f.streams[i]) < len(f.streams[best])) {
					best = i
				}
			}
			f.streams[best] = append(f.streams[best], answer*(.25+1.5*f.rand.Float64()))
		}
		var engines []Engine
		for i, streams := range f.streams {
			itl := itlOf(len(streams))
			for k := range streams {
				streams[k] -= 1 / itl
			}
			f.streams[i] = slices.DeleteFunc(streams, func(left float64) bool { return left <= 0 })
			if i >= len(f.startsAt) {
				continue
			}
			if state, seen := f.state(i); seen {
				n := len(f.streams[i])
				engines = append(engines, Engine{Replica: string(rune('a' + i)), State: state, Streams: n, ITL: itlOf(n), IdleITL: itlOf(1), KV: float64(n*held) / cache})
			}
		}
		_, d := Loads([]Engine{{}}, engines, Queue{}, objective)
		f.scale(d)
		for len(f.streams) < len(f.startsAt) {
			f.streams = append(f.streams, nil)
		}
	}
	return f.counts
}

// turns counts how often a number that grew falls, or the reverse.
func turns(counts []int) (n int) {
	way := 0
	for i := 1; i < len(counts); i++ {
		switch d := counts[i] - counts[i-1]; {
		case d != 0 && way != 0 && (d > 0) != (way > 0):
			n++
			fallthrough
		case d != 0:
			way = d
		}
	}
	return n
}

// TestLoadSteps: after a load of four times as much, and after its end, the number of engines settles where their saturation is right, within two
// oscillations.
func TestLoadSteps(t *testing.T) {
	for seed := range uint64(20) {
		for name, of := range map[string]struct {
			role
			rates [3]float64
		}{
			"prefill": {newPrompting(seed, 3), [...]float64{4, 16, 4}},
			"decode":  {newAnswering(seed, 3), [...]float64{15, 60, 15}},
		} {
			of.run(of.rates[0], 600)
			for _, rate := range of.rates[1:] {
				counts := of.run(rate, 3600)
				used := of.full(rate, counts[len(counts)-1])
				if n := turns(counts); n > 4 || used < .3 || used > .6 {
					t.Errorf("%s, seed %d, rate %v: %d turns, %.2f of the engines is used: %v", name, seed, rate, n, used, slices.Compact(counts))
				}
				if late := counts[len(counts)/2:]; turns(late) > 2 {
					t.Errorf("%s, seed %d, rate %v: after half an hour still %v", name, seed, rate, slices.Compact(late))
				}
			}
		}
	}
}

// TestConstantLoad: at a constant load the number of engines does not go up and down.
func TestConstantLoad(t *testing.T) {
	for _, rate := range []float64{.5, 2, 4, 7, 20} {
		f := newPrompting(7, int(math.Ceil(rate*promptSeconds/aimedAt)))
		if counts := f.run(rate, 6*3600); turns(counts) > 2 {
			t.Errorf("prefill, rate %v: %d turns in six hours: %v", rate, turns(counts), slices.Compact(counts))
		}
	}
	for _, rate := range []float64{2, 8, 15, 30, 80} {
		f := newAnswering(7, 1)
		f.run(rate, 3600) // as many as it wants
		if counts := f.run(rate, 6*3600); turns(counts) > 2 {
			t.Errorf("decode, rate %v: %d turns in six hours: %v", rate, turns(counts), slices.Compact(counts))
		}
	}
}

func TestLatency(t *testing.T) {
	var l Latency
	if _, known := l.Quantile(5, .9); known {
		t.Error("there is a quantile of nothing")
	}
	for i := range 1000 {
		l.Add(float64(i)/50, float64(i+1)/500)
	}
	l.Add(20, math.NaN())
	if got, known := l.Quantile(20, .9); !known || got < 1.8 || got > 1.8*bucketFactor {
		t.Errorf("P90 %v; want 1.8 to %v", got, 1.8*bucketFactor)
	}
	l.Add(75, 1e9)
	l.Add(75, math.Inf(1))
	if got, _ := l.Quantile(75, .5); got < 15 {
		t.Errorf("after a minute without the earlier ones the median is %v", got)
	}
	if _, known := l.Quantile(200, .9); known {
		t.Error("there is a quantile of more than a minute ago")
	}
}
