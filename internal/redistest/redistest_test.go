package redistest

import (
	"os/exec"
	"strings"
	"testing"
)

// A server that somebody else has at the address is not taken for the one that was started.
func TestServerIsOurs(t *testing.T) {
	other := StartTCP(t)
	s := newServer(t)
	s.listen(other.port)
	s.log = &serverLog{}
	out, err := exec.Command(s.path, append([]string{"--dir", s.dir, "--save", ""}, s.args...)...).CombinedOutput()
	_, _ = s.log.Write(out)
	if err == nil || s.log.listens() {
		t.Errorf("a second server at %s: %v, taken for ready: %t\n%s", other.at, err, s.log.listens(), out)
	}
	if !other.log.listens() {
		t.Errorf("the first is not taken for ready:\n%s", other.log)
	}
}

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
