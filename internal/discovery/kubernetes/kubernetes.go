// Package kubernetes finds engines among the pods of one namespace. It watches the pods that a selector matches, and says which ports of them
// take requests, which take no more, and in which zone and revision they are. It owns what is known of the pods. An API server that does
// not answer changes nothing. It knows nothing of engines: internal/fleetview makes entries of the configuration of what it finds. Only
// internal/fleetview and internal/kubesecrets import it, so that client-go is linked into no package that serves requests.
package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
)

const (
	// settle is how long a change waits for others that come with it, so that many pods are one change of the fleet.
	settle = 100 * time.Millisecond
	// retryAfter is between two tries to read the credentials for the API server.
	retryAfter = 2 * time.Second
)

// Config says which pods are watched.
type Config struct {
	Namespace     string              // default: that of this process's own pod
	Selector      map[string][]string // the values that each of these labels may have
	Pool          string              // the name of an InferencePool, whose selector applies as well; "" for none
	Ports         []int               // each is an endpoint; default those of the InferencePool, or DefaultPort
	DefaultPort   int
	RevisionLabel string
	Kubeconfig    string // a file; default: the service account of this process's own pod
}

// Endpoint is one port of a pod.
type Endpoint struct {
	Pod            string
	At             netip.AddrPort
	Rank, Ranks    int    // which of the pod's ports it is, and how many there are
	Zone, Revision string // by the pod's labels; "" if it has none
	Leaving        bool   // it takes no more requests: the pod is not ready, or is being deleted
}

// Stats is how watching is doing.
type Stats struct {
	Pods     int       // that are used or leaving
	Failures uint64    // times the API server could not be asked, or had no usable answer
	Good     time.Time // when what is in use was last known to be what the API server has; zero before the first
	Stale    bool      // that is not now
	Why      string    // a failure, while stale
}

// Watcher watches the pods of a Config while Run runs. It is safe for concurrent use.
type Watcher struct {
	cfg     Config
	changed func([]Endpoint)
	log     *slog.Logger
	pods    *pods

	mu       sync.Mutex
	stats    Stats
	problems map[part]string // what does not work now, and why
}

// part is a part of watching that can fail without the others.
type part string

const (
	credentials part = "credentials"
	poolWatch   part = "watch of the InferencePool"
	poolItself  part = "InferencePool"
	podWatch    part = "watch of the pods"
)

// New returns what watches the pods of a Config. changed is called by Run, one call after the other, with all endpoints whenever they are
// others, and with the first that are known.
func New(c Config, changed func([]Endpoint), log *slog.Logger) *Watcher {
	return &Watcher{cfg: c, changed: changed, log: log, pods: newPods(c.RevisionLabel), problems: map[part]string{}}
}

// Run watches until ctx ends. It always returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logr.Discard())) // failures are logged here, once each
	defer cancel()
	background.Go(func() { w.follow(ctx) })
	var last []Endpoint
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-w.pods.news:
		}
		now := w.pods.endpoints()
		w.mu.Lock()
		w.stats.Pods = w.pods.len()
		w.mu.Unlock()
		if first || !slices.Equal(last, now) {
			last = now
			w.changed(now)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
	}
}

// follow keeps the pods up to date until ctx ends.
func (w *Watcher) follow(ctx context.Context) {
	for {
		client, namespace, err := Connect(w.cfg.Kubeconfig, w.cfg.Namespace)
		if err == nil {
			w.note(credentials, nil)
			w.followIn(ctx, client, namespace)
			return
		}
		w.note(credentials, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}

func (w *Watcher) followIn(ctx context.Context, client dynamic.Interface, namespace string) {
	if w.cfg.Pool == "" {
		w.watchPods(ctx, client, namespace, pool{})
		return
	}
	found := newPoolStore(w.cfg.Pool, namespace, func(err error) { w.note(poolItself, err) })
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() {
		w.reflect(ctx, client.Resource(poolResource).Namespace(namespace), poolWatch, "metadata.name="+w.cfg.Pool, "", found)
	})
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-found.news:
			stop()
			its, cancel := context.WithCancel(ctx)
			var watching sync.WaitGroup
			watching.Go(func() { w.watchPods(its, client, namespace, p) })
			stop = func() { cancel(); watching.Wait() }
		}
	}
}

func (w *Watcher) watchPods(ctx context.Context, client dynamic.Interface, namespace string, p pool) {
	selector, err := selectorOf(w.cfg.Selector, p.labels)
	if err != nil {
		w.note(podWatch, err)
		return
	}
	w.pods.setPorts(portsOf(w.cfg, p))
	w.reflect(ctx, client.Resource(podResource).Namespace(namespace), podWatch, "", selector, w.pods)
}

// portsOf returns the ports of each pod.
func portsOf(c Config, p pool) []int {
	switch {
	case len(c.Ports) > 0:
		return c.Ports
	case len(p.ports) > 0:
		return p.ports
	}
	return []int{c.DefaultPort}
}

// note takes in whether a part works; err says why not.
func (w *Watcher) note(which part, err error) {
	w.mu.Lock()
	before := w.problems[which]
	if err == nil {
		delete(w.problems, which)
	} else {
		w.problems[which] = err.Error()
		w.stats.Failures++
	}
	stale := len(w.problems) > 0
	if !stale && which == podWatch || stale && !w.stats.Stale && !w.stats.Good.IsZero() {
		w.stats.Good = time.Now()
	}
	w.stats.Stale = stale
	w.mu.Unlock()
	switch {
	case err != nil && before == "":
		w.log.Warn("pods of Kubernetes cannot be watched: those that are known stay in use", "part", which, "pods", w.what(), "err", err)
	case err == nil && before != "":
		w.log.Info("pods of Kubernetes can be watched again", "part", which, "pods", w.what())
	}
}

// what names the pods, for people.
func (w *Watcher) what() string {
	selector, _ := selectorOf(w.cfg.Selector, nil)
	if w.cfg.Pool != "" {
		return fmt.Sprintf("InferencePool %s, %s", w.cfg.Pool, selector)
	}
	return selector
}

// Stats returns how watching is doing.
func (w *Watcher) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stats.Stale && !w.stats.Good.IsZero() {
		w.stats.Good = time.Now() // the watch is open
	}
	s := w.stats
	for _, which := range slices.Sorted(maps.Keys(w.problems)) {
		s.Why = w.problems[which]
	}
	return s
}
