package main

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/internal/discovery"
	"pdrouter/router/config"
)

// lookout is a source that is looked at.
type lookout struct {
	source    config.Source
	connector string   // files are checked against it
	keys      []string // and against these: the files and folders of keys that the model names
	stop      func()   // waits
}

// watch starts looking at the sources of the base that are not looked at, and stops what is none any more.
func (s *sources) watch(ctx context.Context, running map[listOf]*lookout) {
	s.mu.Lock()
	kept := s.kept
	s.kept = map[listOf]bool{}
	s.mu.Unlock()
	base := s.base.Load()
	want := configured(*base)
	known := map[listOf]heirloom{}
	for at, w := range running {
		m, _ := modelNamed(*base, at.model) // without it the source is not wanted either
		if now, ok := want[at]; ok && !kept[at] && reflect.DeepEqual(now, w.source) && m.Connector == w.connector && (now.File == "" || slices.Equal(namedKeys(m), w.keys)) {
			delete(want, at)
			continue
		}
		w.stop()
		delete(running, at)
		s.mu.Lock()
		// What is known holds until another source has an answer, as far as that allows it. Of a list that has none any more it
		// means nothing, and keep replaces it: another reload may have done so by now.
		if now, f := want[at], s.found[at]; now.DNS != "" && f.engines != nil {
			before := heirloom{good: time.Now()}
			if d := s.dns[at]; d != nil {
				before.good = d.Stats().Good
			}
			name, _ := nameOf(now)
			f.engines = slices.DeleteFunc(slices.Clone(f.engines), func(e config.Engine) bool {
				at, isAddress := addressOf(e)
				if isAddress && name.Allows(at.Addr()) && now.DNS == w.source.DNS {
					before.known = append(before.known, discovery.Member{At: at, Leaving: f.leaving[e.Name]})
				}
				return isAddress && !name.Allows(at.Addr())
			})
			s.found[at], known[at] = f, before
		}
		delete(s.dns, at)
		delete(s.files, at)
		s.mu.Unlock()
	}
	for at, source := range want {
		m, _ := modelNamed(*base, at.model)
		its, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		run := s.start(its, at, source, m, known[at])
		wg.Go(func() { _ = run(its) }) // always nil
		running[at] = &lookout{source, m.Connector, namedKeys(m), func() { cancel(); wg.Wait() }}
	}
}

// namedKeys returns the files and folders of keys that entries of the model's files may name.
func namedKeys(m config.Model) []string {
	var all []string
	for _, at := range configfile.EngineLists(&m) {
		all = append(all, at.Source.KeyDir)
		for _, f := range configfile.NamedFiles(at) {
			all = append(all, f.Key+" "+*f.Path)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// heirloom is what a name begins with that takes over from another source.
type heirloom struct {
	known []discovery.Member // of the same name
	good  time.Time          // when it was last seen to be so; zero if there is nothing
}

// addressOf returns where an engine is, if its URL has an address for a host.
func addressOf(e config.Engine) (netip.AddrPort, bool) {
	name, err := discovery.ParseName(e.URL)
	if err != nil {
		return netip.AddrPort{}, false
	}
	addr, err := netip.ParseAddr(name.Host)
	return netip.AddrPortFrom(addr, name.Port), err == nil
}

// start returns what looks at one source until its context ends.
func (s *sources) start(ctx context.Context, at listOf, from config.Source, m config.Model, before heirloom) func(context.Context) error {
	if from.File != "" {
		f := discovery.NewFile(from.File, from.Every, func(path string, b []byte) error {
			engines, err := configfile.ReadEngines(m, at.list, path, b)
			if err == nil {
				s.take(ctx, at, found{from: fromFile, engines: engines})
			}
			return err
		}, s.log)
		s.mu.Lock()
		s.files[at] = f
		s.mu.Unlock()
		return func(ctx context.Context) error {
			if err := f.Look(); err != nil {
				s.log.Error("a file of engines cannot be used", "list", at.String(), "err", err)
			}
			s.looked(at)
			return f.Run(ctx)
		}
	}
	role := at.role()
	name, resolver := nameOf(from)
	busy := func(a netip.AddrPort) bool { return s.inFlight(from.Engine(role, a).Name) > 0 }
	d := discovery.NewDNS(name, resolver, busy, func(members []discovery.Member) {
		f := found{from: fromDNS, leaving: map[string]bool{}}
		for _, member := range members {
			e := from.Engine(role, member.At)
			f.engines = append(f.engines, e)
			f.leaving[e.Name] = member.Leaving
		}
		s.take(ctx, at, f)
		s.looked(at)
	}, s.log)
	s.mu.Lock()
	if _, ok := s.found[at]; ok && before.good.IsZero() { // what the file listed before
		before.good = time.Now()
	}
	d.Seed(before.known, before.good)
	s.dns[at] = d
	s.mu.Unlock()
	return d.Run
}

// role is what the names of a list's engines begin with, where DNS has them.
func (l listOf) role() string {
	for _, at := range configfile.EngineLists(new(config.Model)) {
		if at.Key == l.list {
			return at.Prefix
		}
	}
	return ""
}

// nameOf returns what a source has looked up, and who is asked. The source was validated.
func nameOf(from config.Source) (discovery.Name, *net.Resolver) {
	name, _ := discovery.ParseName(from.DNS)
	name.Every, name.GoneAfter, name.MaxStale = from.Every, from.GoneAfter, from.MaxStale
	for _, cidr := range from.Allow {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			name.Allow = append(name.Allow, p)
		}
	}
	if from.Server == "" {
		return name, nil
	}
	return name, discovery.ServerAt(from.Server)
}
