//go:build e2e

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/demo"
	"pdrouter/internal/proc"
	"pdrouter/internal/redistest"
	"pdrouter/router"
)

// service is a Service of a cluster: connections go to the gateways that are ready, in turn. One that is not ready any more gets no new ones, and keeps
// those that it has.
type service struct {
	ln    net.Listener
	to    func(*replica) string
	mu    sync.Mutex
	ready []*replica
	turn  int
}

// replica is a gateway's process, as a pod of its Deployment.
type replica struct {
	clients, agents, operations string // addresses
	process                     *proc.Process
}

func newService(t *testing.T, to func(*replica) string) *service {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{ln: ln, to: to}
	t.Cleanup(func() { _ = ln.Close() }) // connections end with the processes that have them
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go s.forward(c)
		}
	}()
	return s
}

func (s *service) address() string { return s.ln.Addr().String() }

// set has new connections go to these.
func (s *service) set(ready []*replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = ready
}

func (s *service) forward(from net.Conn) {
	defer from.Close()
	s.mu.Lock()
	if len(s.ready) == 0 {
		s.mu.Unlock()
		return
	}
	s.turn++
	at := s.to(s.ready[s.turn%len(s.ready)])
	s.mu.Unlock()
	to, err := net.Dial("tcp", at)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(from, to)
}

// deployment is two gateways behind Services, which share one Redis, and engines that are pods.
type deployment struct {
	*kubeFleet
	config            string // of a replica, with three addresses to be filled in
	clients, agentsAt *service
	gateways          []*replica
}

// rollEverything replaces each prefill engine, each decode engine and each gateway under load, one after the other, as rolling updates do: the new one
// is ready before the old one is told to end. No request fails, and no block is left.
func rollEverything(t *testing.T, c *cluster) {
	bare, take, must := bareFleet(t, 3+4*3)
	d := &deployment{kubeFleet: newKubeFleet(t, c, bare)}
	d.port, d.control = portOf(t, take()), portOf(t, take())
	const workload = "rolled"
	for i, name := range []string{"roll-p1", "roll-p2", "roll-d1", "roll-d2", "roll-p3", "roll-p4", "roll-d3", "roll-d4"} {
		role := map[byte]string{'p': "prefill", 'd': "decode"}[name[5]]
		ip := fmt.Sprintf("127.78.0.%d", i+1)
		d.Engines = append(d.Engines, demo.Engine{Name: name, Role: role, TP: 1, Address: net.JoinHostPort(ip, d.port), Control: net.JoinHostPort(ip, d.control)})
		d.labels[name] = map[string]string{"pdrouter.dev/role": role, "pdrouter.dev/model": workload}
	}
	must(d.WriteKeys())
	d.clients = newService(t, func(r *replica) string { return r.clients })
	d.agentsAt = newService(t, func(r *replica) string { return r.agents })
	d.agents, d.Client = d.agentsAt.address(), "http://"+d.clients.address()
	redis := redistest.Start(t)
	config := d.discovering(d.Config("CLIENTS", "AGENTS", "OPERATIONS")+fmt.Sprintf("metadata: {store: redis, redis: {address: %q}}\n", redis.Address()), workload)
	d.config = strings.Replace(config, "pre_stop_delay: 1ms", "pre_stop_delay: 1s", 1)

	must(d.StartAlone(take()))
	until(t, "the engine alone answers", func() bool { return d.Fetch(t.Context(), d.Alone+"/health", nil) == nil })
	load := &rolling{t: t, body: strings.TrimSuffix(kubeBody, "}") + `,"ignore_eos":true}`}
	var err error
	_, load.want, err = complete(d.Alone, load.body)
	must(err)

	addresses := func() [3]string { return [3]string{take(), take(), take()} }
	d.gateways = []*replica{d.gateway(addresses()), d.gateway(addresses())}
	d.serve()
	for _, name := range []string{"roll-p1", "roll-p2", "roll-d1", "roll-d2"} {
		d.add(name)
		d.ready(name)
	}
	d.warm(4)

	ctx, stop := context.WithCancel(t.Context())
	running := load.load(ctx, 4, d.clients.address())
	more := func() {
		t.Helper()
		n := load.sent.Load()
		until(t, "requests come and go", func() bool { return load.sent.Load() > n+30 })
	}
	more()
	for _, change := range [][2]string{{"roll-p1", "roll-p3"}, {"roll-p2", "roll-p4"}, {"roll-d1", "roll-d3"}, {"roll-d2", "roll-d4"}} {
		d.add(change[1])
		d.ready(change[1])
		d.warm(6)
		more()
		d.end(change[0])
		d.warm(4)
	}
	for range 2 {
		old := d.gateways[0]
		d.gateways = append(d.gateways, d.gateway(addresses()))
		d.warm(4)
		d.serve()
		more()
		d.unleaked(old)
		must(old.process.Cmd.Process.Signal(syscall.SIGTERM))
		time.Sleep(300 * time.Millisecond) // nodes hear later that it is an endpoint no more: pre_stop_delay is for that
		d.gateways = slices.Delete(d.gateways, 0, 1)
		d.serve()
		select {
		case <-old.process.Done:
		case <-time.After(time.Minute):
			t.Fatal("the gateway did not end")
		}
		if old.process.Err != nil {
			t.Errorf("the gateway ended with %v:\n%s", old.process.Err, old.process.Tail(10))
		}
		more()
	}
	stop()
	running.Wait()
	for _, g := range d.gateways {
		d.unleaked(g)
	}
	d.Engines = d.Engines[4:]
	must(d.Settled(t.Context()))
	t.Logf("%d requests, %d failed; 4 engines and 2 gateways were replaced", load.sent.Load(), load.failed.Load())
}

// gateway starts a gateway and waits until it takes requests, or says why it does not.
func (d *deployment) gateway(at [3]string) *replica {
	d.t.Helper()
	r := &replica{clients: at[0], agents: at[1], operations: at[2]}
	name := "gateway-" + portOf(d.t, r.clients)
	config := strings.NewReplacer("CLIENTS", r.clients, "AGENTS", r.agents, "OPERATIONS", r.operations).Replace(d.config)
	if err := os.WriteFile(d.Path(name+".yaml"), []byte(config), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := d.Start(name, "serve", "-c", d.Path(name+".yaml")); err != nil {
		d.t.Fatal(err)
	}
	r.process = d.Processes[len(d.Processes)-1]
	until(d.t, name+" answers", func() bool { _, err := d.stateAt(r); return err == nil })
	return r
}

// serve has the Services know the gateways.
func (d *deployment) serve() {
	d.clients.set(slices.Clone(d.gateways))
	d.agentsAt.set(slices.Clone(d.gateways))
}

func (d *deployment) stateAt(r *replica) (router.Stats, error) {
	of := *d.Fleet
	of.Operations = "http://" + r.operations
	return (&kubeFleet{Fleet: &of}).state()
}

// warm waits until each gateway is ready, with so many pairs that know each other and no other.
func (d *deployment) warm(pairs int) {
	d.t.Helper()
	for _, g := range d.gateways {
		until(d.t, fmt.Sprintf("a gateway has %d warm pairs", pairs), func() bool {
			s, err := d.stateAt(g)
			return err == nil && s.Ready && s.PairsTotal == pairs && s.PairsWarm == pairs
		})
	}
}

// end deletes a pod as its node does: the preStop hook asks every gateway until the engine may stop, then its process is told to end.
func (d *deployment) end(name string) {
	d.t.Helper()
	d.c.deletePod(name)
	until(d.t, name+" may stop", func() bool {
		return !slices.ContainsFunc(d.gateways, func(g *replica) bool {
			return d.Fetch(d.t.Context(), "http://"+g.operations+"/may-stop?engine="+name, nil) != nil
		})
	})
	only := *d.Fleet
	only.Engines = slices.DeleteFunc(slices.Clone(d.Engines), func(e demo.Engine) bool { return e.Name != name })
	if err := only.Settled(d.t.Context()); err != nil { // it holds no block for another
		d.t.Error(err)
	}
	d.signal(name)
	<-d.started[name].Done
	if err := d.started[name].Err; err != nil {
		d.t.Errorf("%s ended with %v:\n%s", name, err, d.started[name].Tail(10))
	}
	d.c.finishPod(name)
}

// unleaked fails the test if a gateway has counted KV that it could not have freed.
func (d *deployment) unleaked(g *replica) {
	d.t.Helper()
	if n, err := d.Gauge(d.t.Context(), "http://"+g.operations+"/metrics", "pdrouter_kv_leaks_total"); err != nil || n != 0 {
		d.t.Errorf("%v requests have left KV blocks, %v", n, err)
	}
}
