package kvplane

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pdrouter/metadata"
)

// world is a random walk over the pure core: one prefill and one decode engine, messages and writes that go wrong, and
// memory whose blocks hold tags instead of bytes. A freed block is given away at once, so that a late write shows.
type world struct {
	t         *testing.T
	seed      uint64
	rng       *rand.Rand
	now       time.Duration
	queue     walkQueue
	n         int
	producers []*producer
	consumers []*consumer
	pinc      metadata.Incarnation
	dinc      metadata.Incarnation
	dead      bool // P's process is killed
	deadAt    time.Duration
	proven    map[int]bool // ranks of D that know
	fences    bool         // the transport can fence
	silent    bool         // P is proven dead so late that the fence must do
	cuts      map[string]int
	barred    map[string]bool
	calm      bool // no more faults
	requests  map[TransferID]*request
	memory    []map[int32]*cell // D, by rank
	posted    map[string]int
	released  int
	failed    int
	landed    int
	byes      int
	lapsed    int
	history   []string
}

// cell is one block of D: who owns it, and what each producer has written into it.
type cell struct {
	owner TransferID
	tags  map[int]TransferID
}

type request struct {
	id      TransferID
	blocks  []int32 // the same ids on every rank of D
	d, p    *Aggregate
	offered bool
	held    bool // P's blocks are still this request's
	over    bool // D's blocks are given away
}

type walkStep struct {
	at time.Duration
	n  int
	do func()
}

type walkQueue []walkStep

func (q walkQueue) Len() int { return len(q) }
func (q walkQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q walkQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *walkQueue) Push(x any)   { *q = append(*q, x.(walkStep)) }
func (q *walkQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

func (w *world) after(d time.Duration, do func()) {
	w.n++
	heap.Push(&w.queue, walkStep{at: w.now + max(d, 1), n: w.n, do: do})
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%v ", w.now)+fmt.Sprintf(format, args...))
}

func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	for _, h := range w.history[max(0, len(w.history)-80):] {
		w.t.Log(h)
	}
	w.t.Fatalf("seed %d: "+format, append([]any{w.seed}, args...)...)
}

func (w *world) chance(percent int) bool { return !w.calm && w.rng.IntN(100) < percent }

func (w *world) some(limit time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(limit)) + 1)
}

func (w *world) related(p, d int) bool {
	return inSlice(p, d, len(w.producers), len(w.consumers))
}

// stepP and stepD give one rank an event and carry out what it wants. A peer's id is its rank and one.
func (w *world) stepP(rank int, e event) {
	if w.dead {
		return
	}
	e.at = w.now
	for _, x := range w.producers[rank].Step(e, nil) {
		w.note("P%d %s: %s peer %d seq %d %s %s", rank, e.kind, x.do, x.peer, x.seq, x.status.state, x.status.reason)
		switch x.do {
		case doStatus:
			w.message(func() {
				w.stepD(int(x.peer)-1, event{kind: evStatus, peer: peerID(rank + 1), seq: x.seq, msg: &message{status: x.status}})
			})
		case doBeatAck:
			lines := slices.Clone(x.beats)
			w.message(func() {
				w.stepD(int(x.peer)-1, event{kind: evBeatAck, peer: peerID(rank + 1), msg: &message{beats: lines}})
			})
		case doBye:
			w.byes++
			w.message(func() { w.stepD(int(x.peer)-1, event{kind: evBye, peer: peerID(rank + 1)}) })
		case doPost:
			w.write(rank, x)
		case doReport:
			w.reportP(rank, x)
		}
	}
	if at := w.producers[rank].timers.next(); at > 0 {
		w.after(at-w.now, func() { w.stepP(rank, event{kind: evTick}) })
	}
}

func (w *world) stepD(rank int, e event) {
	e.at = w.now
	c := w.consumers[rank]
	for _, x := range c.Step(e, nil) {
		w.note("D%d %s: %s peer %d seq %d %s %s", rank, e.kind, x.do, x.peer, x.seq, x.report, x.reason)
		floor := uint64(0)
		if s := c.sessions[x.peer]; s != nil {
			floor = s.floor
		}
		to := int(x.peer) - 1
		m := event{peer: peerID(rank + 1), inc: w.dinc, seq: x.seq, id: x.id}
		switch x.do {
		case doRegister:
			m.kind, m.msg = evRegister, &message{floor: floor, wait: 5 * time.Second}
			w.message(func() { w.stepP(to, m) })
		case doCancel:
			m.kind, m.msg = evCancel, &message{floor: floor}
			w.message(func() { w.stepP(to, m) })
		case doFloor:
			m.kind, m.msg = evFloor, &message{floor: floor, settled: []uint64{x.seq}}
			w.message(func() { w.stepP(to, m) })
		case doBeat:
			m.kind, m.msg = evBeat, &message{floor: floor, beats: slices.Clone(x.beats)}
			w.message(func() { w.stepP(to, m) })
		case doDrain:
			id, peer, seq := x.id, x.peer, x.seq
			w.after(1, func() { w.stepD(rank, event{kind: evDrained, id: id, peer: peer, seq: seq}) })
		case doFence:
			w.fence(rank, x.peer)
		case doAdmit:
			w.barred[way(to, rank)] = false
		case doReport:
			w.reportD(rank, x)
		}
	}
	if at := c.timers.next(); at > 0 {
		w.after(at-w.now, func() { w.stepD(rank, event{kind: evTick}) })
	}
}

// way names the direction from a rank of P to a rank of D.
func way(from, to int) string { return fmt.Sprintf("P%d D%d", from, to) }

// fence cuts what a rank of P has under way to a rank of D, and refuses what it writes until it is admitted.
func (w *world) fence(rank int, peer peerID) {
	if !w.fences {
		return
	}
	w.cuts[way(int(peer)-1, rank)]++
	w.barred[way(int(peer)-1, rank)] = true
	w.after(1, func() { w.stepD(rank, event{kind: evFenced, peer: peer}) })
}

// message delivers something late, twice, out of order, or never.
func (w *world) message(deliver func()) {
	if w.chance(10) {
		return
	}
	for range 1 + w.rng.IntN(6)/5 {
		d := w.some(2 * time.Millisecond)
		if w.chance(10) {
			d = w.some(3 * time.Second)
		}
		w.after(d, deliver)
	}
}

// write lands in any of the ways that were measured: whole, in part, not at all; the completion may be lost; the bytes
// of a killed writer land within the net delay after its death.
func (w *world) write(rank int, x effect) {
	r := w.requests[x.id]
	to := int(x.peer) - 1
	key := fmt.Sprintf("P%d D%d %s", rank, to, x.id)
	if w.posted[key]++; w.posted[key] > 1 {
		w.fatal("S6: %s is written twice", key)
	}
	if !r.offered || !w.related(rank, to) {
		w.fatal("S4: %s is written; offered %v", key, r.offered)
	}
	peer, seq := x.peer, x.seq
	if w.chance(10) { // refused or empty
		w.after(1, func() {
			w.stepP(rank, event{kind: evRefused, peer: peer, seq: seq, id: r.id, reason: Short})
		})
		return
	}
	blocks := r.blocks
	broken := w.chance(15)
	if broken {
		blocks = blocks[:w.rng.IntN(len(blocks)+1)]
	}
	took := w.some(20 * time.Millisecond)
	if w.chance(10) {
		took = w.some(20 * time.Second)
	}
	cuts := w.cuts[way(rank, to)]
	land := func() {
		if w.cuts[way(rank, to)] != cuts || w.barred[way(rank, to)] {
			broken = true
			return
		}
		if !r.held && !w.dead {
			w.fatal("S5: P%d reads blocks of %s that were freed", rank, r.id)
		}
		for _, b := range blocks {
			c := w.memory[to][b]
			if c.owner != r.id {
				w.fatal("S2: P%d writes block %d of D%d for %s; it belongs to %s", rank, b, to, r.id, c.owner)
			}
			c.tags[rank] = r.id
		}
		w.landed++
	}
	w.after(took, func() {
		if w.dead && w.now > w.deadAt+time.Second {
			return // it had not left P's host
		}
		land()
		if w.dead {
			return
		}
		kind := evWritten
		if broken {
			kind = evBroken
		} else {
			w.message(func() {
				w.stepD(to, event{kind: evStatus, peer: peerID(rank + 1), seq: seq, msg: &message{status: status{state: statusDone, tokens: 1}}})
			})
		}
		w.after(w.some(time.Millisecond), func() {
			w.stepP(rank, event{kind: kind, peer: peer, seq: seq, id: r.id, tokens: 1})
		})
	})
}

func (w *world) reportP(rank int, x effect) {
	r := w.requests[x.id]
	if r.p.Step(Report{ID: x.id, Rank: metadata.Rank{TP: rank}, Kind: x.report}) == Freed {
		r.held = false
	}
}

func (w *world) reportD(rank int, x effect) {
	r := w.requests[x.id]
	if x.expect == nil { // it was only queued: nothing is reserved yet
		w.lapsed++
		return
	}
	switch r.d.Step(Report{ID: x.id, Rank: metadata.Rank{TP: rank}, Kind: x.report}) {
	case Released:
		w.released++
		for d := range w.consumers {
			for _, b := range r.blocks {
				for p := range w.producers {
					if w.related(p, d) && w.memory[d][b].tags[p] != r.id {
						w.fatal("S1: %s is released; block %d of D%d lacks what P%d owes", r.id, b, d, p)
					}
				}
			}
		}
		w.after(w.some(50*time.Millisecond), func() { w.free(r) }) // decode has run
	case Failed:
		w.failed++
		for d := range w.consumers {
			w.after(w.some(time.Millisecond), func() { w.stepD(d, event{kind: evAbandon, id: r.id}) })
		}
	case Closed:
		w.free(r)
	}
}

// free gives D's blocks away at once.
func (w *world) free(r *request) {
	r.over = true
	for d := range w.consumers {
		for _, b := range r.blocks {
			w.memory[d][b] = &cell{owner: TransferID{0xff}, tags: map[int]TransferID{}}
		}
	}
}

// run plays until nothing is left to happen, and then looks for what is held.
func (w *world) run() {
	for len(w.queue) > 0 && w.now < 10*time.Minute {
		s := heap.Pop(&w.queue).(walkStep)
		w.now = s.at
		s.do()
	}
	for id, r := range w.requests {
		if !r.over {
			w.fatal("L1: D's blocks of %s are held for ever", id)
		}
		if r.held && r.offered && !w.dead {
			w.fatal("L2: P's blocks of %s are held for ever", id)
		}
	}
	for i, c := range w.consumers {
		if len(c.receipts) > 0 {
			w.fatal("L2: D%d remembers %d transfers", i, len(c.receipts))
		}
	}
	for i, p := range w.producers {
		if len(p.given) > 0 && !w.dead {
			w.fatal("L2: P%d remembers %d transfers", i, len(p.given))
		}
	}
}

func TestRandomWalk(t *testing.T) {
	released, failed, landed, byes, lapsed := 0, 0, 0, 0, 0
	for seed := range uint64(1500) {
		w := newWorld(t, seed)
		w.run()
		released, failed, landed = released+w.released, failed+w.failed, landed+w.landed
		byes, lapsed = byes+w.byes, lapsed+w.lapsed
	}
	t.Logf("%d transfers released, %d failed, %d writes landed, %d byes, %d lapsed in the queue", released, failed, landed, byes, lapsed)
	if byes < 100 || lapsed < 100 {
		t.Errorf("%d byes and %d lapsed; want at least 100 of each", byes, lapsed)
	}
	if released < 500 || failed < 500 {
		t.Errorf("%d released and %d failed; want at least 500 of each", released, failed)
	}
}
