package router

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
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
func (m *monitor) watchModels(ctx context.Context, e *engine) {
	its := upstream.NewTimeouts(ctx)
	unread := false                        // the last list could not be read, which was logged
	checks := 1 + rand.IntN(modelsPerLook) // until the next look: engines that begin together are not asked together
	for {
		known := !e.down.Load() && m.askModels(its, e, &unread)
		if ctx.Err() != nil {
			return
		}
		if !known {
			checks = 1
		}
		every := m.current().cfg.Timeouts.Health
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
func (m *monitor) askModels(its *upstream.Timeouts, e *engine, unread *bool) bool {
	held := its.Begin(max(m.current().cfg.Timeouts.Health, time.Second))
	defer its.End()
	status, list, err := get(held, e, pathModels, maxModelList)
	if err != nil || status == http.StatusServiceUnavailable {
		return false
	}
	if status != http.StatusOK {
		return true
	}
	now, err := parseReported(list, e.model)
	if err != nil {
		if !*unread {
			m.log.Info("engine's list of models", "engine", e.name, "err", err)
		}
		*unread = true
		return true
	}
	*unread = false
	if now.same(e.reported.Load()) {
		return true
	}
	e.reported.Store(now)
	m.current().fleet.indexAdapters()
	return true
}
