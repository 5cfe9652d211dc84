package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/overrides"
	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// adminError is how a request of an administrator ends when it does not succeed.
type adminError struct {
	Status int
	Reason string // for the header and the log
	Msg    string
}

// Error returns the reason and the message.
func (e *adminError) Error() string { return e.Reason + ": " + e.Msg }

func adminErrorf(status int, reason, format string, args ...any) error {
	return &adminError{status, reason, fmt.Sprintf(format, args...)}
}

// adminEngine is one engine as administrators see it.
type adminEngine struct {
	Name        string     `json:"name"`
	Model       string     `json:"model"`
	Role        string     `json:"role"` // the list that it is of: prefill, decode or engines
	URL         string     `json:"url"`
	Control     string     `json:"control,omitempty"`
	SideChannel string     `json:"side_channel,omitempty"`
	Source      string     `json:"source"`    // static, dns, file or admin
	State       string     `json:"state"`     // up, unchecked, down, draining, drained, leaving, removing or removed
	InFlight    int64      `json:"in_flight"` // legs that it works on, of this gateway
	Drain       bool       `json:"drain"`     // it takes no more requests
	By          string     `json:"changed_by,omitempty"`
	At          *time.Time `json:"changed_at,omitempty"`
}

// adminLapsed is what administrators wanted of an engine and no gateway has vouched for in time: it does not hold any more.
type adminLapsed struct {
	Name   string    `json:"name"`
	Wanted string    `json:"wanted"` // drained, undrained, removed, or added
	By     string    `json:"changed_by"`
	At     time.Time `json:"changed_at"`
}

func lapsedOf(all overrides.ByEngine) []adminLapsed {
	var out []adminLapsed
	for _, name := range slices.Sorted(maps.Keys(all)) {
		rec := all[name]
		out = append(out, adminLapsed{name, rec.Wanted(), rec.By, rec.Time().UTC()})
	}
	return out
}

// engineStats is what this gateway's router knows of an engine.
type engineStats struct {
	up       bool // it is not down
	checked  bool // it has answered at least once
	inFlight int64
}

// describe says what is known of an engine.
func describe(p placed, s engineStats) adminEngine {
	e := adminEngine{Name: p.Name, Model: p.model, Role: p.list, URL: p.URL, Control: p.Control, SideChannel: p.SideChannel, Source: p.from,
		InFlight: s.inFlight, Drain: p.Drain, By: p.record.By}
	switch {
	case p.gone:
		e.State, e.Drain = "removed", true
	case p.record.Removed:
		e.State = "removing"
	case p.leaving:
		e.State = "leaving"
	case p.Drain && s.inFlight > 0:
		e.State = "draining"
	case p.Drain:
		e.State = "drained"
	case s.up && !s.checked:
		e.State = fleet.Unchecked
	case s.up:
		e.State = "up"
	default:
		e.State = "down"
	}
	if p.record.At != 0 {
		at := p.record.Time().UTC()
		e.At = &at
	}
	return e
}

// add has an engine be of a list. It reports whether it is another than before. The same engine may be added again: one that
// was removed is back, one that drains is used again.
func (s *sources) add(ctx context.Context, to listOf, e config.Engine, by string) (bool, error) {
	m, err := modelNamed(*s.base.Load(), to.model)
	if err != nil {
		return false, adminErrorf(http.StatusNotFound, "no_model", "%v", err)
	}
	rec := overrides.Override{Engine: e.Name, By: by}
	drained := e.Drain
	e.Drain = false
	if drained {
		rec.Drain = overrides.DrainOn
	}
	if e.Name == "" {
		return false, adminErrorf(http.StatusBadRequest, "bad_engine", "name is empty; want a stable name")
	}
	p, known := find(s.engines(), e.Name)
	switch {
	case known && (p.listOf != to || !same(p.Engine, e)):
		return false, adminErrorf(http.StatusConflict, "exists", "there is an engine %s with another entry, in %s (%s)", e.Name, p.listOf, p.from)
	case known && !p.record.Removed && (p.record.Drain == overrides.DrainOn) == drained:
		return false, nil
	case known && p.from != fromAdmin:
		if !drained && p.record.Drain == overrides.DrainOff {
			rec.Drain = overrides.DrainOff
		}
		return true, s.want(ctx, rec)
	}
	if err := fitsAdded(m, to.list, e); err != nil {
		return false, adminErrorf(http.StatusBadRequest, "bad_engine", "%v", err)
	}
	for _, f := range e.Files() {
		if *f.Path == "" {
			continue
		}
		if err := configfile.Regular(*f.Path); err != nil {
			return false, adminErrorf(http.StatusBadRequest, "bad_engine", "%s cannot be read: %v", f.Key, err)
		}
	}
	rec.Model, rec.List, rec.Entry = to.model, to.list, &e
	return !known, s.want(ctx, rec)
}

// drain has an engine take no more requests, or take them again. An engine that was removed is there again then.
func (s *sources) drain(ctx context.Context, name string, on bool, by string) error {
	p, err := s.named(name)
	if err != nil {
		return err
	}
	if on && p.record.Removed {
		return nil // it takes none
	}
	rec := p.record
	rec.Engine, rec.By, rec.Removed, rec.Wait, rec.Drain = name, by, false, nil, overrides.DrainOn
	if !on {
		if rec.Drain = overrides.AsSourced; p.Drain && p.from != fromAdmin {
			rec.Drain = overrides.DrainOff // the source may have it drained
		}
	}
	if !p.record.Removed && p.record.Drain == rec.Drain || !on && !p.Drain && !p.record.Removed {
		return nil
	}
	return s.want(ctx, rec)
}

// remove has an engine drained and then gone: when its requests have ended, or after wait, if that is not nil. Those that it
// still has then run on to their end.
func (s *sources) remove(ctx context.Context, name string, wait *time.Duration, by string) error {
	p, err := s.named(name)
	if err != nil {
		if s.overrides.All()[name].Removed {
			return nil // it is gone already
		}
		return err
	}
	if p.gone || p.record.Removed && (wait == nil || p.record.Wait != nil && *p.record.Wait <= *wait) {
		return nil
	}
	rec := p.record
	rec.Engine, rec.By, rec.Removed, rec.Wait = name, by, true, wait
	if err := s.want(ctx, rec); err != nil {
		return err
	}
	if s.settle() {
		s.refresh(ctx) // it is removed, whenever that can be taken into use
	}
	return nil
}

func (s *sources) named(name string) (placed, error) {
	if metadata.ValidName(name) == nil {
		if p, ok := find(s.engines(), name); ok {
			return p, nil
		}
	}
	return placed{}, adminErrorf(http.StatusNotFound, "no_engine", "there is no engine %.100q", name)
}

// want takes into use what is wanted, and tells the other gateways. What cannot be taken into use is refused, and leaves
// nothing behind: not here, where somebody else's change may have applied it as well, and not with the others. An
// administrator who leaves meanwhile changes nothing about that.
func (s *sources) want(ctx context.Context, rec overrides.Override) error {
	ctx = context.WithoutCancel(ctx)
	err := s.overrides.Try(rec, func() error { return s.apply(ctx, s.merge) })
	if err == nil {
		return nil
	}
	s.log.Error("what an administrator wants could not be taken into use: it is refused", "engine", rec.Engine, "err", err)
	if errors.Is(err, errEnded) {
		return adminErrorf(http.StatusServiceUnavailable, "stopping", "the gateway is stopping; nothing has changed")
	}
	s.refresh(ctx)
	return adminErrorf(http.StatusServiceUnavailable, "not_applied", "it could not be taken into use, and nothing has changed; the gateway's log says why")
}
