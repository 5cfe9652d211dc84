package fleetview

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
	"pdrouter/internal/discovery/kubernetes"
	"pdrouter/router/config"
)

// watcher looks at one source.
type watcher struct {
	source    config.Source
	connector string   // files are checked against it
	keys      []string // and against these: the files and folders of keys that the model names
	stop      func()   // waits
}

// watch starts looking at the sources of the base that are not looked at, and stops what is none any more.
func (v *View) watch(ctx context.Context, running map[List]*watcher) {
	v.mu.Lock()
	renewed := v.renewed
	v.renewed = map[List]bool{}
	v.mu.Unlock()
	base := v.base.Load()
	want := sourcesOf(*base)
	known := map[List]inherited{}
	for at, w := range running {
		m, _ := modelNamed(*base, at.Model) // without it the source is not wanted either
		if now, ok := want[at]; ok && !renewed[at] && reflect.DeepEqual(now, w.source) && m.Connector == w.connector && (now.File == "" || slices.Equal(namedKeys(m), w.keys)) {
			delete(want, at)
			continue
		}
		w.stop()
		delete(running, at)
		v.mu.Lock()
		// What is known holds until another source has an answer, as far as that allows it. Of a list that has none any more it
		// means nothing, and keep replaces it: another reload may have done so by now.
		if now, f := want[at], v.found[at]; now.DNS != "" && f.engines != nil {
			before := inherited{good: time.Now()}
			if d := v.dns[at]; d != nil {
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
			v.found[at], known[at] = f, before
		}
		delete(v.dns, at)
		delete(v.files, at)
		delete(v.pods, at)
		v.mu.Unlock()
	}
	for at, source := range want {
		m, _ := modelNamed(*base, at.Model)
		its, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		run := v.start(its, at, source, m, known[at])
		wg.Go(func() { _ = run(its) }) // always nil
		running[at] = &watcher{source, m.Connector, namedKeys(m), func() { cancel(); wg.Wait() }}
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

// inherited is what the watcher of a name begins with that takes over from another source.
type inherited struct {
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
func (v *View) start(ctx context.Context, at List, from config.Source, m config.Model, before inherited) func(context.Context) error {
	if from.File != "" {
		f := discovery.NewFile(from.File, from.Every, func(path string, b []byte) error {
			engines, err := configfile.ReadEngines(m, at.Key, path, b)
			if err == nil {
				v.take(ctx, at, found{from: FromFile, engines: engines})
			}
			return err
		}, v.log)
		v.mu.Lock()
		v.files[at] = f
		v.mu.Unlock()
		return func(ctx context.Context) error {
			if err := f.Look(); err != nil {
				v.log.Error("a file of engines cannot be used", "list", at.String(), "err", err)
			}
			v.looked(at)
			return f.Run(ctx)
		}
	}
	if from.Kubernetes.On() {
		return v.startPods(ctx, at, from)
	}
	role := at.Prefix()
	name, resolver := nameOf(from)
	busy := func(a netip.AddrPort) bool { return v.busy(from.Engine(role, a).Name) }
	d := discovery.NewDNS(name, resolver, busy, func(members []discovery.Member) {
		f := found{from: FromDNS, leaving: map[string]bool{}}
		for _, member := range members {
			e := from.Engine(role, member.At)
			f.engines = append(f.engines, e)
			f.leaving[e.Name] = member.Leaving
		}
		v.take(ctx, at, f)
		v.looked(at)
	}, v.log)
	v.mu.Lock()
	if _, ok := v.found[at]; ok && before.good.IsZero() { // what the file listed before
		before.good = time.Now()
	}
	d.Seed(before.known, before.good)
	v.dns[at] = d
	v.mu.Unlock()
	return d.Run
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

// startPods returns what watches pods until its context ends.
func (v *View) startPods(ctx context.Context, at List, from config.Source) func(context.Context) error {
	k := from.Kubernetes
	w := kubernetes.New(kubernetes.Config{
		Namespace: k.Namespace, Selector: k.Selector(at.Key), Pool: k.InferencePool, Ports: k.Ports, DefaultPort: config.DefaultPort,
		RevisionLabel: k.Revision(), Kubeconfig: k.Kubeconfig,
	}, func(endpoints []kubernetes.Endpoint) {
		f := found{from: FromKubernetes, leaving: map[string]bool{}}
		for _, p := range endpoints {
			e := from.PodEngine(config.PodPort{Pod: p.Pod, At: p.At, Rank: p.Rank, Ranks: p.Ranks, Zone: p.Zone, Revision: p.Revision})
			f.engines = append(f.engines, e)
			f.leaving[e.Name] = p.Leaving
		}
		v.take(ctx, at, f)
		v.looked(at)
	}, v.log)
	v.mu.Lock()
	v.pods[at] = w
	v.mu.Unlock()
	return w.Run
}
