package router

import (
	"maps"
	"sync"
	"sync/atomic"
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
	entering sync.Mutex // one indexAdapters at a time
	byName   atomic.Pointer[map[string]*model]
}

func (a *adapters) of(name string) *model {
	if all := a.byName.Load(); all != nil {
		return (*all)[name]
	}
	return nil
}

// indexAdapters enters what the engines report. A configured model goes before an adapter of the same name, and of two models the
// one that is configured first.
func (f *fleet) indexAdapters() {
	f.adapters.entering.Lock()
	defer f.adapters.entering.Unlock()
	all := map[string]*model{}
	for _, m := range f.ordered {
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
