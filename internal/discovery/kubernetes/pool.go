package kubernetes

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// pool is what an InferencePool says of its pods.
type pool struct {
	labels map[string]string
	ports  []int
}

func (p pool) equal(q pool) bool {
	return maps.Equal(p.labels, q.labels) && slices.Equal(p.ports, q.ports)
}

// readPool returns what an InferencePool (inference.networking.k8s.io/v1) says.
func readPool(u *unstructured.Unstructured) (pool, error) {
	labels, _, err := unstructured.NestedStringMap(u.Object, "spec", "selector", "matchLabels")
	if err == nil && len(labels) == 0 {
		err = errors.New("spec.selector.matchLabels is empty")
	}
	if err != nil {
		return pool{}, err
	}
	targets, _, err := unstructured.NestedSlice(u.Object, "spec", "targetPorts")
	if err != nil {
		return pool{}, err
	}
	p := pool{labels: labels}
	for i, t := range targets {
		t, _ := t.(map[string]any)
		number, ok := t["number"].(int64)
		if !ok || number < 1 || number > 65535 {
			return pool{}, fmt.Errorf("spec.targetPorts[%d].number is %v; want a port", i, t["number"])
		}
		p.ports = append(p.ports, int(number))
	}
	return p, nil
}

// poolStore is the store of a reflector that sees one InferencePool. A pool that is deleted or cannot be used leaves the last one in use.
type poolStore struct {
	name, namespace string
	note            func(error)
	news            chan pool // has room for one: the latest
	last            pool
}

func newPoolStore(name, namespace string, note func(error)) *poolStore {
	return &poolStore{name: name, namespace: namespace, note: note, news: make(chan pool, 1)}
}

// Add is part of the store of a reflector.
func (s *poolStore) Add(obj any) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u.GetName() != s.name {
		return nil
	}
	p, err := readPool(u)
	if err != nil {
		s.note(fmt.Errorf("InferencePool %s of namespace %s: %w", s.name, s.namespace, err))
		return nil
	}
	s.note(nil)
	if p.equal(s.last) {
		return nil
	}
	s.last = p
	select {
	case <-s.news: // nobody has taken it yet
	default:
	}
	s.news <- p
	return nil
}

// Update is part of the store of a reflector.
func (s *poolStore) Update(obj any) error { return s.Add(obj) }

// Delete is part of the store of a reflector.
func (s *poolStore) Delete(any) error {
	s.missing()
	return nil
}

// Replace is part of the store of a reflector.
func (s *poolStore) Replace(all []any, _ string) error {
	for _, obj := range all {
		_ = s.Add(obj) // always nil
	}
	if len(all) == 0 {
		s.missing()
	}
	return nil
}

// Resync is part of the store of a reflector.
func (s *poolStore) Resync() error { return nil }

func (s *poolStore) missing() {
	s.note(fmt.Errorf("there is no InferencePool %s in namespace %s", s.name, s.namespace))
}
