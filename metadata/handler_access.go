package metadata

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// access is what one request may read. It reads the records of the caller's own engine once at most.
type access struct {
	h     *Handler
	r     *http.Request
	own   []Record // of the caller's engine
	asked bool
	err   error // of asking for them
}

// access returns what the sender of a request may read.
func (h *Handler) access(r *http.Request) *access { return &access{h: h, r: r} }

// read is readable for the engine and the rank of the path. The caller is asked for twice: before the store is touched, and when
// the engine's role is known.
func (h *Handler) read(r *http.Request) ([]Record, Rank, error) {
	engine, rank, err := target(r)
	if err != nil {
		engine = "" // still only for those who may read something
	}
	if _, err := h.auth.Authorize(r, Access{Action: Read, Engine: engine, Rank: rank}); err != nil {
		return nil, rank, err
	}
	if err != nil {
		return nil, rank, err
	}
	recs, err := h.readable(r, engine, rank)
	return recs, rank, err
}

// readable returns the records of an engine that the caller may have. Every route that gives out records asks it, or
// access.engine if it asks for several engines.
func (h *Handler) readable(r *http.Request, engine string, rank Rank) ([]Record, error) {
	return h.access(r).engine(engine, rank)
}

// engine returns the records of an engine that the caller may have: those of the ranks that map onto the caller's.
// rank is for the log.
func (a *access) engine(engine string, rank Rank) ([]Record, error) {
	recs, err := a.h.store.Engine(a.r.Context(), engine)
	if err != nil {
		return nil, err
	}
	want := Access{Action: Read, Engine: engine, Rank: rank, Role: recs[0].Role}
	caller, err := a.h.auth.Authorize(a.r, want)
	switch {
	case err != nil:
		return nil, err
	case caller.Engine == "" || caller.Engine == engine || slices.Contains(caller.Reads, engine):
		return recs, nil
	case a.h.couples != nil && !a.h.couples(caller.Engine, engine): // what engines say of themselves is not enough
		return nil, a.refuse(want, "they are no prefill and decode engine of one model of the configuration")
	}
	own, err := a.ownRecords(caller.Engine)
	if err != nil {
		return nil, err
	}
	if err := pairableEither(own, recs); err != nil {
		var why *Unpairable
		if errors.As(err, &why) && (why.Reason == IncompleteRanks || why.Reason == MixedRecords) { // they are on their way
			return nil, fmt.Errorf("metadata: engine %s for %s: %w: %w", engine, caller.Engine, err, ErrNotFound)
		}
		return nil, a.refuse(want, err.Error())
	}
	mine := recs
	if len(caller.Ranks) > 0 {
		mine = mapped(own, caller.Ranks, recs)
	}
	if len(mine) == 0 {
		return nil, a.refuse(want, "no rank of it maps onto the caller's")
	}
	return mine, nil
}

// refuse has the authorizer refuse, so that the caller cannot tell one reason from another.
func (a *access) refuse(want Access, why string) error {
	want.Apart = why
	caller, err := a.h.auth.Authorize(a.r, want)
	if err != nil {
		return err
	}
	return forbidden("apart", caller.Subject, errors.New(why))
}

// ownRecords returns the records of the caller's own engine. That it has none yet is ErrNotFound: later it may.
func (a *access) ownRecords(engine string) ([]Record, error) {
	if !a.asked {
		a.asked = true
		if a.own, a.err = a.h.store.Engine(a.r.Context(), engine); a.err != nil {
			a.err = fmt.Errorf("metadata: the caller's own engine: %w", a.err)
		}
	}
	return a.own, a.err
}

// pairableEither returns nil if the engines can exchange KV blocks, whichever of them prefills.
func pairableEither(x, y []Record) error {
	err := Pairable(x, y)
	if err == nil || len(x) > 0 && x[0].Role == Prefill || len(y) > 0 && y[0].Role == Decode {
		return err
	}
	return Pairable(y, x)
}

// mapped returns those of an engine's records whose ranks map onto one of these ranks of another engine.
func mapped(own []Record, ranks []Rank, recs []Record) []Record {
	var out []Record
	for _, rec := range recs {
		if slices.ContainsFunc(own, func(o Record) bool { return slices.Contains(ranks, o.Rank) && Maps(o, rec) }) {
			out = append(out, rec)
		}
	}
	return out
}

func (h *Handler) rank(w http.ResponseWriter, r *http.Request) error {
	recs, rank, err := h.read(r)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Rank == rank {
			return h.send(w, r, []Record{rec}, true)
		}
	}
	engine := recs[0].Engine
	if all, err := h.store.Engine(r.Context(), engine); err == nil && slices.ContainsFunc(all, func(rec Record) bool { return rec.Rank == rank }) {
		return h.access(r).refuse(Access{Action: Read, Engine: engine, Rank: rank, Role: recs[0].Role}, "this rank does not map onto the caller's")
	}
	return fmt.Errorf("metadata: engine %s rank %v: %w", engine, rank, ErrNotFound)
}

func (h *Handler) engine(w http.ResponseWriter, r *http.Request) error {
	recs, _, err := h.read(r)
	if err != nil {
		return err
	}
	return h.send(w, r, recs, false)
}
