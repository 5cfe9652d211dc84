package routertest

import (
	"sync"
	"testing"
	"time"

	"pdrouter/metadata"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// Records are what engines have published.
type Records struct {
	mu       sync.Mutex
	ByEngine map[string][]metadata.Record
}

func (f *Records) Engine(name string) ([]metadata.Record, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.ByEngine[name]
	return r, ok
}

// Publish enters the record of an engine's run, Withdraw takes it back.
func (f *Records) Publish(name string, role metadata.Role, generation uint64, compatibility string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ByEngine[name] = []metadata.Record{{
		Version: metadata.RecordVersion, Incarnation: metadata.Incarnation{Engine: name, Generation: generation}, Role: role,
		Size: metadata.Rank{DP: 1, PP: 1, TP: 1}, Connector: connector.NameKVPlane, Compatibility: compatibility, Transport: "tcp",
		Agent: name, Expires: time.Now().Add(time.Hour),
	}}
}

func (f *Records) Withdraw(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ByEngine, name)
}

// NewPlane makes a pool of connector kvplane, with what its router is built from.
func NewPlane(t *testing.T, p, d int) (*Pool, *Records, router.Parts) {
	t.Helper()
	c := NewCluster(true)
	c.Net = NetOf(t)
	return newPlaneOf(t, c, p, d)
}

func newPlaneOf(t *testing.T, c *Cluster, p, d int) (*Pool, *Records, router.Parts) {
	t.Helper()
	s := newPoolOf(t, c, connector.NameKVPlane, p, d, nil)
	records := &Records{ByEngine: map[string][]metadata.Record{}}
	m := &s.Config.Models[0]
	for i, e := range s.Prefill {
		m.Prefill[i].Control = e.control(t)
		records.Publish(e.Name, metadata.Prefill, uint64(100+i), "same")
	}
	for i, e := range s.Decode {
		m.Decode[i].Control = e.control(t)
		records.Publish(e.Name, metadata.Decode, uint64(200+i), "same")
	}
	return s, records, router.Parts{Records: records, Planner: FirstUsable{}, Token: func() (string, error) { return "plane", nil }}
}
