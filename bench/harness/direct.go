package harness

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"pdrouter/bench/fake"
	"pdrouter/bench/load"
)

// direct is a client that makes the legs of its requests by itself. What a router adds is what a request takes beyond that.
type direct struct {
	load.Closed
	mode            string // a fake's
	prefill, decode string // host:port
	legs            int    // 1: decode's alone, without a hand-off
}

// Direct is the client that makes so many legs in front of the stage's first engines.
func (s *Stage) Direct(l load.Closed, legs int) direct {
	return direct{l, s.mode(), s.Prefill[0].Address, s.Decode[0].Address, legs}
}

// Run applies the load to the engines for d.
func (c direct) Run(ctx context.Context, d time.Duration) (load.Result, fake.Counts, error) {
	seen, err := load.ClosedLoop(ctx, d, c.Connections, c.Open)
	return seen, Asked(c.legs, int64(seen.Completed)), err
}

// pushedParams begin a body of decode's leg where both legs are sent at once and prefill writes: the client knows prefill.
const pushedParams = fake.PushedTo + "0123456789abcdef" + fake.BehindPush

// Open opens one pair of connections.
func (c direct) Open(ctx context.Context, deadline time.Time) (load.Asker, error) {
	a := &twoLegs{direct: c}
	var err error
	if a.d, err = load.Dial(ctx, c.decode, deadline); err != nil {
		return nil, err
	}
	if c.legs == 1 {
		a.decodeRequest = load.AppendRequest(nil, c.Body)
		return a, nil
	}
	if a.p, err = load.Dial(ctx, c.prefill, deadline); err != nil {
		a.d.Close()
		return nil, err
	}
	a.prefillRequest = load.AppendRequest(nil, slices.Concat([]byte(fake.AskPrefill), c.Body[1:]))
	a.decodeRequest = load.AppendRequest(nil, slices.Concat([]byte(pushedParams), c.Body[1:]))
	return a, nil
}

// twoLegs makes the legs of one request after the other.
type twoLegs struct {
	direct
	p, d                          *load.Conn
	prefillRequest, decodeRequest []byte
	edited                        []byte // a body that is made anew for each request
	room                          uint64
}

func (a *twoLegs) Close() {
	a.d.Close()
	if a.p != nil {
		a.p.Close()
	}
}

// Ask makes one request. Where both legs are sent at once, prefill's is the first.
func (a *twoLegs) Ask() error {
	if err := a.send(); err != nil {
		return err
	}
	if a.legs == 2 && a.mode != "pull" {
		if err := a.prefilled(); err != nil {
			return err
		}
	}
	if err := a.d.Receive(); err != nil {
		return err
	}
	return a.Check(a.d.Answer.StatusCode(), a.d.Answer.Body())
}

// send sends the legs.
func (a *twoLegs) send() error {
	if a.legs == 2 {
		if a.mode == fake.SGLang {
			a.room++
			a.edited = append(fake.AppendRoom(a.edited[:0], a.room), a.Body[1:]...)
			a.prefillRequest = load.AppendRequest(a.prefillRequest[:0], a.edited)
			a.decodeRequest = a.prefillRequest
		}
		if err := a.p.Send(a.prefillRequest); err != nil {
			return err
		}
		if a.mode == "pull" {
			if err := a.prefilled(); err != nil {
				return err
			}
		}
	}
	return a.d.Send(a.decodeRequest)
}

// prefilled takes prefill's answer in; where decode's leg needs what it says, that is made of it.
func (a *twoLegs) prefilled() error {
	if err := a.p.Receive(); err != nil {
		return err
	}
	if status := a.p.Answer.StatusCode(); status != fasthttp.StatusOK {
		return fmt.Errorf("prefill answered with status %d: %.300s", status, a.p.Answer.Body())
	}
	if a.mode == "pull" {
		a.edited = append(a.edited[:0], '{')
		a.edited = append(append(a.edited, fake.ParamsIn(a.p.Answer.Body())...), ',')
		a.edited = append(a.edited, a.Body[1:]...)
		a.decodeRequest = load.AppendRequest(a.decodeRequest[:0], a.edited)
	}
	return nil
}

// Paired is how long the requests of pairs took, one of each through a router and one without.
type Paired struct{ Through, Direct []time.Duration }

// Alternate has two askers make a request each, again and again, for d: A B, B A, A B …
func Alternate(ctx context.Context, d time.Duration, through, direct func(context.Context, time.Time) (load.Asker, error)) (Paired, error) {
	var p Paired
	until := time.Now().Add(d)
	askers := [2]load.Asker{}
	for i, open := range []func(context.Context, time.Time) (load.Asker, error){through, direct} {
		a, err := open(ctx, until.Add(30*time.Second))
		if err != nil {
			return p, err
		}
		defer a.Close()
		askers[i] = a
	}
	took := [2]*[]time.Duration{&p.Through, &p.Direct}
	for n := 0; time.Now().Before(until) && ctx.Err() == nil; n++ {
		for _, i := range order(n, 2) {
			at := time.Now()
			if err := askers[i].Ask(); err != nil {
				return p, fmt.Errorf("bench: pair %d: %w", n, err)
			}
			*took[i] = append(*took[i], time.Since(at))
		}
	}
	return p, ctx.Err()
}
