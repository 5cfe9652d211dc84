package kvplane

import (
	"math/rand/v2"
	"testing"
	"time"

	"pdrouter/metadata"
)

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), requests: map[TransferID]*request{}, posted: map[string]int{}, proven: map[int]bool{},
		cuts: map[string]int{}, barred: map[string]bool{},
		pinc: metadata.Incarnation{Engine: "p", Generation: 1}, dinc: metadata.Incarnation{Engine: "d", Generation: 1},
	}
	times := Times{Wait: 5 * time.Second, Lease: 5 * time.Second}.withDefaults()
	var pranks, dranks []metadata.Rank
	for i := range 1 << w.rng.IntN(3) {
		w.producers = append(w.producers, newProducer(times))
		pranks = append(pranks, metadata.Rank{TP: i})
	}
	for i := range 1 << w.rng.IntN(3) {
		w.consumers = append(w.consumers, newConsumer(times))
		w.memory = append(w.memory, map[int32]*cell{})
		dranks = append(dranks, metadata.Rank{TP: i})
	}
	w.now = 1
	w.fences = w.rng.IntN(2) == 0
	w.silent = w.fences && w.rng.IntN(2) == 0
	for i := range 1 + w.rng.IntN(6) {
		r := &request{id: TransferID{byte(i + 1)}, blocks: []int32{int32(3 * i), int32(3*i + 1), int32(3*i + 2)}, held: true,
			d: NewAggregate(dranks), p: NewAggregate(pranks)}
		w.requests[r.id] = r
		for d := range w.consumers {
			for _, b := range r.blocks {
				w.memory[d][b] = &cell{owner: r.id, tags: map[int]TransferID{}}
			}
		}
		w.plan(r)
	}
	switch w.rng.IntN(8) {
	case 0, 1:
		w.after(w.some(8*time.Second), w.kill)
	case 2: // P ends in good order
		at := w.some(4 * time.Second)
		for p := range w.producers {
			w.after(at, func() { w.stepP(p, event{kind: evClose}) })
		}
		w.after(at+30*time.Second, w.kill)
	case 3: // D does, its process lives on
		for d := range w.consumers {
			w.after(w.some(4*time.Second), func() { w.stepD(d, event{kind: evClose}) })
		}
	}
	w.after(20*time.Second, func() { w.calm = true })
	return w
}

// plan draws when each side comes, and who gives up when.
func (w *world) plan(r *request) {
	queued := w.some(2 * time.Second)
	start := queued
	if w.chance(30) { // for longer than the lease, at times
		start += w.some(20 * time.Second)
	}
	for d := range w.consumers {
		var links []linkTo
		for p := range w.producers {
			if w.related(p, d) {
				links = append(links, linkTo{peer: peerID(p + 1), writes: true})
			}
		}
		if start > queued {
			w.after(queued, func() {
				w.stepD(d, event{kind: evQueue, id: r.id, inc: w.pinc})
				if !w.proven[d] {
					w.stepD(d, event{kind: evProducers, id: r.id, links: links})
				}
			})
		}
		w.after(start+w.some(10*time.Millisecond), func() {
			w.stepD(d, event{kind: evExpect, id: r.id, inc: w.pinc, expect: &Expectation{Need: [2]int{0, 1}}})
			w.after(w.some(10*time.Millisecond), func() {
				if w.proven[d] {
					w.stepD(d, event{kind: evUnpaired, id: r.id, reason: Superseded})
					return
				}
				w.stepD(d, event{kind: evProducers, id: r.id, links: links})
			})
		})
	}
	if w.chance(90) {
		r.offered = true
		at := queued + w.some(100*time.Millisecond)
		if w.chance(10) {
			at = queued + w.some(8*time.Second)
		}
		for p := range w.producers {
			var owed []peerID
			for d := range w.consumers {
				if w.related(p, d) {
					owed = append(owed, peerID(d+1))
				}
			}
			w.after(at+w.some(10*time.Millisecond), func() {
				w.stepP(p, event{kind: evOffer, id: r.id, inc: w.dinc, offer: &Offer{Peer: w.dinc}})
				w.after(w.some(10*time.Millisecond), func() { w.stepP(p, event{kind: evConsumers, id: r.id, owed: owed}) })
			})
		}
	}
	if w.chance(30) { // D's engine gives up on all ranks
		at := start + w.some(300*time.Millisecond)
		w.after(at, func() {
			if r.d.Fail() == Failed {
				w.failed++
			}
			for d := range w.consumers {
				w.stepD(d, event{kind: evAbandon, id: r.id})
			}
		})
	}
	if w.chance(20) {
		at := start + w.some(300*time.Millisecond)
		for p := range w.producers {
			w.after(at, func() { w.stepP(p, event{kind: evAbandon, id: r.id}) })
		}
	}
	for d := range w.consumers {
		if w.chance(10) {
			p := w.rng.IntN(len(w.producers))
			at := start + w.some(time.Second)
			w.after(at, func() { w.stepD(d, event{kind: evDown, peer: peerID(p + 1)}) })
			w.after(at+w.some(3*time.Second), func() { w.stepD(d, event{kind: evUp, peer: peerID(p + 1)}) })
		}
	}
}

// kill ends P's process; after a while D has the proof, late where a fence must do. What P had posted may land for the net delay.
func (w *world) kill() {
	w.dead, w.deadAt = true, w.now
	for d := range w.consumers {
		for p := range w.producers {
			w.after(w.some(time.Millisecond), func() { w.stepD(d, event{kind: evDown, peer: peerID(p + 1)}) })
		}
		proof := w.some(3 * time.Second)
		if w.silent { // so late that the fence must do
			proof += 5 * time.Minute
		}
		w.after(proof, func() {
			for id, r := range w.requests {
				if w.silent && !r.over {
					w.fatal("L1: D's blocks of %s are held without proof, though P is fenced", id)
				}
			}
			w.proven[d] = true
			w.stepD(d, event{kind: evGone, inc: w.pinc, proof: true, fenced: w.seal(d)})
		})
	}
}

// seal fences all of P for good, as the owner does with whoever is void.
func (w *world) seal(rank int) bool {
	for p := range w.producers {
		w.cuts[way(p, rank)]++
		w.barred[way(p, rank)] = true
	}
	return w.fences
}
