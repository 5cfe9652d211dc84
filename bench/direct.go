package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/valyala/fasthttp"
)

// direct is a client that makes the legs of its requests by itself. What a router adds is what a request takes beyond that.
type direct struct {
	load
	mode            string // a fake's
	prefill, decode string // host:port
	legs            int    // 1: decode's alone, without a hand-off
}

// direct is the client that makes so many legs in front of the stage's first engines.
func (s *stage) direct(l load, legs int) direct {
	return direct{l, s.mode(), s.prefill[0].address, s.decode[0].address, legs}
}

// run applies the load to the engines for d.
func (c direct) run(ctx context.Context, d time.Duration) (loaded, Counts, error) {
	seen, err := closedLoop(ctx, d, c.connections, c.open)
	return seen, asked(c.legs, int64(seen.completed)), err
}

// pushedParams begin a body of decode's leg where both legs are sent at once and prefill writes: the client knows prefill.
const pushedParams = pushedTo + "0123456789abcdef" + behindPush

// open opens one pair of connections.
func (c direct) open(ctx context.Context, deadline time.Time) (asker, error) {
	a := &twoLegs{direct: c}
	var err error
	if a.d, err = dialWire(ctx, c.decode, deadline); err != nil {
		return nil, err
	}
	if c.legs == 1 {
		a.decodeRequest = appendRequest(nil, c.body)
		return a, nil
	}
	if a.p, err = dialWire(ctx, c.prefill, deadline); err != nil {
		a.d.close()
		return nil, err
	}
	a.prefillRequest = appendRequest(nil, slices.Concat([]byte(askPrefill), c.body[1:]))
	a.decodeRequest = appendRequest(nil, slices.Concat([]byte(pushedParams), c.body[1:]))
	return a, nil
}

// twoLegs makes the legs of one request after the other.
type twoLegs struct {
	direct
	p, d                          *wire
	prefillRequest, decodeRequest []byte
	edited                        []byte // a body that is made anew for each request
	room                          uint64
}

func (a *twoLegs) close() {
	a.d.close()
	if a.p != nil {
		a.p.close()
	}
}

// ask makes one request. Where both legs are sent at once, prefill's is the first.
func (a *twoLegs) ask() error {
	if err := a.send(); err != nil {
		return err
	}
	if a.legs == 2 && a.mode != "pull" {
		if err := a.prefilled(); err != nil {
			return err
		}
	}
	if err := a.d.receive(); err != nil {
		return err
	}
	return a.check(a.d.answer.StatusCode(), a.d.answer.Body())
}

// send sends the legs.
func (a *twoLegs) send() error {
	if a.legs == 2 {
		if a.mode == modeSGLang {
			a.room++
			a.edited = append(appendRoom(a.edited[:0], a.room), a.body[1:]...)
			a.prefillRequest = appendRequest(a.prefillRequest[:0], a.edited)
			a.decodeRequest = a.prefillRequest
		}
		if err := a.p.send(a.prefillRequest); err != nil {
			return err
		}
		if a.mode == "pull" {
			if err := a.prefilled(); err != nil {
				return err
			}
		}
	}
	return a.d.send(a.decodeRequest)
}

// prefilled takes prefill's answer in; where decode's leg needs what it says, that is made of it.
func (a *twoLegs) prefilled() error {
	if err := a.p.receive(); err != nil {
		return err
	}
	if status := a.p.answer.StatusCode(); status != fasthttp.StatusOK {
		return fmt.Errorf("prefill answered with status %d: %.300s", status, a.p.answer.Body())
	}
	if a.mode == "pull" {
		a.edited = append(a.edited[:0], '{')
		a.edited = append(append(a.edited, paramsIn(a.p.answer.Body())...), ',')
		a.edited = append(a.edited, a.body[1:]...)
		a.decodeRequest = appendRequest(a.decodeRequest[:0], a.edited)
	}
	return nil
}
