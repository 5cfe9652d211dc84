package router

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"pdrouter/router/upstream"
)

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

// watchModels asks an engine what it serves until ctx ends: at once, whenever it is up again, and every few health checks.
func (r *Router) watchModels(ctx context.Context, e *engine) {
	its := upstream.NewTimeouts(ctx)
	unread := false                        // the last list could not be read, which was logged
	checks := 1 + rand.IntN(modelsPerLook) // until the next look: engines that begin together are not asked together
	for {
		known := !e.down.Load() && r.askModels(its, e, &unread)
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

// askModels asks an engine what it serves. It reports whether it has answered: one that does not tell is not asked more often than others.
// It notes in unread whether the list could be read.
func (r *Router) askModels(its *upstream.Timeouts, e *engine, unread *bool) bool {
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
		if !*unread {
			r.log.Info("engine's list of models", "engine", e.name, "err", err)
		}
		*unread = true
		return true
	}
	*unread = false
	if now.same(e.reported.Load()) {
		return true
	}
	e.reported.Store(now)
	r.applying.Lock() // no other setup comes between
	r.now().fleet.indexAdapters()
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
