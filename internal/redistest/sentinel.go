package redistest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// MasterName is what the Sentinels of StartSentinel call their master.
const MasterName = "pdrouter"

// Sentinels are a master, two replicas, and three Sentinels that watch them.
type Sentinels struct {
	t       testing.TB
	servers []*Server // the first was the master at the start
	watches []*Server
}

// StartSentinel starts them and returns when the Sentinels know everybody. The Sentinels take a master that is silent
// for 300 ms for dead. args go to the servers.
func StartSentinel(t testing.TB, args ...string) *Sentinels {
	t.Helper()
	s := &Sentinels{t: t}
	ports := freePorts(t, 6)
	for i, port := range ports[:3] {
		server := newServer(t)
		server.listen(port)
		server.args = append(server.args, "--repl-diskless-sync-delay", "0", "--repl-diskless-load", "on-empty-db", "--repl-ping-replica-period", "1")
		server.args = append(server.args, args...)
		if i > 0 {
			server.args = append(server.args, "--replicaof", "127.0.0.1 "+itoa(ports[0]))
		}
		server.Start()
		s.servers = append(s.servers, server)
	}
	for _, server := range s.servers[1:] {
		eventually(t, "a replica follows", func() bool { return strings.Contains(server.Do("INFO", "replication"), "master_link_status:up") })
	}
	for _, port := range ports[3:] {
		w := newServer(t)
		w.listen(port)
		conf := filepath.Join(w.dir, "sentinel.conf")
		text := strings.Join([]string{
			"bind 127.0.0.1", "port " + itoa(port), "dir " + w.dir,
			"sentinel monitor " + MasterName + " 127.0.0.1 " + itoa(ports[0]) + " 2",
			"sentinel down-after-milliseconds " + MasterName + " 300",
			"sentinel failover-timeout " + MasterName + " 3000",
			"sentinel parallel-syncs " + MasterName + " 2",
		}, "\n") + "\n"
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w.run(conf, "--sentinel")
		s.watches = append(s.watches, w)
	}
	for _, w := range s.watches {
		eventually(t, "a Sentinel knows everybody", func() bool {
			known := w.Do("SENTINEL", "MASTER", MasterName)
			return field(known, "num-slaves") == "2" && field(known, "num-other-sentinels") == "2"
		})
	}
	return s
}

// field returns the line after a name in an answer of redis-cli.
func field(answer, name string) string {
	lines := strings.Split(answer, "\n")
	for i, line := range lines[:len(lines)-1] {
		if line == name {
			return lines[i+1]
		}
	}
	return ""
}

// Addresses returns the Sentinels' addresses.
func (s *Sentinels) Addresses() []string {
	var all []string
	for _, w := range s.watches {
		all = append(all, w.Address())
	}
	return all
}

// Master returns the server that most Sentinels call the master now.
func (s *Sentinels) Master() *Server {
	s.t.Helper()
	votes := map[string]int{}
	for _, w := range s.watches {
		hostAndPort := strings.Fields(w.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName))
		votes[hostAndPort[len(hostAndPort)-1]]++
	}
	for _, server := range s.servers {
		if 2*votes[itoa(server.port)] > len(s.watches) {
			return server
		}
	}
	return nil
}

// Replicas returns the servers that are not the master.
func (s *Sentinels) Replicas() []*Server {
	s.t.Helper()
	var all []*Server
	master := s.Master()
	for _, server := range s.servers {
		if server != master {
			all = append(all, server)
		}
	}
	return all
}

// Replaced waits until the Sentinels have made another server the master, and returns it.
func (s *Sentinels) Replaced(old *Server) *Server {
	s.t.Helper()
	var master *Server
	eventually(s.t, "the Sentinels name another master", func() bool {
		master = s.Master()
		return master != nil && master != old && strings.Contains(master.Do("INFO", "replication"), "role:master")
	})
	return master
}

// Failover has the Sentinels make a replica the master, all servers living, and waits for it.
func (s *Sentinels) Failover() *Server {
	s.t.Helper()
	old := s.Master()
	s.watches[0].Do("SENTINEL", "FAILOVER", MasterName)
	return s.Replaced(old)
}
