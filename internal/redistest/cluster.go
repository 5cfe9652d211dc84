package redistest

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Cluster is a Redis Cluster of three masters.
type Cluster struct {
	t       testing.TB
	servers []*Server
}

// StartCluster starts three masters, each with so many replicas, and returns when all slots are served and every node
// knows it. A node that is silent for a second is taken for dead. args go to the servers.
func StartCluster(t testing.TB, replicas int, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	nodes := 3 * (1 + replicas)
	ports := freePorts(t, 2*nodes)
	create := []string{"--cluster", "create"}
	for i := range nodes {
		s := newServer(t)
		s.listen(ports[i])
		s.args = append(s.args, "--cluster-enabled", "yes", "--cluster-port", itoa(ports[nodes+i]), "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0", "--repl-diskless-load", "on-empty-db", "--repl-ping-replica-period", "1")
		s.args = append(s.args, args...)
		s.Start()
		c.servers = append(c.servers, s)
		create = append(create, s.Address())
	}
	create = append(create, "--cluster-replicas", itoa(replicas), "--cluster-yes")
	c.create(create, ports[nodes:])
	eventually(t, "the replicas are replicas", func() bool {
		return strings.Count(c.servers[0].Do("CLUSTER", "NODES"), " slave ") == 3*replicas
	})
	for _, s := range c.servers {
		eventually(t, "the cluster serves", func() bool {
			info := s.Do("CLUSTER", "INFO")
			link := s.Do("INFO", "replication") // a replica that never was in step does not take over
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:"+itoa(nodes)) &&
				(strings.Contains(link, "role:master") || strings.Contains(link, "master_link_status:up"))
		})
	}
	return c
}

// create has redis-cli make the cluster. It has nodes meet once and waits for ever; on a busy machine a node may forget another before they have met, as
// that may take no longer than the time after which a node is dead. So they meet again until it ends.
func (c *Cluster) create(args []string, bus []int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	made := make(chan struct{})
	go func() {
		again := time.NewTicker(10 * time.Second)
		defer again.Stop()
		for {
			select {
			case <-made:
				return
			case <-again.C:
			}
			for i, s := range c.servers[1:] {
				host, port, _ := strings.Cut(s.Address(), ":")
				_, _ = c.servers[0].try("CLUSTER", "MEET", host, port, itoa(bus[i+1])) // those who know each other have nothing to do
			}
		}
	}()
	out, err := exec.CommandContext(ctx, "redis-cli", args...).CombinedOutput()
	if close(made); err != nil {
		c.t.Fatalf("redis-cli %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Addresses returns every node's address.
func (c *Cluster) Addresses() []string {
	var all []string
	for _, s := range c.servers {
		all = append(all, s.Address())
	}
	return all
}

// Servers returns every node.
func (c *Cluster) Servers() []*Server { return c.servers }
