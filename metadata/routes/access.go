package routes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"pdrouter/internal/refusal"
	"pdrouter/metadata"
)

// Copy is a gateway's local copy of the records, as cache.Cache is: it is read without waiting, whatever the store does.
type Copy interface {
	// Engine returns the records of the engine's newest generation in the order of their ranks, and whether there are any.
	Engine(name string) ([]metadata.Record, bool)
	// Engines returns the names of the engines that Engine knows, sorted.
	Engines() []string
	// Subscribe has f called, after the copy can be read, with the name of every engine whose records have come, gone or
	// changed in more than their times and signatures, and with "" when the copy has become whole. f must not block.
	Subscribe(f func(engine string)) (cancel func())
}

// records returns the records of an engine from the local copy, and only of one that is not in it from the store: it may have
// been published a moment ago.
func (h *Handler) records(ctx context.Context, engine string) ([]metadata.Record, error) {
	if recs, ok := h.copy.Engine(engine); ok {
		return recs, nil
	}
	select {
	case h.misses <- struct{}{}:
		defer func() { <-h.misses }()
		return h.store.Engine(ctx, engine)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// maxMisses is how many reads of engines that the local copy does not have may ask the store at once.
const maxMisses = 16

// access is what one caller may read. It looks at the records of the caller's own engine once.
type access struct {
	h      *Handler
	r      *http.Request
	caller Caller
	many   bool   // many engines are read: only the local copy is asked, and refusals are not logged
	ranks  string // the caller's, as shapes knows them
	own    []metadata.Record
	asked  bool
	err    error // of asking for own
}

// access returns what the sender of a request may read of what the gateway knows, or can ask its store for.
func (h *Handler) access(r *http.Request, caller Caller) *access {
	a := &access{h: h, r: r, caller: caller}
	if len(caller.Ranks) > 0 {
		a.ranks = fmt.Sprint(caller.Ranks)
	}
	return a
}

// accessMany is access for a request that is about many engines: it never asks the store for one of them.
func (h *Handler) accessMany(r *http.Request, caller Caller) *access {
	a := h.access(r, caller)
	a.many = true
	return a
}

// find returns what is known of an engine.
func (a *access) find(engine string) ([]metadata.Record, error) {
	if !a.many {
		return a.h.records(a.r.Context(), engine)
	}
	if recs, ok := a.h.copy.Engine(engine); ok {
		return recs, nil
	}
	return nil, fmt.Errorf("metadata: engine %s: %w", engine, metadata.ErrNotFound)
}

// reader returns what the caller may read, and the engine and the rank of the path. The caller is asked for twice: before
// anything is looked for, and when the engine's role is known.
func (h *Handler) reader(r *http.Request) (*access, string, metadata.Rank, error) {
	engine, rank, err := target(r)
	if err != nil {
		engine = "" // still only for those who may read something
	}
	caller, denied := h.auth.Authorize(r, Access{Action: Read, Engine: engine, Rank: rank})
	if denied != nil {
		return nil, "", rank, denied
	}
	return h.access(r, caller), engine, rank, err
}

// engine returns the records of an engine that the caller may have: those of the ranks that map onto the caller's. Every route
// that gives out records asks it. all is how many ranks the engine has published. rank is for the log.
//
// An agent is refused every engine that the gateway's configuration does not pair with its own, whether it is there or not. Of
// one that it does, the agent may learn that it is not there, or not whole: that is ErrNotFound, as for the agent's own engine.
func (a *access) engine(engine string, rank metadata.Rank) (recs []metadata.Record, all int, err error) {
	want := Access{Action: Read, Engine: engine, Rank: rank}
	if !a.paired(engine) {
		return nil, 0, a.refuse(want, "they are no prefill and decode engine of one model of the configuration")
	}
	if recs, err = a.find(engine); err != nil {
		return nil, 0, err
	}
	want.Role = recs[0].Role
	v, err := a.judge(want, a.h.shapes.of(recs))
	switch {
	case err != nil:
		return nil, 0, err
	case v.reason == metadata.IncompleteRanks || v.reason == metadata.MixedRecords: // they are on their way
		return nil, 0, fmt.Errorf("metadata: engine %s for %s: %w: %s", engine, a.caller.Engine, metadata.ErrNotFound, v.reason)
	case v.reason != 0:
		why := v.reason.String()
		if !a.many { // for the log
			why = pairableEither(a.own, recs).Error()
		}
		return nil, 0, a.refuse(want, why)
	case v.ranks == nil:
		return recs, len(recs), nil
	}
	mine := make([]metadata.Record, 0, len(v.ranks))
	for _, rec := range recs {
		if slices.Contains(v.ranks, rec.Rank) {
			mine = append(mine, rec)
		}
	}
	return mine, len(recs), nil
}

// judge asks the authorizer, and then whether anything keeps the caller's engine and one of this shape apart.
func (a *access) judge(want Access, other *shape) (verdict, error) {
	if _, err := a.h.auth.Authorize(a.r, want); err != nil {
		return verdict{}, err
	}
	if a.free(want.Engine) {
		return verdict{}, nil
	}
	own, err := a.ownRecords()
	if err != nil {
		return verdict{}, err
	}
	v := a.h.shapes.judge(a.h.shapes.of(own), other, a.caller.Ranks, a.ranks)
	if v.reason == 0 && a.ranks != "" && len(v.ranks) == 0 {
		return verdict{}, a.refuse(want, "no rank of it maps onto the caller's")
	}
	return v, nil
}

// could reports whether the caller could read an engine of this shape. It is for engines that are gone.
func (a *access) could(engine string, s *shape) bool {
	if !a.paired(engine) {
		return false
	}
	v, err := a.judge(Access{Action: Read, Engine: engine, Role: s.recs[0].Role}, s)
	return err == nil && v.reason == 0
}

// paired reports whether the configuration, which counts for more than what engines say of themselves, lets the caller read an
// engine.
func (a *access) paired(engine string) bool {
	return a.free(engine) || a.h.paired == nil || a.h.paired(a.caller.Engine, engine)
}

// free reports whether only the authorizer decides whether the caller reads an engine, not what the engines are.
func (a *access) free(engine string) bool {
	return a.caller.Engine == "" || a.caller.Engine == engine || slices.Contains(a.caller.Reads, engine)
}

// refuse has the authorizer refuse, so that the caller cannot tell one reason from another.
func (a *access) refuse(want Access, why string) error {
	if a.many {
		return refusal.Forbidden("apart", a.caller.Subject, nil)
	}
	want.Apart = why
	caller, err := a.h.auth.Authorize(a.r, want)
	if err != nil {
		return err
	}
	return refusal.Forbidden("apart", caller.Subject, errors.New(why))
}

// ownRecords returns the records of the caller's own engine. That they are not all there yet is ErrNotFound: later they may be.
func (a *access) ownRecords() ([]metadata.Record, error) {
	if !a.asked {
		a.asked = true
		if a.own, a.err = a.find(a.caller.Engine); a.err != nil {
			a.err = fmt.Errorf("metadata: the caller's own engine: %w", a.err)
		} else if !a.h.shapes.of(a.own).whole {
			a.err = fmt.Errorf("metadata: the caller's own engine %s is not whole: %w", a.caller.Engine, metadata.ErrNotFound)
		} else if !a.caller.sized(a.own[0]) { // the fewer ranks, the more maps onto each
			a.err = fmt.Errorf("metadata: the caller's own engine %s is of size %v, and of %v by the credentials: %w", a.caller.Engine, a.own[0].Size, a.caller.Size, metadata.ErrNotFound)
		}
	}
	return a.own, a.err
}

func (h *Handler) rank(w http.ResponseWriter, r *http.Request) error {
	a, engine, rank, err := h.reader(r)
	if err != nil {
		return err
	}
	recs, all, err := a.engine(engine, rank)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Rank == rank {
			return h.send(w, r, []metadata.Record{rec}, true)
		}
	}
	if all > len(recs) {
		return a.refuse(Access{Action: Read, Engine: engine, Rank: rank, Role: recs[0].Role}, "this rank does not map onto the caller's")
	}
	return fmt.Errorf("metadata: engine %s rank %v: %w", engine, rank, metadata.ErrNotFound)
}

func (h *Handler) engine(w http.ResponseWriter, r *http.Request) error {
	a, engine, rank, err := h.reader(r)
	if err != nil {
		return err
	}
	recs, all, err := a.engine(engine, rank)
	if err != nil {
		return err
	}
	if all > len(recs) {
		w.Header().Set(metadata.PublishedHeader, strconv.Itoa(all))
	}
	return h.send(w, r, recs, false)
}
