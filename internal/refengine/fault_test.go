package refengine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// fillD takes every block of D for as long as the returned function is not called.
func (x pair) fillD(t *testing.T) (free func()) {
	t.Helper()
	c := x.d.cfg
	s, err := x.d.Submit(Request{Tokens: tokenize("x"), MaxTokens: c.Blocks*c.BlockTokens - 2, Leg: WholeLeg, IgnoreEnd: true})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return x.d.Books().Free == 0 })
	return func() { x.d.Cancel(s) }
}

// failsWith waits for the end of a leg and wants it to name the reason.
func failsWith(t *testing.T, s *Sequence, reason kvplane.Reason) {
	t.Helper()
	if _, err := collect(s); !errors.Is(err, ErrTransfer) || !strings.Contains(err.Error(), reason.String()) {
		t.Errorf("the leg ended in %v; want a failed transfer, %s", err, reason)
	}
}

func ending(e *Engine, what string) uint64 {
	var n uint64
	e.ask(func() { n = e.counts.transfers[what] })
	return n
}

// slowD is a decode engine with few blocks whose steps take a while.
func slowD(shape Shape, times kvplane.Times) Config {
	return Config{Name: "d", Shape: shape, TP: 2, BlockTokens: 4, Blocks: 512, DecodeCost: 5 * time.Millisecond, Plane: Plane{Times: times}}
}

// TestFault55LeaseIsKeptWhileDecodeIsQueued lets decode wait for free blocks for longer than prefill's lease.
func TestFault55LeaseIsKeptWhileDecodeIsQueued(t *testing.T) {
	t.Parallel()
	shape := Shape{Seed: 17}
	times := kvplane.Times{Lease: 1500 * time.Millisecond, Beat: 100 * time.Millisecond, NetDelay: 10 * time.Millisecond, Queue: 600 * time.Millisecond}
	var book phonebook
	x := pair{p: book.open(t, Config{Name: "p", Shape: shape, Plane: Plane{Times: times}}), d: book.open(t, slowD(shape, times))}
	free := x.fillD(t)
	q := Request{Tokens: tokenize("hello, queue"), MaxTokens: 7, IgnoreEnd: true}
	p, d := x.dispatch(t, q)
	if _, err := collect(p); err != nil {
		t.Fatal(err)
	}
	time.Sleep(times.Lease + times.Lease/2) // also four times what its own word is good for
	if b := x.p.Books(); b.Held == 0 {
		t.Errorf("prefill did not keep the blocks: %+v", b)
	}
	if b := x.d.Books(); b.Waiting != 1 || b.Receiving != 0 {
		t.Errorf("decode is not queued: %+v", b)
	}
	free()
	got, err := collect(d)
	if want := naive(x.d.model, q.Tokens, 7, 0, true); err != nil || !slices.Equal(got, want) {
		t.Errorf("decode answered %v, %v; want %v", got, err, want)
	}
	x.settled(t)
}

// TestFault55LeaseEndsWhileDecodeIsQueued ends prefill's lease before decode has free blocks: the leg fails at once,
// while no block is free, and so does one that comes with blocks. Sent again under a new id it is answered right.
func TestFault55LeaseEndsWhileDecodeIsQueued(t *testing.T) {
	t.Parallel()
	shape := Shape{Seed: 18}
	times := kvplane.Times{NetDelay: 10 * time.Millisecond}
	brief := times
	brief.Lease = 50 * time.Millisecond
	var book phonebook
	x := pair{p: book.open(t, Config{Name: "p", Shape: shape, TP: 4, Plane: Plane{Times: brief}}), d: book.open(t, slowD(shape, times))}
	q := Request{Tokens: tokenize("too late"), MaxTokens: 7, IgnoreEnd: true}
	late := func() *Sequence {
		h := Handoff{ID: kvplane.NewTransferID(), Valid: 30 * time.Second, Peer: x.d.Incarnation()}
		first := q
		first.Leg, first.MaxTokens, first.Handoff = PrefillLeg, 1, h
		over := ending(x.p, "sent_lease_over")
		ask(t, x.p, first)
		eventually(t, func() bool { return ending(x.p, "sent_lease_over") == over+1 })
		second := q
		second.Leg, second.Handoff = DecodeLeg, h
		second.Handoff.Peer = x.p.Incarnation()
		s, err := x.d.Submit(second)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	free := x.fillD(t)
	failsWith(t, late(), kvplane.LeaseOver)
	if b := x.d.Books(); b.Free != 0 || b.Waiting != 0 || ending(x.d, "lapsed") != 1 {
		t.Errorf("the leg did not fail while no block was free: %+v", b)
	}
	free()
	eventually(t, func() bool { return x.d.Books().Free > 0 })
	failsWith(t, late(), kvplane.LeaseOver)
	p, d := x.dispatch(t, q)
	if _, err := collect(p); err != nil {
		t.Fatal(err)
	}
	got, err := collect(d)
	if want := naive(x.d.model, q.Tokens, 7, 0, true); err != nil || !slices.Equal(got, want) {
		t.Errorf("sent again, decode answered %v, %v; want %v", got, err, want)
	}
	x.settled(t)
}

// TestQueuedLegThatLeavesFreesPrefill lets a decode leg leave before it had blocks: prefill does not wait out its lease.
func TestQueuedLegThatLeavesFreesPrefill(t *testing.T) {
	t.Parallel()
	shape := Shape{Seed: 19}
	times := kvplane.Times{Lease: time.Hour, Beat: 50 * time.Millisecond, NetDelay: 10 * time.Millisecond}
	var book phonebook
	x := pair{p: book.open(t, Config{Name: "p", Shape: shape, PP: 2, Plane: Plane{Times: times}}), d: book.open(t, slowD(shape, times))}
	free := x.fillD(t)
	p, d := x.dispatch(t, Request{Tokens: tokenize("gone"), MaxTokens: 7})
	if _, err := collect(p); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return x.p.Books().Held > 0 && x.d.Agents()[0].Peers == 2 })
	x.d.Cancel(d)
	eventually(t, func() bool { b := x.p.Books(); return b.Free == b.Blocks })
	if b := x.d.Books(); b.Free != 0 {
		t.Errorf("decode had free blocks before prefill was told: %+v", b)
	}
	free()
	x.settled(t)
}

// TestPrefillRestartsUnderItsOldName starts prefill anew while legs wait for it, queued and with blocks: all fail at
// once, no block is lost, and the new generation serves.
func TestPrefillRestartsUnderItsOldName(t *testing.T) {
	t.Parallel()
	shape := Shape{Seed: 20}
	times := kvplane.Times{Beat: 50 * time.Millisecond, NetDelay: 10 * time.Millisecond}
	for _, filled := range []bool{false, true} {
		var book phonebook
		dc := slowD(shape, times)
		dc.Plane.SerialStarts = true
		x := pair{p: book.open(t, Config{Name: "p", Generation: 1, Shape: shape, TP: 2, Plane: Plane{Times: times}}), d: book.open(t, dc)}
		free := func() {}
		if filled {
			free = x.fillD(t)
		}
		var legs []*Sequence
		for range 3 { // prefill is never asked
			h := Handoff{ID: kvplane.NewTransferID(), Valid: time.Minute, Peer: x.p.Incarnation()}
			s, err := x.d.Submit(Request{Tokens: tokenize("wait"), MaxTokens: 5, Leg: DecodeLeg, Handoff: h})
			if err != nil {
				t.Fatal(err)
			}
			legs = append(legs, s)
		}
		eventually(t, func() bool {
			b := x.d.Books()
			return b.Receiving+b.Waiting == 3 && x.d.Agents()[0].Peers > 0 && x.p.Agents()[0].Messages > 0
		})
		killed, kill := context.WithCancel(context.Background())
		kill()
		if err := x.p.Close(killed); err != nil {
			t.Fatal(err)
		}
		x.p = book.open(t, Config{Name: "p", Generation: 2, Shape: shape, TP: 2, Plane: Plane{Times: times}})
		for _, s := range legs {
			if _, err := collect(s); !errors.Is(err, ErrTransfer) {
				t.Errorf("a leg of the old generation ended in %v; want a failed transfer", err)
			}
		}
		free()
		q := Request{Tokens: tokenize("wait"), MaxTokens: 5, IgnoreEnd: true}
		p, d := x.dispatch(t, q)
		if _, err := collect(p); err != nil {
			t.Fatal(err)
		}
		if got, err := collect(d); err != nil || !slices.Equal(got, naive(x.d.model, q.Tokens, 5, 0, true)) {
			t.Errorf("after the restart decode answered %v, %v", got, err)
		}
		x.settled(t)
	}
}

// TestDecodeRestartsUnderItsOldName starts decode anew while prefill keeps blocks for it: they come back when the new
// generation is heard of, not when the lease is over.
func TestDecodeRestartsUnderItsOldName(t *testing.T) {
	t.Parallel()
	shape := Shape{Seed: 21}
	times := kvplane.Times{Lease: time.Hour, NetDelay: 10 * time.Millisecond}
	var book phonebook
	d := Config{Name: "d", Generation: 1, Role: metadata.Decode, Shape: shape, Plane: Plane{Times: times}}
	x := pair{p: book.open(t, Config{Name: "p", Shape: shape, TP: 2, Plane: Plane{Times: times}}), d: book.open(t, d)}
	for range 3 {
		h := Handoff{ID: kvplane.NewTransferID(), Valid: time.Minute, Peer: x.d.Incarnation()}
		ask(t, x.p, Request{Tokens: tokenize("held"), MaxTokens: 1, Leg: PrefillLeg, Handoff: h})
	}
	eventually(t, func() bool { return x.p.Books().Held > 0 })
	killed, kill := context.WithCancel(context.Background())
	kill()
	if err := x.d.Close(killed); err != nil {
		t.Fatal(err)
	}
	d.Generation = 2
	x.d = book.open(t, d)
	q := Request{Tokens: tokenize("new"), MaxTokens: 5, IgnoreEnd: true}
	first, second := x.dispatch(t, q)
	if _, err := collect(first); err != nil {
		t.Fatal(err)
	}
	if got, err := collect(second); err != nil || !slices.Equal(got, naive(x.d.model, q.Tokens, 5, 0, true)) {
		t.Errorf("after the restart decode answered %v, %v", got, err)
	}
	x.settled(t)
}
