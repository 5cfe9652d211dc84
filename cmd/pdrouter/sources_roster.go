package main

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

// listOf names one list of engines: prefill, decode or engines of a model.
type listOf struct{ model, list string }

// String returns the list's dotted name, for people.
func (l listOf) String() string { return l.model + "." + l.list }

// Where an engine comes from.
const (
	fromStatic = "static" // the lists of the configuration file
	fromDNS    = "dns"
	fromFile   = "file"
	fromAdmin  = "admin"
)

// found is what a source has for one list.
type found struct {
	from    string // fromDNS or fromFile
	engines []config.Engine
	leaving map[string]bool // by name: these take no more requests, and are removed when those that they have have ended
}

// roster is all that is known of engines besides the configuration file, at one moment.
type roster struct {
	found   map[listOf]found
	records overrides.ByEngine
	keyless map[string]string // files with credentials that cannot be read, and why
	gone    map[string]int64  // engines that were removed and have no more requests here, with the At of the record
}

// placed is one engine of the merged configuration.
type placed struct {
	listOf
	config.Engine
	from    string
	leaving bool               // its source has it no more
	gone    bool               // it was removed, and has no more requests: it is not of the merged configuration
	record  overrides.Override // the zero record if administrators want nothing
}

// conflict is an engine that is left out, and why.
type conflict struct {
	listOf
	engine, from, why string
}

// merge returns the configuration with all engines, where each comes from, and what is left out of it. The configuration
// file wins over what was found, and that over what was added: names are of one engine only. What does not fit the model
// that it is for is left out as well, so that the rest stays sound. It changes nothing of cfg.
func (r roster) merge(cfg config.Config) (config.Config, []placed, []conflict) {
	var all []placed
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
			here := listOf{m.Name, at.Key}
			var list []placed
			for _, e := range *at.Engines {
				list = append(list, placed{listOf: here, Engine: e, from: fromStatic})
			}
			if f, ok := r.found[here]; ok && at.Source.On() {
				for _, e := range f.engines {
					list = r.add(list, placed{listOf: here, Engine: e, from: f.from, leaving: f.leaving[e.Name]}, r.fits(file[i], at.Key, e), taken, &out)
				}
			}
			for _, rec := range r.added(here) {
				list = r.add(list, placed{listOf: here, Engine: *rec.Entry, from: fromAdmin}, r.fits(file[i], at.Key, *rec.Entry), taken, &out)
			}
			*at.Engines = nil
			for _, p := range list {
				p.record = r.records[p.Name]
				if added := p.record.Entry; p.from != fromAdmin && added != nil && !same(*added, p.Engine) {
					p.record = overrides.Override{} // it is of another engine, which was added under this name
				}
				if p.from != fromAdmin { // it may have been added before its source had it
					p.record.Entry = nil
				}
				if at, gone := r.gone[p.Name]; gone && at == p.record.At && p.record.Removed {
					if p.from != fromAdmin { // else nobody has it any more
						p.gone = true
						all = append(all, p)
					}
					continue
				}
				p.Drain = p.leaving || p.record.Removed || p.record.Drain == overrides.DrainOn || p.Drain && p.record.Drain != overrides.DrainOff
				*at.Engines = append(*at.Engines, p.Engine)
				all = append(all, p)
			}
		}
	}
	return cfg, all, out
}

// add appends an engine if its name is free and it is not unfit for the model.
func (r roster) add(list []placed, p placed, unfit error, taken map[string]bool, out *[]conflict) []placed {
	why := ""
	if slices.ContainsFunc(p.Names(), func(name string) bool { return taken[name] }) {
		why = "another engine has its name"
	} else if unfit != nil {
		why = unfit.Error()
	}
	if why != "" {
		*out = append(*out, conflict{p.listOf, p.Name, p.from, why})
		return list
	}
	for _, name := range p.Names() {
		taken[name] = true
	}
	return append(list, p)
}

// added returns the records of engines that were added to a list, by name.
func (r roster) added(to listOf) []overrides.Override {
	var all []overrides.Override
	for _, rec := range r.records {
		if rec.Entry != nil && rec.Model == to.model && rec.List == to.list {
			all = append(all, rec)
		}
	}
	slices.SortFunc(all, func(x, y overrides.Override) int {
		if x.Engine < y.Engine {
			return -1
		}
		return 1
	})
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

// fitsAdded is fits for an engine that the configuration does not list, from whom the path of a file is not taken but as a
// choice: what stands in the file is sent to the engine.
func fitsAdded(m config.Model, list string, e config.Engine) error {
	for _, f := range e.Files() {
		if err := configfile.MayName(m, f); err != nil {
			return err
		}
	}
	return fits(m, list, e)
}

// fits is fitsAdded for an engine whose credential is to be read as well: one engine without it must not keep the rest out.
func (r roster) fits(m config.Model, list string, e config.Engine) error {
	for _, f := range e.Files() {
		if why, ok := r.keyless[*f.Path]; ok {
			return field.Errorf(f.Key, "cannot be read: %s", why)
		}
	}
	return fitsAdded(m, list, e)
}

// same reports whether two entries are of the same engine; whether it drains is no part of that.
func same(x, y config.Engine) bool {
	x.Drain, y.Drain = false, false
	return reflect.DeepEqual(x, y)
}

// find returns the engine of that name.
func find(all []placed, name string) (placed, bool) {
	i := slices.IndexFunc(all, func(p placed) bool { return p.Name == name })
	if i < 0 {
		return placed{}, false
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
