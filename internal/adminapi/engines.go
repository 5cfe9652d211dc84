package adminapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/fleetview"
	"pdrouter/internal/overrides"
	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// Error is how a request of an administrator ends when it does not succeed.
type Error struct {
	Status int
	Reason string // for the header and the log
	Msg    string
}

// Error returns the reason and the message.
func (e *Error) Error() string { return e.Reason + ": " + e.Msg }

// Write answers in OpenAI's error shape.
func (e *Error) Write(w http.ResponseWriter) {
	kind := "invalid_request_error"
	if e.Status >= 500 {
		kind = "server_error"
	}
	w.Header().Set("X-Pdrouter-Reason", e.Reason)
	writeJSON(w, e.Status, map[string]any{"error": map[string]any{"message": e.Msg, "type": kind, "param": nil, "code": e.Status}})
}

func errorf(status int, reason, format string, args ...any) error {
	return &Error{status, reason, fmt.Sprintf(format, args...)}
}

// Engine is one engine as administrators see it.
type Engine struct {
	Name        string     `json:"name"`
	Model       string     `json:"model"`
	Role        string     `json:"role"` // the list that it is of: prefill, decode or engines
	URL         string     `json:"url"`
	Control     string     `json:"control,omitempty"`
	SideChannel string     `json:"side_channel,omitempty"`
	Source      string     `json:"source"`                // static, dns, file, kubernetes or admin
	State       string     `json:"state"`                 // up, unchecked, down, draining, drained, leaving, removing or removed
	InFlight    int64      `json:"in_flight"`             // legs that it works on, of this gateway
	MovesLeft   int        `json:"moves_left,omitempty"`  // conversations that this gateway has yet to move to other engines, as it drains
	Recomputing bool       `json:"recomputing,omitempty"` // it computes prompts that it should receive from prefill engines
	SlowFrom    []string   `json:"slow_from,omitempty"`   // prefill engines whose hand-offs to it are slow
	Drain       bool       `json:"drain"`                 // it takes no more requests
	By          string     `json:"changed_by,omitempty"`
	At          *time.Time `json:"changed_at,omitempty"`
}

// Expired is what administrators wanted of an engine and no gateway has refreshed in time: it does not hold any more.
type Expired struct {
	Name   string    `json:"name"`
	Wanted string    `json:"wanted"` // drained, undrained, removed, or added
	By     string    `json:"changed_by"`
	At     time.Time `json:"changed_at"`
}

func expiredOf(all overrides.ByEngine) []Expired {
	var out []Expired
	for _, name := range slices.Sorted(maps.Keys(all)) {
		rec := all[name]
		out = append(out, Expired{name, rec.Wanted(), rec.By, rec.Time().UTC()})
	}
	return out
}

// engineStats is what this gateway's router knows of an engine.
type engineStats struct {
	up       bool // it is not down
	checked  bool // it has answered at least once
	inFlight int64
	moves    int
	busy     bool // requests need it

	recomputing bool
	slowFrom    []string
}

// describe says what is known of an engine.
func describe(p fleetview.Engine, s engineStats) Engine {
	e := Engine{Name: p.Name, Model: p.Model, Role: p.Key, URL: p.URL, Control: p.Control, SideChannel: p.SideChannel, Source: p.From,
		InFlight: s.inFlight, MovesLeft: s.moves, Drain: p.Drain, By: p.Override.By,
		Recomputing: s.recomputing, SlowFrom: s.slowFrom}
	switch {
	case p.Removed:
		e.State, e.Drain = "removed", true
	case p.Override.Removed:
		e.State = "removing"
	case p.Leaving:
		e.State = "leaving"
	case p.Drain && (s.busy || s.moves > 0):
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
	if p.Override.At != 0 {
		at := p.Override.Time().UTC()
		e.At = &at
	}
	return e
}

// addEngine has an engine be of a list. It reports whether it is another than before. The same engine may be added again: one that
// was removed is back, one that drains is used again.
func (a *Handler) addEngine(ctx context.Context, to fleetview.List, e config.Engine, by string) (bool, error) {
	m, err := a.View.Model(to.Model)
	if err != nil {
		return false, errorf(http.StatusNotFound, "no_model", "%v", err)
	}
	o := overrides.Override{Engine: e.Name, By: by}
	drained := e.Drain
	e.Drain = false
	if drained {
		o.Drain = overrides.DrainOn
	}
	if e.Name == "" {
		return false, errorf(http.StatusBadRequest, "bad_engine", "name is empty; want a stable name")
	}
	p, known := a.View.Engine(e.Name)
	switch {
	case known && (p.List != to || !fleetview.Same(p.Engine, e)):
		return false, errorf(http.StatusConflict, "exists", "there is an engine %s with another entry, in %s (%s)", e.Name, p.List, p.From)
	case known && !p.Override.Removed && (p.Override.Drain == overrides.DrainOn) == drained:
		return false, nil
	case known && p.From != fleetview.FromAdmin:
		if !drained && p.Override.Drain == overrides.DrainOff {
			o.Drain = overrides.DrainOff
		}
		return true, a.override(ctx, o)
	}
	if err := fleetview.FitsAdded(m, to.Key, e); err != nil {
		return false, errorf(http.StatusBadRequest, "bad_engine", "%v", err)
	}
	for _, f := range e.Files() {
		if *f.Path == "" {
			continue
		}
		if err := configfile.Regular(*f.Path); err != nil {
			return false, errorf(http.StatusBadRequest, "bad_engine", "%s cannot be read: %v", f.Key, err)
		}
	}
	o.Model, o.List, o.Entry = to.Model, to.Key, &e
	return !known, a.override(ctx, o)
}

// drain has an engine take no more requests, or take them again. An engine that was removed is there again then.
func (a *Handler) drain(ctx context.Context, name string, on bool, by string) error {
	p, err := a.engine(name)
	if err != nil {
		return err
	}
	if on && p.Override.Removed {
		return nil // it takes none
	}
	o := p.Override
	o.Engine, o.By, o.Removed, o.Wait, o.Drain = name, by, false, nil, overrides.DrainOn
	if !on {
		if o.Drain = overrides.AsSourced; p.Drain && p.From != fleetview.FromAdmin {
			o.Drain = overrides.DrainOff // the source may have it drained
		}
	}
	if !p.Override.Removed && p.Override.Drain == o.Drain || !on && !p.Drain && !p.Override.Removed {
		return nil
	}
	return a.override(ctx, o)
}

// removeEngine has an engine drained and then gone: when its requests have ended, or after wait, if that is not nil. Those that it
// still has then run on to their end.
func (a *Handler) removeEngine(ctx context.Context, name string, wait *time.Duration, by string) error {
	p, err := a.engine(name)
	if err != nil {
		if a.Overrides.All()[name].Removed {
			return nil // it is gone already
		}
		return err
	}
	if p.Removed || p.Override.Removed && (wait == nil || p.Override.Wait != nil && *p.Override.Wait <= *wait) {
		return nil
	}
	o := p.Override
	o.Engine, o.By, o.Removed, o.Wait = name, by, true, wait
	if err := a.override(ctx, o); err != nil {
		return err
	}
	a.View.Settle(ctx)
	return nil
}

func (a *Handler) engine(name string) (fleetview.Engine, error) {
	if metadata.ValidName(name) == nil {
		if p, ok := a.View.Engine(name); ok {
			return p, nil
		}
	}
	return fleetview.Engine{}, errorf(http.StatusNotFound, "no_engine", "there is no engine %.100q", name)
}

// override takes into use what is wanted.
func (a *Handler) override(ctx context.Context, o overrides.Override) error {
	err := a.View.Override(ctx, o)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fleetview.ErrStopping):
		return errorf(http.StatusServiceUnavailable, "stopping", "the gateway is stopping; nothing has changed")
	}
	return errorf(http.StatusServiceUnavailable, "not_applied", "it could not be taken into use, and nothing has changed; the gateway's log says why")
}
