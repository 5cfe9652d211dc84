package routertest

import (
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// Pool is a model with its fake engines.
type Pool struct {
	Cluster         *Cluster
	Prefill, Decode []*Engine
	Config          config.Config
}

// NewPool makes p prefill and d decode engines named prefill-i, decode-i. faults are by engine name.
func NewPool(t *testing.T, connectorName string, p, d int, faults map[string][]Fault) *Pool {
	t.Helper()
	c := NewCluster(connectorName != connector.NamePull)
	c.Net = NetOf(t)
	return newPoolOf(t, c, connectorName, p, d, faults)
}

func newPoolOf(t *testing.T, c *Cluster, connectorName string, p, d int, faults map[string][]Fault) *Pool {
	t.Helper()
	s := &Pool{Cluster: c}
	m := config.Model{Name: "tiny", Connector: connectorName}
	if connectorName == connector.NameNone {
		p = 0
	}
	for i := range p {
		name := "prefill-" + string(rune('0'+i))
		e := NewEngine(t, s.Cluster, name, faults[name]...)
		s.Prefill, m.Prefill = append(s.Prefill, e), append(m.Prefill, e.Config())
	}
	for i := range d {
		name := "decode-" + string(rune('0'+i))
		e := NewEngine(t, s.Cluster, name, faults[name]...)
		s.Decode = append(s.Decode, e)
		if connectorName == connector.NameNone {
			m.Engines = append(m.Engines, e.Config())
		} else {
			m.Decode = append(m.Decode, e.Config())
		}
	}
	s.Config = config.Config{Models: []config.Model{m}}
	return s
}

// CheckNothingHeld waits until no fake engine holds blocks for nobody, and checks that none were handed over twice.
func (s *Pool) CheckNothingHeld(t *testing.T) {
	t.Helper()
	begun := time.Now()
	Eventually(t, "no engine holds blocks for nobody", func() bool {
		p, d := s.Cluster.Held()
		if time.Since(begun) > Patience/2 {
			for _, q := range s.Cluster.All() {
				t.Logf("%s %s %s", q.Engine, q.Leg, q.ID)
			}
			t.Fatalf("prefill holds %v, decode holds %v", s.Cluster.prefill, s.Cluster.decode)
		}
		return p == 0 && d == 0
	})
	s.Cluster.Mu.Lock()
	defer s.Cluster.Mu.Unlock()
	if len(s.Cluster.Twice) > 0 {
		t.Errorf("references used twice: %v", s.Cluster.Twice)
	}
}

// SetFaults gives each engine its faults, which count its legs from now.
func (s *Pool) SetFaults(faults map[string][]Fault) {
	for _, e := range s.Engines() {
		e.Mu.Lock()
		e.Faults, e.N = faults[e.Name], map[string]int{}
		e.Mu.Unlock()
	}
}

// Engines are all of the pool, prefill first.
func (s *Pool) Engines() []*Engine { return append(append([]*Engine(nil), s.Prefill...), s.Decode...) }
