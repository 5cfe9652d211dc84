package fair

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/router/admission"
	"pdrouter/router/reason"
)

// workload is long and short sessions in front of one queue: sessions with names of one tenant, or two tenants without sessions.
type workload struct {
	name    string
	tenants bool
}

// session is a conversation: each turn's prompt has all that was said before.
type session struct {
	id      uint64
	short   bool
	turns   int // that are left
	context int // tokens of what was said
	engine  int // that has it in its cache
}

// turn is one request.
type turn struct {
	of      *session
	at      time.Duration
	fresh   int // tokens of the prompt that are not in a cache
	seq     *sim.ModelSeq
	waiter  *admission.Waiter
	slot    admission.Slot
	started bool // it has its first token
}

// outcome is what a run has come to, of the turns that came after the warm-up.
type outcome struct {
	short, long load.Quantiles // time to the first token
	tokens      float64        // that were computed and given out, a second
	done        int            // turns
}

// world is the engines, the queue and the clients, in virtual time.
type world struct {
	workload
	until   time.Duration // when what counts ends
	fleet   *sim.ModelFleet
	queue   admission.Queue
	random  *rand.Rand
	now     time.Duration
	coming  turns
	waiting []*turn
	under   map[*sim.ModelSeq]*turn
	busy    [engines]int
	drawn   uint64
	open    int // turns that are counted and have no first token yet

	ttft   [2][]time.Duration // of long and short sessions
	tokens int
	done   int
}

// turns are those that come, the next one first.
type turns []*turn

func (t turns) Len() int           { return len(t) }
func (t turns) Less(i, j int) bool { return t[i].at < t[j].at }
func (t turns) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(x any)        { *t = append(*t, x.(*turn)) }
func (t *turns) Pop() any          { x := (*t)[len(*t)-1]; *t = (*t)[:len(*t)-1]; return x }

// capacity is the places of all engines.
type capacity struct{}

// Places implements admission.Capacity.
func (capacity) Places(int, int) int { return places }

// run serves a workload until each turn that came within the window, after the warm-up, has its first token.
func run(l workload, isFair bool, window time.Duration, seed uint64) (outcome, error) {
	c, err := sim.CostsOf(costs)
	if err != nil {
		return outcome{}, err
	}
	w := &world{workload: l, until: warmUp + window, fleet: sim.NewModelFleet(false, sim.ModelEngines(c, 0, engines, sim.ChunkBudget)...), random: rand.New(rand.NewPCG(seed, 0)), under: map[*sim.ModelSeq]*turn{}}
	w.queue.SetLimits(capacity{}, 1<<20)
	w.queue.SetOrder(isFair, time.Minute)
	for range longSessions {
		w.next(w.begin(false), time.Duration(w.random.Float64()*float64(10*think)))
	}
	for at := time.Duration(0); at < w.until; {
		at += time.Duration(w.random.ExpFloat64() / shortRate * float64(time.Second))
		w.next(w.begin(true), at)
	}
	for w.now < w.until || w.open > 0 {
		if err := w.step(); err != nil {
			return outcome{}, err
		}
	}
	return outcome{load.QuantilesOf(w.ttft[1]), load.QuantilesOf(w.ttft[0]), float64(w.tokens) / window.Seconds(), w.done}, nil
}

// begin has a session that has said nothing yet.
func (w *world) begin(short bool) *session {
	w.drawn++
	s := &session{id: w.drawn, short: short, turns: 1 + w.random.IntN(3), engine: int(w.drawn) % engines}
	if !short {
		s.turns = 5 + w.random.IntN(16)
	}
	return s
}

// next has the session's next turn come at that time.
func (w *world) next(s *session, at time.Duration) {
	t := &turn{of: s, at: at, fresh: 200 + w.random.IntN(600)}
	answer := 32 + w.random.IntN(96)
	if !s.short {
		t.fresh, answer = 500+w.random.IntN(2500), 128+w.random.IntN(384)
		if s.context == 0 {
			t.fresh += 4000 + w.random.IntN(8000) // a system prompt and files
		}
	}
	t.seq = &sim.ModelSeq{Prompt: s.context + t.fresh, Answer: answer}
	t.seq.Runs = []sim.Run{{ID: s.id, Blocks: t.seq.Prompt / sim.BlockTokens}}
	s.turns--
	heap.Push(&w.coming, t)
}

// step lets the next thing happen: a turn comes, or an engine says something.
func (w *world) step() error {
	at, any := w.fleet.Next()
	if len(w.coming) > 0 && (!any || w.coming[0].at <= at) {
		t := heap.Pop(&w.coming).(*turn)
		if err := w.hear(w.fleet.Advance(t.at)); err != nil {
			return err
		}
		w.now = t.at
		return w.ask(t)
	}
	if !any {
		return fmt.Errorf("bench: fair: nothing happens at %v, and %d turns wait", w.now, len(w.waiting))
	}
	w.now = at
	return w.hear(w.fleet.Advance(at))
}

// wall is the virtual time as the queue has it.
func (w *world) wall() time.Time { return time.Unix(0, 0).Add(w.now) }

// counted reports whether what is at that time counts.
func (w *world) counted(at time.Duration) bool { return at >= warmUp && at < w.until }

// ask has a turn want a place.
func (w *world) ask(t *turn) error {
	if w.counted(t.at) {
		w.open++
	}
	r := admission.Request{Arrived: w.wall(), Prompt: t.seq.Prompt, Session: t.of.id}
	if w.tenants {
		r.Tenant, r.Session = "batch", 0
		if t.of.short {
			r.Tenant = "chat"
		}
	}
	if slot, ok := w.queue.TryAcquire(r, w.wall()); ok {
		return w.serve(t, slot)
	}
	got, waiter := w.queue.Enqueue(r, w.wall())
	if waiter == nil {
		return fmt.Errorf("bench: fair: the queue answered %v; want it to let the turn wait", got.Why)
	}
	t.waiter = waiter
	w.waiting = append(w.waiting, t)
	return nil
}

// serve gives a turn to the engine that has its session's cache. A first turn goes to the engine with the fewest.
func (w *world) serve(t *turn, slot admission.Slot) error {
	if t.slot = slot; t.of.context == 0 {
		for i := range w.busy {
			if w.busy[i] < w.busy[t.of.engine] {
				t.of.engine = i
			}
		}
	}
	w.busy[t.of.engine]++
	w.under[t.seq] = t
	return w.fleet.Submit(t.of.engine, t.seq)
}

// hear notes tokens. A turn that has ended gives its place to another one.
func (w *world) hear(told []sim.ModelToken) error {
	for _, k := range told {
		t := w.under[k.Seq]
		if k.Err != nil {
			return k.Err
		}
		if !t.started {
			if t.started = true; w.counted(t.at) {
				w.open--
				kind := 0
				if t.of.short {
					kind = 1
				}
				w.ttft[kind] = append(w.ttft[kind], k.At-t.at)
			}
		}
		if w.counted(k.At) {
			w.tokens++
		}
		if !k.Last {
			continue
		}
		if err := w.end(t, k.At); err != nil {
			return err
		}
	}
	return nil
}

// end ends a turn.
func (w *world) end(t *turn, at time.Duration) error {
	delete(w.under, t.seq)
	s := t.of
	w.busy[s.engine]--
	if w.counted(at) {
		w.tokens += t.fresh
		w.done++
	}
	w.now = max(w.now, at)
	t.slot.Release(admission.Used{Computed: t.fresh, Output: t.seq.Answer}, w.wall())
	if s.context = t.seq.Prompt + t.seq.Answer; s.turns == 0 && !s.short {
		s = w.begin(false)
	}
	if s.turns > 0 {
		w.next(s, at+time.Duration(w.random.ExpFloat64()*float64(think)))
	}
	kept := w.waiting[:0]
	var granted []*turn
	for _, o := range w.waiting {
		select {
		case got := <-o.waiter.Done():
			if got.Why != reason.None {
				return fmt.Errorf("bench: fair: a turn was refused: %v", got.Why)
			}
			o.slot, granted = got.Slot, append(granted, o)
		default:
			kept = append(kept, o)
		}
	}
	clear(w.waiting[len(kept):])
	w.waiting = kept
	for _, o := range granted {
		if err := w.serve(o, o.slot); err != nil {
			return err
		}
	}
	return nil
}
