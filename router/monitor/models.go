package monitor

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"pdrouter/router/fleet"
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
func parseReported(list []byte, name string) (*fleet.Reported, error) {
	var all struct {
		Data []fleet.Served `json:"data"`
	}
	if err := json.Unmarshal(list, &all); err != nil {
		return nil, fmt.Errorf("router: models: %w", err)
	}
	r := &fleet.Reported{}
	bases := map[string]bool{name: true}
	for _, m := range all.Data {
		if m.Parent == "" {
			bases[m.ID] = true
			if r.Base.ID == "" || m.ID == name {
				r.Base = m
			}
		}
	}
	for _, m := range all.Data {
		if !bases[m.Parent] || bases[m.ID] || m.ID == "" || len(m.ID) > maxModelName || len(r.Adapters) == maxAdapters {
			continue
		}
		if r.Adapters == nil {
			r.Adapters = map[string]fleet.Served{}
		}
		m.Parent = name
		r.Adapters[m.ID] = m
	}
	return r, nil
}

// watchModels asks an engine what it serves, and once for each run how large its prefix cache is,
// and which adapters it has loaded, until ctx ends: at once, whenever it is up again, and every few health checks.
func (m *Monitor) watchModels(ctx context.Context, e *fleet.Engine) {
	its := upstream.NewTimeouts(ctx)
	sized := false                         // the run has said how large its prefix cache is, or that it does not say
	unread := false                        // the last list could not be read, which was logged
	checks := 1 + rand.IntN(modelsPerLook) // until the next look: engines that begin together are not asked together
	for {
		known := !e.Down.Load() && m.askModels(its, e, &unread)
		sized = known && m.askCacheSize(its, e, sized)
		if known {
			m.askAdapterSlots(its, e)
		}
		if ctx.Err() != nil {
			return
		}
		if !known {
			checks = 1
		}
		every := m.current().Timeouts.Health
		select {
		case <-ctx.Done():
			return
		case <-e.Relist:
			sized = false // it may be another run
		case <-time.After(aligned(time.Now(), time.Duration(checks)*every, every/bundles)):
		}
		checks = modelsPerLook
	}
}

// askModels asks an engine what it serves. It reports whether it has answered: one that does not tell is not asked more often than others.
// It notes in unread whether the list could be read.
func (m *Monitor) askModels(its *upstream.Timeouts, e *fleet.Engine, unread *bool) bool {
	held := its.Begin(max(m.current().Timeouts.Health, time.Second))
	defer its.End()
	status, list, err := Get(held, e, "/v1/models", maxModelList)
	if err != nil || status == http.StatusServiceUnavailable {
		return false
	}
	if status != http.StatusOK {
		return true
	}
	now, err := parseReported(list, e.Model)
	if err != nil {
		if !*unread {
			m.log.Info("engine's list of models", "engine", e.Name, "err", err)
		}
		*unread = true
		return true
	}
	*unread = false
	if now.Same(e.Reported.Load()) {
		return true
	}
	e.Reported.Store(now)
	if e.OtherModel() {
		m.log.Warn("the model is not in the engine's list of models", "engine", e.Name, "model", e.Model, "listed", now.Base.ID[:min(len(now.Base.ID), maxModelName)])
	}
	m.current().Fleet.IndexAdapters()
	return true
}
