package gateway

import (
	"cmp"
	"slices"
	"time"

	"pdrouter/internal/fleetview"
	"pdrouter/router"
)

// staleSources returns the sources of engines that cannot be read now, in order, for the body of /ready.
func (g *Gateway) staleSources() []router.StaleSource {
	if g.engines == nil { // it is being built
		return nil
	}
	var all []router.StaleSource
	add := func(at fleetview.List, source, why string, good time.Time) {
		s := router.StaleSource{Model: at.Model, List: at.Key, Source: source, Why: why}
		if !good.IsZero() {
			s.AgeSeconds = time.Since(good).Seconds()
		}
		all = append(all, s)
	}
	stats := g.engines.Stats()
	for at, s := range stats.DNS {
		if s.Stale {
			add(at, fleetview.FromDNS, s.Name+" has no valid answer: its engines are drained", s.Good)
		}
	}
	for at, s := range stats.Files {
		if s.Bad {
			add(at, fleetview.FromFile, s.Path+" cannot be used: the log says why, and what it held before is in use", s.Good)
		}
	}
	for at, s := range stats.Pods {
		if s.Stale {
			add(at, fleetview.FromKubernetes, s.Why+": the pods that are known stay in use", s.Good)
		}
	}
	slices.SortFunc(all, func(x, y router.StaleSource) int {
		return cmp.Or(cmp.Compare(x.Model, y.Model), cmp.Compare(x.List, y.List))
	})
	return all
}
