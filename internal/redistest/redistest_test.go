package redistest

import (
	"strings"
	"testing"
)

func TestSentinelsFailOver(t *testing.T) {
	s := StartSentinel(t)
	first := s.Master()
	if first != s.servers[0] || len(s.Replicas()) != 2 {
		t.Fatalf("master is %v", first)
	}
	second := s.Failover()
	second.Kill()
	third := s.Replaced(second)
	if !strings.Contains(third.Do("INFO", "replication"), "role:master") {
		t.Error("nobody is the master")
	}
}

func TestClusterServesEverySlot(t *testing.T) {
	c := StartCluster(t, 0)
	for _, key := range []string{"a", "b", "c", "d"} {
		if out := c.Servers()[0].Do("-c", "SET", key, key); out != "OK" {
			t.Errorf("set %s: %s", key, out)
		}
	}
}
