package router

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/upstream"
)

// reported is what an engine says of the models that it serves. It is never changed.
type reported struct {
	base     served            // the model itself
	adapters map[string]served // by the names of the adapters on top of it
}

// served is one model of an engine's list.
type served struct {
	ID      string `json:"id"`
	Created int64  `json:"created"`
	Owner   string `json:"owned_by"`
	Root    string `json:"root"`
	Parent  string `json:"parent"`        // of an adapter: the model that it is for
	MaxLen  int    `json:"max_model_len"` // 0 if it is not said
}

const (
	maxModelList  = 1 << 20 // bytes of an engine's list
	maxAdapters   = 4096    // of one engine
	maxModelName  = 256     // bytes of an adapter's name
	modelsPerLook = 5       // health checks between two looks at an engine's list
)

// parseReported reads an engine's list of models. What has a parent that the engine serves is an adapter of it; of the
// others the one of that name is the model, or the first.
func parseReported(list []byte, name string) (*reported, error) {
	var all struct {
		Data []served `json:"data"`
	}
	if err := json.Unmarshal(list, &all); err != nil {
		return nil, fmt.Errorf("router: models: %w", err)
	}
	r := &reported{}
	bases := map[string]bool{name: true}
	for _, m := range all.Data {
		if m.Parent == "" {
			bases[m.ID] = true
			if r.base.ID == "" || m.ID == name {
				r.base = m
			}
		}
	}
	for _, m := range all.Data {
		if !bases[m.Parent] || bases[m.ID] || m.ID == "" || len(m.ID) > maxModelName || len(r.adapters) == maxAdapters {
			continue
		}
		if r.adapters == nil {
			r.adapters = map[string]served{}
		}
		m.Parent = name
		r.adapters[m.ID] = m
	}
	return r, nil
}

// same reports whether both say the same.
func (r *reported) same(o *reported) bool {
	return r == o || r != nil && o != nil && r.base == o.base && maps.Equal(r.adapters, o.adapters)
}

// has reports whether the engine serves that adapter.
func (e *engine) has(adapter string) bool {
	r := e.reported.Load()
	if r == nil {
		return false
	}
	_, ok := r.adapters[adapter]
	return ok
}

// adapters are the models whose engines report adapters, by the names of those. The zero value has none.
type adapters struct {
	byName atomic.Pointer[map[string]*model]
}

func (a *adapters) of(name string) *model {
	if all := a.byName.Load(); all != nil {
		return (*all)[name]
	}
	return nil
}

// indexAdapters enters what the engines report. A configured model goes before an adapter of the same name, and of two models the
// one that is configured first.
func (f *fleet) indexAdapters(order []config.Model) {
	all := map[string]*model{}
	for _, mc := range order {
		m := f.models[mc.Name]
		for _, e := range m.decode {
			r := e.reported.Load()
			if r == nil {
				continue
			}
			for name := range r.adapters {
				if f.models[name] == nil && all[name] == nil {
					all[name] = m
				}
			}
		}
	}
	f.adapters.byName.Store(&all)
}

// find returns the model that a client names: by its own name, or by that of an adapter, which is returned too.
func (f *fleet) find(name string) (m *model, adapter string) {
	if m = f.models[name]; m != nil {
		return m, ""
	}
	return f.adapters.of(name), name
}

// watchModels asks an engine what it serves until ctx ends: at once, whenever it is up again, and every few health checks.
func (r *Router) watchModels(ctx context.Context, e *engine) {
	its := upstream.NewTimeouts(ctx)
	checks := 1 + rand.IntN(modelsPerLook) // until the next look: engines that begin together are not asked together
	for {
		known := !e.down.Load() && r.askModels(its, e)
		if ctx.Err() != nil {
			return
		}
		if !known {
			checks = 1
		}
		every := r.now().cfg.Timeouts.Health
		select {
		case <-ctx.Done():
			return
		case <-e.relist:
		case <-time.After(gathered(time.Now(), time.Duration(checks)*every, every/bundles)):
		}
		checks = modelsPerLook
	}
}

// askModels asks an engine what it serves. It reports whether it has answered: one that does not tell is not asked more often
// than others.
func (r *Router) askModels(its *upstream.Timeouts, e *engine) bool {
	held := its.Begin(max(r.now().cfg.Timeouts.Health, time.Second))
	defer its.End()
	resp, err := e.up.Do(held, &upstream.Request{Method: "GET", Path: pathModels, Header: e.header[1:]})
	if err != nil {
		return false
	}
	defer resp.Close()
	list, err := resp.ReadAll(nil, maxModelList)
	if err != nil || resp.Status == http.StatusServiceUnavailable {
		return false
	}
	if resp.Status != http.StatusOK {
		return true
	}
	now, err := parseReported(list, e.model)
	if err != nil {
		if !e.untold.Swap(true) {
			r.log.Info("engine's list of models", "engine", e.name, "err", err)
		}
		return true
	}
	e.untold.Store(false)
	if now.same(e.reported.Load()) {
		return true
	}
	e.reported.Store(now)
	r.applying.Lock() // no other setup comes between
	s := r.now()
	s.fleet.indexAdapters(s.cfg.Models)
	r.applying.Unlock()
	return true
}

// card is one model as clients see it.
type card struct {
	ID      string  `json:"id"`
	Object  string  `json:"object"`
	Created int64   `json:"created"`
	Owner   string  `json:"owned_by"`
	Root    *string `json:"root,omitempty"`
	Parent  *string `json:"parent,omitempty"`
	MaxLen  int     `json:"max_model_len,omitempty"`
}

// cards are the models that the caller may name: the configured ones in their order, each with the adapters that its
// engines report behind it. Of what engines differ in, the least context is told, and else what the first one says.
func (s *setup) cards(who principal) []card {
	all := []card{}
	for _, mc := range s.cfg.Models {
		m := s.fleet.models[mc.Name]
		base := card{ID: m.name, Object: "model", Owner: "pdrouter"}
		found := map[string]card{}
		for _, e := range slices.Concat(m.decode, m.prefill) {
			r := e.reported.Load()
			if r == nil {
				continue
			}
			base.take(r.base)
			for name, a := range r.adapters {
				if s.fleet.adapters.of(name) == m && who.Permits(name) {
					c, ok := found[name]
					if !ok {
						c = card{ID: name, Object: "model", Owner: "pdrouter", Parent: &m.name}
					}
					c.take(a)
					found[name] = c
				}
			}
		}
		if who.Permits(m.name) {
			all = append(all, base)
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			all = append(all, found[name])
		}
	}
	return all
}

func (c *card) take(m served) {
	if c.Created == 0 {
		c.Created = m.Created
	}
	if c.Root == nil && m.Root != "" {
		c.Root = &m.Root
	}
	if m.MaxLen > 0 && (c.MaxLen == 0 || m.MaxLen < c.MaxLen) {
		c.MaxLen = m.MaxLen
	}
}
