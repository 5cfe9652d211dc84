package router

import (
	"sync"
	"testing"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
)

// fakeRecords are what engines have published.
type fakeRecords struct {
	mu sync.Mutex
	m  map[string][]metadata.Record
}

func (f *fakeRecords) Engine(name string) ([]metadata.Record, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.m[name]
	return r, ok
}

func (f *fakeRecords) publish(name string, role metadata.Role, generation uint64, compatibility string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m[name] = []metadata.Record{{
		Version: metadata.RecordVersion, Incarnation: metadata.Incarnation{Engine: name, Generation: generation}, Role: role,
		Size: metadata.Rank{DP: 1, PP: 1, TP: 1}, Connector: connector.NameKVPlane, Compatibility: compatibility, Transport: "tcp",
		Agent: name, Expires: time.Now().Add(time.Hour),
	}}
}

func (f *fakeRecords) withdraw(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.m, name)
}

func newPlane(t *testing.T, p, d int) (*pool, *fakeRecords, Parts) {
	t.Helper()
	c := newCluster(true)
	c.net = netOf(t)
	return newPlaneOf(t, c, p, d)
}

func newPlaneOf(t *testing.T, c *cluster, p, d int) (*pool, *fakeRecords, Parts) {
	t.Helper()
	s := newPoolOf(t, c, connector.NameKVPlane, p, d, nil)
	records := &fakeRecords{m: map[string][]metadata.Record{}}
	m := &s.cfg.Models[0]
	for i, e := range s.p {
		m.Prefill[i].Control = e.control(t)
		records.publish(e.name, metadata.Prefill, uint64(100+i), "same")
	}
	for i, e := range s.d {
		m.Decode[i].Control = e.control(t)
		records.publish(e.name, metadata.Decode, uint64(200+i), "same")
	}
	return s, records, Parts{Records: records, Planner: firstUsable{}, Token: func() (string, error) { return "plane", nil }}
}
