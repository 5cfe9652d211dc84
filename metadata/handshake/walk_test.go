package handshake

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/metadata"
)

// walker does at random all that may happen to a registry, and keeps books of its own: lists that it searches whole.
type walker struct {
	p   *Registry
	cfg Config
	rng *rand.Rand

	mu     sync.Mutex
	called []metadata.Pair                // handshakes in the order they began
	ends   map[metadata.Pair][]chan error // of those that run, oldest first

	begun   []metadata.Pair // what called should be
	queue   []*walkJob
	flying  []*walkJob // forgotten ones too
	ready   map[metadata.Pair]bool
	stats   Stats
	waiters []*walkWaiter
	turn    uint64
	seq     int
}

type walkJob struct {
	pair    metadata.Pair
	weight  int
	seq     int
	waiters []*walkWaiter
	gone    bool // forgotten while it ran
}

type walkWaiter struct {
	w    *waiter
	told bool
	err  error
	turn uint64
}

func (o *walker) shake(_ context.Context, pair metadata.Pair) error {
	end := make(chan error)
	o.mu.Lock()
	o.called = append(o.called, pair)
	o.ends[pair] = append(o.ends[pair], end)
	o.mu.Unlock()
	return <-end
}

// room is the whole of the rule: how many of n places a job may take.
func (j *walkJob) room(n int) int {
	if len(j.waiters) == 0 && n > 1 {
		return n - max(1, n/4)
	}
	return n
}

func (o *walker) fits(j *walkJob) bool {
	total, p, d := 0, 0, 0
	for _, f := range o.flying {
		if f.pair == j.pair {
			return false // one handshake of a pair at a time
		}
		total++
		if f.pair.Prefill.Engine == j.pair.Prefill.Engine {
			p++
		}
		if f.pair.Decode.Engine == j.pair.Decode.Engine {
			d++
		}
	}
	return total < j.room(o.cfg.Concurrency) && p < j.room(o.cfg.PerEngine) && d < j.room(o.cfg.PerEngine)
}

func (o *walker) sorted() []*walkJob {
	return slices.SortedFunc(slices.Values(o.queue), func(a, b *walkJob) int {
		if n := len(b.waiters) - len(a.waiters); n != 0 {
			return n
		}
		if n := b.weight - a.weight; n != 0 {
			return n
		}
		return a.seq - b.seq
	})
}

// begin starts the first of all that fit, again and again.
func (o *walker) begin() {
	for {
		i := slices.IndexFunc(o.sorted(), o.fits)
		if i < 0 {
			return
		}
		j := o.sorted()[i]
		o.queue = slices.DeleteFunc(o.queue, func(k *walkJob) bool { return k == j })
		o.flying = append(o.flying, j)
		o.begun = append(o.begun, j.pair)
	}
}

func (o *walker) job(pair metadata.Pair) *walkJob {
	for _, j := range append(slices.Clone(o.queue), o.flying...) {
		if j.pair == pair && !j.gone {
			return j
		}
	}
	return nil
}

// ask is Start, or Wait if w is there. It returns the error that is due.
func (o *walker) ask(pair metadata.Pair, w *walkWaiter, weight int) error {
	if o.ready[pair] {
		if w != nil {
			w.told = true
		}
		return nil
	}
	j := o.job(pair)
	if j == nil {
		if len(o.unheld()) >= o.cfg.Queue {
			idle := slices.DeleteFunc(o.sorted(), func(j *walkJob) bool { return len(j.waiters) > 0 || o.held(j) })
			if w == nil || len(idle) == 0 {
				if w != nil {
					o.stats.Failed[FailedBusy]++
				}
				return ErrBusy
			}
			last := idle[len(idle)-1]
			o.queue = slices.DeleteFunc(o.queue, func(k *walkJob) bool { return k == last })
		}
		o.seq++
		j = &walkJob{pair: pair, weight: weight, seq: o.seq}
		o.queue = append(o.queue, j)
	}
	if w != nil {
		j.waiters = append(j.waiters, w)
	} else {
		j.weight = weight
	}
	o.begin()
	return nil
}

// held reports whether an earlier handshake of the pair has yet to return.
func (o *walker) held(j *walkJob) bool {
	return slices.ContainsFunc(o.flying, func(f *walkJob) bool { return f.pair == j.pair })
}

func (o *walker) unheld() []*walkJob {
	return slices.DeleteFunc(slices.Clone(o.queue), o.held)
}

func (o *walker) tell(j *walkJob, err error) {
	for _, w := range j.waiters {
		o.turn++
		w.told, w.err, w.turn = true, err, o.turn
	}
	j.waiters = nil
	switch {
	case err == nil:
		o.stats.Done++
		o.ready[j.pair] = true
	case errors.Is(err, ErrForgotten):
		o.stats.Failed[FailedForgotten]++
	case errors.Is(err, ErrClosed):
		o.stats.Failed[FailedClosed]++
	case errors.Is(err, context.DeadlineExceeded):
		o.stats.Failed[FailedTimeout]++
	default:
		o.stats.Failed[FailedOther]++
	}
}

// drop forgets what matches. Who is told first of two pairs is nobody's business, so turns are compared within a pair.
func (o *walker) drop(match func(metadata.Pair) bool, err error) {
	for pair := range o.ready {
		if match(pair) {
			delete(o.ready, pair)
		}
	}
	for _, j := range slices.Clone(o.queue) {
		if match(j.pair) {
			o.queue = slices.DeleteFunc(o.queue, func(k *walkJob) bool { return k == j })
			o.tell(j, err)
		}
	}
	for _, j := range o.flying {
		if match(j.pair) && !j.gone {
			j.gone = true
			o.tell(j, err)
		}
	}
}

// finish ends the i-th handshake that runs.
func (o *walker) finish(i int, err error) {
	j := o.flying[i]
	o.flying = slices.Delete(o.flying, i, i+1)
	o.mu.Lock()
	end := o.ends[j.pair][0]
	o.ends[j.pair] = o.ends[j.pair][1:]
	o.mu.Unlock()
	end <- err
	synctest.Wait()
	if !j.gone {
		o.tell(j, err)
	}
	o.begin()
}

// compare checks the registry against the books.
func (o *walker) compare() error {
	want := o.stats
	want.Ready, want.Queued, want.InFlight = len(o.ready), len(o.queue), len(o.flying)
	for _, j := range append(slices.Clone(o.queue), o.flying...) {
		want.Waiting += len(j.waiters)
	}
	got := o.p.Stats()
	got.Took = Took{}
	if got != want {
		return fmt.Errorf("stats %+v; want %+v", got, want)
	}
	o.mu.Lock()
	// Handshakes that began at one event run in goroutines of their own: their order is the registry's, not theirs.
	a, b := slices.Clone(o.called), slices.Clone(o.begun)
	o.called, o.begun = nil, nil
	o.mu.Unlock()
	order := func(x, y metadata.Pair) int {
		if x.String() < y.String() {
			return -1
		}
		return 1
	}
	slices.SortFunc(a, order)
	slices.SortFunc(b, order)
	if !slices.Equal(a, b) {
		return fmt.Errorf("handshakes of %v began; want %v", a, b)
	}
	last := map[metadata.Pair]uint64{}
	for _, w := range o.waiters {
		if told := len(w.w.done) == 1; told != w.told {
			return fmt.Errorf("a waiter is told: %t; want %t", told, w.told)
		}
		if !w.told {
			continue
		}
		err := <-w.w.done
		if !errors.Is(err, w.err) || w.err == nil && err != nil {
			return errors.New(fmt.Sprint("a waiter is told ", err, "; want ", w.err))
		}
		if w.w.job != nil {
			if w.w.turn <= last[w.w.job.pair] {
				return fmt.Errorf("waiters of %v are told out of order", w.w.job.pair)
			}
			last[w.w.job.pair] = w.w.turn
		}
	}
	o.waiters = slices.DeleteFunc(o.waiters, func(w *walkWaiter) bool { return w.told })
	for pair, ends := range o.ends {
		if len(ends) > 1 {
			return fmt.Errorf("%d handshakes of %v at once", len(ends), pair)
		}
	}
	return nil
}

var errWalk = errors.New("as told")

// step does one thing to the registry and to the books.
func (o *walker) step() (string, error) {
	run := func(side string) metadata.Incarnation {
		return metadata.Incarnation{Engine: fmt.Sprint(side, o.rng.IntN(4)), Generation: 1 + uint64(o.rng.IntN(2))}
	}
	pair := metadata.Pair{Prefill: run("p"), Decode: run("d")}
	match := func(got, want error) error {
		if (want == nil) != (got == nil) || want != nil && !errors.Is(got, want) {
			return errors.New(fmt.Sprint("got ", got, "; want ", want))
		}
		return nil
	}
	switch n := o.rng.IntN(20); {
	case n < 5:
		weight := o.rng.IntN(4)
		return "start", match(o.p.Start(pair, weight), o.ask(pair, nil, weight))
	case n < 10:
		w := &walkWaiter{w: &waiter{done: make(chan error, 1)}}
		err := o.ask(pair, w, 0)
		if err == nil {
			o.waiters = append(o.waiters, w)
		}
		return "wait", match(o.p.park(pair, w.w, 0), err)
	case n < 12 && len(o.waiters) > 0:
		i := o.rng.IntN(len(o.waiters))
		w := o.waiters[i]
		o.waiters = slices.Delete(o.waiters, i, i+1)
		j := o.job(w.w.job.pair)
		j.waiters = slices.DeleteFunc(j.waiters, func(k *walkWaiter) bool { return k == w })
		if !o.p.leave(w.w) {
			return "leave", errors.New("a waiter could not leave")
		}
		return "leave", nil
	case n < 13:
		o.p.Forget(pair.Prefill.Engine)
		o.drop(func(q metadata.Pair) bool { return q.Prefill.Engine == pair.Prefill.Engine }, ErrForgotten)
		o.begin()
		return "forget", nil
	case n < 14:
		o.p.Retire(pair.Decode)
		o.drop(func(q metadata.Pair) bool { return q.Decode.Engine == pair.Decode.Engine && q.Decode != pair.Decode }, ErrForgotten)
		o.begin()
		return "retire", nil
	case n < 15:
		o.p.ForgetPair(pair)
		o.drop(func(q metadata.Pair) bool { return q == pair }, ErrForgotten)
		o.begin()
		return "forget pair", nil
	case len(o.flying) > 0:
		o.finish(o.rng.IntN(len(o.flying)), []error{nil, nil, errWalk, context.DeadlineExceeded}[o.rng.IntN(4)])
		return "finish", nil
	}
	return "nothing", nil
}

// TestPairsWalk compares the registry with books that are kept by searching lists: who begins, who waits, who is told
// what, and that in the end nothing is left.
func TestPairsWalk(t *testing.T) {
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			o := &walker{rng: rng, ends: map[metadata.Pair][]chan error{}, ready: map[metadata.Pair]bool{},
				cfg: Config{Timeout: time.Hour, Concurrency: 1 + rng.IntN(10), PerEngine: 1 + rng.IntN(5), Queue: 1 + rng.IntN(20)}}
			var err error
			if o.p, err = New(o.cfg, o.shake); err != nil {
				t.Fatal(err)
			}
			for i := range 60 {
				what, err := o.step()
				synctest.Wait()
				if err == nil {
					err = o.compare()
				}
				if err != nil {
					t.Fatalf("seed %d, step %d, %s: %v", seed, i, what, err)
				}
			}
			closed := make(chan struct{})
			go func() { o.p.Close(); close(closed) }()
			synctest.Wait()
			o.drop(func(metadata.Pair) bool { return true }, ErrClosed)
			for len(o.flying) > 0 {
				o.finish(0, nil)
			}
			<-closed
			if err := o.compare(); err != nil {
				t.Fatalf("seed %d, closed: %v", seed, err)
			}
			if p := o.p; len(p.jobs)+len(p.ending)+len(p.queue.lines)+len(p.queue.open)+p.held+p.queue.n+len(o.waiters) != 0 {
				t.Fatalf("seed %d: something is left: %+v", seed, p.queue)
			}
		})
		if t.Failed() {
			return
		}
	}
}
