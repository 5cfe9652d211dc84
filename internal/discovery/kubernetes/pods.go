package kubernetes

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// Labels that are read of each pod, besides that with the revision.
const (
	zoneLabel = "topology.kubernetes.io/zone"
	// Of a group of pods that serve one engine, only the first takes requests.
	workerIndexLabel   = "leaderworkerset.sigs.k8s.io/worker-index"
	podGroupIndexLabel = "stormservice.orchestration.aibrix.ai/pod-group-index"
)

// pod is what is read of one pod.
type pod struct {
	name, uid      string
	addr           netip.Addr
	ready          bool
	ending         bool // it is being deleted
	zone, revision string
}

// readPod returns what a pod says, and false if it is no engine: it has no address, it has ended, or another pod of its group takes the
// requests.
func readPod(u *unstructured.Unstructured, revisionLabel string) (pod, bool) {
	labels := u.GetLabels()
	p := pod{name: u.GetName(), uid: string(u.GetUID()), ending: u.GetDeletionTimestamp() != nil, zone: labels[zoneLabel], revision: labels[revisionLabel]}
	for _, label := range []string{workerIndexLabel, podGroupIndexLabel} {
		if index, ok := labels[label]; ok && index != "0" {
			return p, false
		}
	}
	switch phase, _, _ := unstructured.NestedString(u.Object, "status", "phase"); phase {
	case "Succeeded", "Failed":
		return p, false
	}
	ip, _, _ := unstructured.NestedString(u.Object, "status", "podIP")
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return p, false
	}
	p.addr = addr
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" {
			p.ready = c["status"] == "True"
		}
	}
	return p, true
}

// pods knows the selected pods. It is the store of a reflector. It is safe for concurrent use.
type pods struct {
	revisionLabel string
	news          chan struct{} // has room for one: something may be another

	mu    sync.Mutex
	ports []int
	known map[string]pod    // by name
	used  map[string]string // the uid of those that have been ready, by name
}

func newPods(revisionLabel string) *pods {
	return &pods{revisionLabel: revisionLabel, news: make(chan struct{}, 1), known: map[string]pod{}, used: map[string]string{}}
}

// setPorts sets the ports of every pod.
func (s *pods) setPorts(ports []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports = ports // what is known is told with the next list
}

func (s *pods) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// Add is part of the store of a reflector.
func (s *pods) Add(obj any) error {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		s.mu.Lock()
		s.takeLocked(u)
		s.mu.Unlock()
		s.tell()
	}
	return nil
}

// Update is part of the store of a reflector.
func (s *pods) Update(obj any) error { return s.Add(obj) }

// Delete is part of the store of a reflector.
func (s *pods) Delete(obj any) error {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		s.mu.Lock()
		delete(s.known, u.GetName())
		delete(s.used, u.GetName())
		s.mu.Unlock()
		s.tell()
	}
	return nil
}

// Replace is part of the store of a reflector.
func (s *pods) Replace(all []any, _ string) error {
	s.mu.Lock()
	s.known = make(map[string]pod, len(all))
	for _, obj := range all {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			s.takeLocked(u)
		}
	}
	for name := range s.used {
		if _, ok := s.known[name]; !ok {
			delete(s.used, name)
		}
	}
	s.mu.Unlock()
	s.tell()
	return nil
}

// Resync is part of the store of a reflector.
func (s *pods) Resync() error { return nil }

// takeLocked notes one pod.
func (s *pods) takeLocked(u *unstructured.Unstructured) {
	p, ok := readPod(u, s.revisionLabel)
	if !ok {
		delete(s.known, p.name)
		delete(s.used, p.name)
		return
	}
	s.known[p.name] = p
	if s.used[p.name] != p.uid { // another pod under the name of one that is gone
		delete(s.used, p.name)
	}
	if p.ready {
		s.used[p.name] = p.uid
	}
}

// len returns how many pods have endpoints.
func (s *pods) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.used)
}

// endpoints returns those of the pods that are ready or have been, in order.
func (s *pods) endpoints() []Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Endpoint, 0, len(s.used)*len(s.ports))
	for name := range s.used {
		p := s.known[name]
		for rank, port := range s.ports {
			all = append(all, Endpoint{Pod: name, At: netip.AddrPortFrom(p.addr, uint16(port)), Rank: rank, Ranks: len(s.ports), Zone: p.zone, Revision: p.revision, Leaving: !p.ready || p.ending})
		}
	}
	slices.SortFunc(all, func(x, y Endpoint) int { return cmp.Or(cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.Rank, y.Rank)) })
	return all
}
