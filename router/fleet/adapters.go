package fleet

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"pdrouter/policies"
)

// Reported is what an engine says of the models that it serves. It is never changed.
type Reported struct {
	Base     Served            // the model itself
	Adapters map[string]Served // by the names of the adapters on top of it
}

// Served is one model of an engine's list.
type Served struct {
	ID      string `json:"id"`
	Created int64  `json:"created"`
	Owner   string `json:"owned_by"`
	Root    string `json:"root"`
	Parent  string `json:"parent"`        // of an adapter: the model that it is for
	MaxLen  int    `json:"max_model_len"` // 0 if it is not said
}

// Same reports whether both say the same.
func (r *Reported) Same(o *Reported) bool {
	return r == o || r != nil && o != nil && r.Base == o.Base && maps.Equal(r.Adapters, o.Adapters)
}

// MaxLen is how many tokens prompt and answer may have, as the engine says; 0 if it does not.
func (e *Engine) MaxLen() int {
	if r := e.Reported.Load(); r != nil {
		return r.Base.MaxLen
	}
	return 0
}

// OtherModel reports whether the engine says that it serves other models, and not its own. It may serve requests for its own nevertheless: some engines
// do not look at the name.
func (e *Engine) OtherModel() bool {
	r := e.Reported.Load()
	return r != nil && r.Base.ID != "" && r.Base.ID != e.Model
}

// has reports whether the engine serves that adapter.
func (e *Engine) has(adapter string) bool {
	r := e.Reported.Load()
	if r == nil {
		return false
	}
	_, ok := r.Adapters[adapter]
	return ok
}

// AdapterSlots is what an engine says of the adapters in its memory. It is never changed.
type AdapterSlots struct {
	Slots  int      // how many adapters it computes with at a time; at least 1
	Loaded []string // those that it computed with last, at most Slots
	Active []string // those that requests are computed with, or wait for
}

// state is that of an adapter on the engine. s is nil if the engine says nothing.
func (s *AdapterSlots) state(adapter string) policies.AdapterState {
	if s == nil {
		return policies.AdapterLoadable
	}
	if slices.Contains(s.Loaded, adapter) {
		return policies.AdapterLoaded
	}
	others := len(s.Active)
	if slices.Contains(s.Active, adapter) {
		others--
	}
	if others >= s.Slots {
		return policies.AdapterBlocked
	}
	return policies.AdapterLoadable
}

// noteAdapterUse notes which models' policies look at the adapters that engines have loaded.
func (f *Fleet) noteAdapterUse() {
	for _, planner := range f.planners() {
		if planner, can := planner.(interface{ Adapters(model string) bool }); can {
			for _, m := range f.Models {
				m.usesAdapters = m.usesAdapters || planner.Adapters(m.Name)
			}
		}
	}
}

// UsesAdapterSlots reports whether it matters which adapters an engine has loaded: it serves some, and the model's policy looks at them.
func (f *Fleet) UsesAdapterSlots(e *Engine) bool {
	m, r := f.Models[e.Model], e.Reported.Load()
	return m != nil && m.usesAdapters && r != nil && len(r.Adapters) > 0
}

// adapters are the models whose engines report adapters, by the names of those. The zero value has none.
type adapters struct {
	entering sync.Mutex // one IndexAdapters at a time
	byName   atomic.Pointer[map[string]*Model]
}

func (a *adapters) of(name string) *Model {
	if all := a.byName.Load(); all != nil {
		return (*all)[name]
	}
	return nil
}

// AdapterOf returns the model whose engines report an adapter of that name; nil if none does.
func (f *Fleet) AdapterOf(name string) *Model { return f.adapters.of(name) }

// IndexAdapters enters what the engines report. A configured model goes before an adapter of the same name, and of two models the
// one that is configured first.
func (f *Fleet) IndexAdapters() {
	f.adapters.entering.Lock()
	defer f.adapters.entering.Unlock()
	all := map[string]*Model{}
	for _, m := range f.ordered {
		for _, e := range m.Decode {
			r := e.Reported.Load()
			if r == nil {
				continue
			}
			for name := range r.Adapters {
				if f.Models[name] == nil && all[name] == nil {
					all[name] = m
				}
			}
		}
	}
	f.adapters.byName.Store(&all)
}
