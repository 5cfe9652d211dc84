package fleetview

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"pdrouter/internal/configfile"
	"pdrouter/internal/field"
	"pdrouter/internal/overrides"
	"pdrouter/router/config"
)

// List names one list of engines of a model by its key: prefill, decode or engines.
type List struct{ Model, Key string }

// String returns the list's dotted name, for people.
func (l List) String() string { return l.Model + "." + l.Key }

// Prefix is what the names of the list's engines begin with where DNS has them. "" says that there is no such list.
func (l List) Prefix() string {
	for _, at := range configfile.EngineLists(new(config.Model)) {
		if at.Key == l.Key {
			return at.Prefix
		}
	}
	return ""
}

// Where an engine comes from.
const (
	FromStatic     = "static" // the lists of the configuration file
	FromDNS        = "dns"
	FromFile       = "file"
	FromKubernetes = "kubernetes"
	FromAdmin      = "admin"
)

// Engine is one engine of the merged configuration.
type Engine struct {
	List
	config.Engine
	From     string
	Leaving  bool               // its source has it no more
	Removed  bool               // it was removed, and has no more requests: it is not of the merged configuration
	Override overrides.Override // the zero value if administrators want nothing
}

// found is what a source has for one list.
type found struct {
	from    string // FromDNS, FromFile or FromKubernetes
	engines []config.Engine
	leaving map[string]bool // by name: these take no more requests, and are removed when those that they have have ended
}

// snapshot is all that is known of engines besides the configuration file, at one moment.
type snapshot struct {
	found      map[List]found
	overrides  overrides.ByEngine
	unreadable map[string]string // files with credentials that cannot be read, and why
	removed    map[string]int64  // engines that were removed and have no more requests here, with the At of the override
}

// conflict is an engine that is left out, and why.
type conflict struct {
	List
	engine, from, why string
}

// merge returns the configuration with all engines, where each comes from, and what is left out of it. The configuration
// file wins over what was found, and that over what was added: names are of one engine only. What does not fit the model
// that it is for is left out as well, so that the rest stays sound. It changes nothing of cfg.
func (s snapshot) merge(cfg config.Config) (config.Config, []Engine, []conflict) {
	var all []Engine
	var out []conflict
	taken := map[string]bool{}
	for _, m := range cfg.Models {
		for _, at := range configfile.EngineLists(&m) {
			for _, e := range *at.Engines {
				for _, name := range e.Names() {
					taken[name] = true
				}
			}
		}
	}
	file := cfg.Models
	cfg.Models, cfg.Growing = slices.Clone(cfg.Models), true // the last one of a list may be removed
	for i := range cfg.Models {
		m := &cfg.Models[i]
		for _, at := range configfile.EngineLists(m) {
			here := List{m.Name, at.Key}
			var list []Engine
			for _, e := range *at.Engines {
				list = append(list, Engine{List: here, Engine: e, From: FromStatic})
			}
			if f, ok := s.found[here]; ok && at.Source.On() {
				for _, e := range f.engines {
					list = add(list, Engine{List: here, Engine: e, From: f.from, Leaving: f.leaving[e.Name]}, s.fits(file[i], at.Key, e), taken, &out)
				}
			}
			for _, o := range s.added(here) {
				list = add(list, Engine{List: here, Engine: *o.Entry, From: FromAdmin}, s.fits(file[i], at.Key, *o.Entry), taken, &out)
			}
			*at.Engines = nil
			for _, e := range list {
				e.Override = s.overrides[e.Name]
				if added := e.Override.Entry; e.From != FromAdmin && added != nil && !Same(*added, e.Engine) {
					e.Override = overrides.Override{} // it is of another engine, which was added under this name
				}
				if e.From != FromAdmin { // it may have been added before its source had it
					e.Override.Entry = nil
				}
				if at, removed := s.removed[e.Name]; removed && at == e.Override.At && e.Override.Removed {
					if e.From != FromAdmin { // else nobody has it any more
						e.Removed = true
						all = append(all, e)
					}
					continue
				}
				e.Drain = e.Leaving || e.Override.Removed || e.Override.Drain == overrides.DrainOn || e.Drain && e.Override.Drain != overrides.DrainOff
				*at.Engines = append(*at.Engines, e.Engine)
				all = append(all, e)
			}
		}
	}
	return cfg, all, out
}

// add appends an engine if its name is free and it is not unfit for the model.
func add(list []Engine, e Engine, unfit error, taken map[string]bool, out *[]conflict) []Engine {
	why := ""
	if slices.ContainsFunc(e.Names(), func(name string) bool { return taken[name] }) {
		why = "another engine has its name"
	} else if unfit != nil {
		why = unfit.Error()
	}
	if why != "" {
		*out = append(*out, conflict{e.List, e.Name, e.From, why})
		return list
	}
	for _, name := range e.Names() {
		taken[name] = true
	}
	return append(list, e)
}

// added returns the overrides of engines that were added to a list, by name.
func (s snapshot) added(to List) []overrides.Override {
	var all []overrides.Override
	for _, o := range s.overrides {
		if o.Entry != nil && o.Model == to.Model && o.List == to.Key {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(x, y overrides.Override) int { return strings.Compare(x.Engine, y.Engine) })
	return all
}

// fits reports what is wrong with an engine's entry in a list of the model; each mistake begins with the key.
func fits(m config.Model, list string, e config.Engine) error {
	alone := config.Model{Name: m.Name, Connector: m.Connector, ForwardAuthorization: m.ForwardAuthorization}
	for _, at := range configfile.EngineLists(&alone) {
		if at.Key == list {
			*at.Engines = []config.Engine{e}
		}
	}
	return field.Rename(config.Config{Models: []config.Model{alone}, Growing: true}.Validate(), func(path string) string {
		return strings.TrimPrefix(strings.TrimPrefix(path, "models[0]."), list+"[0].")
	})
}

// FitsAdded is fits for an engine that the configuration does not list, from whom the path of a file is not taken but as a
// choice: what stands in the file is sent to the engine.
func FitsAdded(m config.Model, list string, e config.Engine) error {
	for _, f := range e.Files() {
		if err := configfile.MayName(m, f); err != nil {
			return err
		}
	}
	return fits(m, list, e)
}

// fits is FitsAdded for an engine whose credential is to be read as well: one engine without it must not keep the rest out.
func (s snapshot) fits(m config.Model, list string, e config.Engine) error {
	for _, f := range e.Files() {
		if why, ok := s.unreadable[*f.Path]; ok {
			return field.Errorf(f.Key, "cannot be read: %s", why)
		}
	}
	return FitsAdded(m, list, e)
}

// Same reports whether two entries are of the same engine; whether it drains is no part of that.
func Same(x, y config.Engine) bool {
	x.Drain, y.Drain = false, false
	return reflect.DeepEqual(x, y)
}

// find returns the engine of that name.
func find(all []Engine, name string) (Engine, bool) {
	i := slices.IndexFunc(all, func(e Engine) bool { return e.Name == name })
	if i < 0 {
		return Engine{}, false
	}
	return all[i], true
}

// modelNamed returns the model of a configuration.
func modelNamed(cfg config.Config, name string) (config.Model, error) {
	for _, m := range cfg.Models {
		if m.Name == name {
			return m, nil
		}
	}
	return config.Model{}, fmt.Errorf("there is no model %.100q", name)
}
