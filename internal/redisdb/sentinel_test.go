package redisdb

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pdrouter/internal/redistest"
)

// fakeSentinel names a master, or is dead.
type fakeSentinel struct {
	ln     net.Listener
	master atomic.Pointer[string] // nil is dead
}

func newFakeSentinel(t *testing.T, master string) *fakeSentinel {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeSentinel{ln: ln}
	s.master.Store(&master)
	var serving sync.WaitGroup
	t.Cleanup(func() { ln.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.serve(conn) })
		}
	})
	return s
}

// serve answers one client, which speaks in arrays of words.
func (s *fakeSentinel) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		master := s.master.Load()
		if master == nil {
			return
		}
		switch word := strings.ToLower(lines.Text()); word {
		case "hello":
			_, _ = io.WriteString(conn, "-ERR unknown command\r\n")
		case "get-master-addr-by-name":
			host, port, _ := net.SplitHostPort(*master)
			fmt.Fprintf(conn, "*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
		}
	}
}

// fakeSentinels returns what asks these Sentinels.
func fakeSentinels(all ...*fakeSentinel) sentinels {
	var addresses []string
	for _, s := range all {
		addresses = append(addresses, s.ln.Addr().String())
	}
	cfg := Config{Sentinel: Sentinel{Master: "m", Addresses: addresses}}.WithDefaults()
	return sentinels{dialer{cfg}, new(atomic.Pointer[string])}
}

// More than half of all Sentinels decide where the master is; fewer, whatever they say, move nobody.
func TestSentinelMinorityMovesNobody(t *testing.T) {
	const here, there = "10.0.0.1:6379", "10.0.0.2:6379"
	name := func(a string) *string { return &a }
	a, b, c := newFakeSentinel(t, here), newFakeSentinel(t, here), newFakeSentinel(t, here)
	three, two := fakeSentinels(a, b, c), fakeSentinels(a, b)
	for _, step := range []struct {
		what             string
		a, b, c          *string
		ofThree, ofTwo   string
		unknownIfStarted bool // who starts now does not know
	}{
		{"all agree", name(here), name(here), name(here), here, here, false},
		{"one is alone with another", name(here), name(here), name(there), here, here, false},
		{"one is left and names another", name(there), nil, nil, here, here, true},
		{"one against one", name(here), name(there), nil, here, here, true},
		{"none is left", nil, nil, nil, here, here, true},
		{"most name another", name(there), name(there), nil, there, there, false},
		{"one says what was", nil, nil, name(here), there, there, true},
	} {
		a.master.Store(step.a)
		b.master.Store(step.b)
		c.master.Store(step.c)
		for _, of := range []struct {
			s    sentinels
			want string
		}{{three, step.ofThree}, {two, step.ofTwo}} {
			if got, err := of.s.master(t.Context()); err != nil || got != of.want {
				t.Errorf("%s, of %d Sentinels: got %s, %v; want %s", step.what, len(of.s.cfg.Sentinel.Addresses), got, err, of.want)
			}
		}
		if got, err := fakeSentinels(a, b, c).master(t.Context()); (err != nil) != step.unknownIfStarted {
			t.Errorf("%s: who starts now got %s, %v; want an error: %t", step.what, got, err, step.unknownIfStarted)
		}
	}
}

// A server that is no master is not spoken to, though all Sentinels name it.
func TestSentinelsNameAReplica(t *testing.T) {
	master := redistest.StartTCP(t)
	host, port, _ := strings.Cut(master.Address(), ":")
	replica := redistest.StartTCP(t, "--replicaof", host+" "+port)
	for _, c := range []struct {
		of *redistest.Server
		ok bool
	}{{replica, false}, {master, true}} {
		s, err := Open(Config{Sentinel: Sentinel{Master: "m", Addresses: []string{newFakeSentinel(t, c.of.Address()).ln.Addr().String()}}})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Ping(t.Context()).Err()
		s.Close()
		if c.ok && err != nil || !c.ok && (err == nil || !strings.Contains(err.Error(), "want master")) {
			t.Errorf("got %v; want it spoken to: %t", err, c.ok)
		}
	}
}

// No Sentinel can be reached while the master lives: who knows it goes on with it, on new connections as well.
func TestSentinelsUnreachable(t *testing.T) {
	master := redistest.StartTCP(t)
	a, b := newFakeSentinel(t, master.Address()), newFakeSentinel(t, master.Address())
	s, err := Open(Config{Sentinel: Sentinel{Master: "m", Addresses: []string{a.ln.Addr().String(), b.ln.Addr().String()}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Set(t.Context(), "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*fakeSentinel{a, b} {
		f.ln.Close()
		f.master.Store(nil)
	}
	master.Do("CLIENT", "KILL", "TYPE", "normal")
	if err := s.Set(t.Context(), "a", "2", 0).Err(); err != nil {
		t.Errorf("on a new connection: %v", err)
	}
}

// While a slot moves, a key that is not where it was is asked for where it goes, with the least rights.
func TestClusterSlotMoves(t *testing.T) {
	cluster := redistest.StartCluster(t, 0, redistest.User(redistest.Rights, redistest.ClusterRights)...)
	s, err := Open(Config{Cluster: cluster.Addresses(), Username: "gateway", PasswordFile: writeTemp(t, "a-password")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const key = "pdrouter:{x}"
	nodes := cluster.Servers()
	from := -1
	for i, n := range nodes {
		if n.Do("EXISTS", key) == "0" {
			from = i
		}
	}
	if from < 0 {
		t.Fatal("nobody has the slot")
	}
	source, target := nodes[from], nodes[(from+1)%len(nodes)]
	slot := source.Do("CLUSTER", "KEYSLOT", key)
	target.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", source.Do("CLUSTER", "MYID"))
	source.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", target.Do("CLUSTER", "MYID"))
	if err := s.Set(t.Context(), key, "1", 0).Err(); err != nil {
		t.Errorf("while its slot moves: %v", err)
	}
	if got := target.Do("CLUSTER", "COUNTKEYSINSLOT", slot); got != "1" {
		t.Errorf("where the slot goes there are %s keys; want 1", got)
	}
}
