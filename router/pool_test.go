package router

import (
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// pool is a model with its fake engines.
type pool struct {
	c    *cluster
	p, d []*fakeVLLM
	cfg  config.Config
}

// newPool makes p prefill and d decode engines named prefill-i, decode-i. faults are by engine name.
func newPool(t *testing.T, connectorName string, p, d int, faults map[string][]fault) *pool {
	t.Helper()
	c := newCluster(connectorName != connector.NamePull)
	c.net = netOf(t)
	return newPoolOf(t, c, connectorName, p, d, faults)
}

func newPoolOf(t *testing.T, c *cluster, connectorName string, p, d int, faults map[string][]fault) *pool {
	t.Helper()
	s := &pool{c: c}
	m := config.Model{Name: "tiny", Connector: connectorName}
	if connectorName == connector.NameNone {
		p = 0
	}
	for i := range p {
		name := "prefill-" + string(rune('0'+i))
		e := newFakeVLLM(t, s.c, name, faults[name]...)
		s.p, m.Prefill = append(s.p, e), append(m.Prefill, e.config())
	}
	for i := range d {
		name := "decode-" + string(rune('0'+i))
		e := newFakeVLLM(t, s.c, name, faults[name]...)
		s.d = append(s.d, e)
		if connectorName == connector.NameNone {
			m.Engines = append(m.Engines, e.config())
		} else {
			m.Decode = append(m.Decode, e.config())
		}
	}
	s.cfg = config.Config{Models: []config.Model{m}}
	return s
}

// noHeld waits until no fake engine holds blocks for nobody, and checks that none were handed over twice.
func (s *pool) noHeld(t *testing.T) {
	t.Helper()
	begun := time.Now()
	eventually(t, "no engine holds blocks for nobody", func() bool {
		p, d := s.c.held()
		if time.Since(begun) > longEnough/2 {
			for _, q := range s.c.all() {
				t.Logf("%s %s %s", q.Engine, q.Leg, q.ID)
			}
			t.Fatalf("prefill holds %v, decode holds %v", s.c.prefill, s.c.decode)
		}
		return p == 0 && d == 0
	})
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(s.c.twice) > 0 {
		t.Errorf("references used twice: %v", s.c.twice)
	}
}

// setFaults gives each engine its faults, which count its legs from now.
func (s *pool) setFaults(faults map[string][]fault) {
	for _, e := range s.engines() {
		e.mu.Lock()
		e.faults, e.n = faults[e.name], map[string]int{}
		e.mu.Unlock()
	}
}

func (s *pool) engines() []*fakeVLLM { return append(append([]*fakeVLLM(nil), s.p...), s.d...) }
