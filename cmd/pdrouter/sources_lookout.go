package main

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"sync"

	"pdrouter/internal/discovery"
	"pdrouter/router"
)

// lookout is a source that is looked at.
type lookout struct {
	source    router.Source
	connector string // files are checked against it
	stop      func() // waits
}

// watch starts looking at the sources of the base that are not looked at, and stops what is none any more.
func (s *sources) watch(ctx context.Context, running map[listOf]*lookout) {
	base := s.base.Load()
	want := configured(*base)
	for at, w := range running {
		m, _ := modelNamed(*base, at.model) // without it the source is not wanted either
		if now, ok := want[at]; ok && reflect.DeepEqual(now, w.source) && m.Connector == w.connector {
			delete(want, at)
			continue
		}
		w.stop()
		delete(running, at)
		s.mu.Lock()
		delete(s.dns, at)
		delete(s.files, at)
		if now, still := want[at]; !still { // else what is known holds until the other source has an answer, as far as that allows it
			delete(s.found, at)
		} else if f, ok := s.found[at]; ok && now.DNS != "" {
			name, _ := nameOf(now)
			f.engines = slices.DeleteFunc(slices.Clone(f.engines), func(e router.Engine) bool {
				u, err := url.Parse(e.URL)
				if err != nil {
					return true
				}
				addr, err := netip.ParseAddr(u.Hostname())
				return err == nil && !name.Allows(addr)
			})
			s.found[at] = f
		}
		s.mu.Unlock()
	}
	for at, source := range want {
		m, _ := modelNamed(*base, at.model)
		its, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		run := s.start(its, at, source, m)
		wg.Go(func() { _ = run(its) }) // always nil
		running[at] = &lookout{source, m.Connector, func() { cancel(); wg.Wait() }}
	}
}

// start returns what looks at one source until its context ends.
func (s *sources) start(ctx context.Context, at listOf, from router.Source, m router.Model) func(context.Context) error {
	if from.File != "" {
		f := discovery.NewFile(from.File, from.Every, func(path string, b []byte) error {
			engines, err := readEngines(m, at.list, path, b)
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
	s.dns[at] = d
	s.mu.Unlock()
	return d.Run
}

// role is what the names of a list's engines begin with, where DNS has them.
func (l listOf) role() string {
	for _, at := range sourcesOf(new(router.Model)) {
		if at.key == l.list {
			return at.prefix
		}
	}
	return ""
}

// nameOf returns what a source has looked up, and who is asked. The source was validated.
func nameOf(from router.Source) (discovery.Name, *net.Resolver) {
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
