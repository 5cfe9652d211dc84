package router

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// In virtual time nothing takes any but what waits for a clock: what is measured is what timers, pauses and polls add. Everything runs
// as it does in service, clients and engines on a network in memory; only the kernel's part, which has no clock of ours, is left out.

// warmServer has the HTTP server start what it has one of per process, which may belong to no bubble.
var warmServer = sync.OnceFunc(func() {
	n := newMemNet()
	ln := n.listen()
	r, err := New(config.Config{Models: []config.Model{{Name: "tiny", Connector: connector.NameNone, Engines: []config.Engine{{Name: "a", URL: "http://10.0.0.9"}}}}}, Parts{})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Serve(ctx, ln) }()
	client := n.client()
	resp, err := client.Get("http://" + ln.Addr().String() + pathModels)
	if err != nil {
		panic(err)
	}
	_ = resp.Body.Close()
	client.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		panic(err)
	}
	r.Close()
})

// virtual runs a test in virtual time, in a network of its own.
func virtual(t *testing.T, f func(t *testing.T, n *memNet)) {
	t.Helper()
	warmServer()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // for what the servers keep a little longer
		n := newMemNet()
		nets.Store(t, n)
		defer nets.Delete(t)
		f(t, n)
	})
}

// nets are the networks of the tests that run in virtual time: newPool and start are in it, for these.
var nets sync.Map

func netOf(t testing.TB) *memNet {
	n, _ := nets.Load(t)
	net, _ := n.(*memNet)
	return net
}

// unhurried is t.Run in virtual time, for tests that only ask and wait: what they wait for takes none.
func unhurried(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		virtual(t, func(t *testing.T, _ *memNet) { f(t) })
	})
}

// client is one whose connections are in the network.
func (n *memNet) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: n.dial, DisableCompression: true}}
}

// startIn is start in a network in memory.
func startIn(t testing.TB, n *memNet, cfg config.Config, parts Parts) *gateway {
	t.Helper()
	ln := n.listen()
	return startOn(t, ln, cfg, parts, n.client(), n.reach)
}

// reach has a router's connections to engines be in the network.
func (n *memNet) reach(r *Router) { r.Debug().SetDial(n.dial) }

// newIn makes a pool of any connector in the network, with what its router is built from.
func newIn(t *testing.T, n *memNet, connectorName string, p, d int) (*pool, Parts) {
	t.Helper()
	c := newCluster(connectorName != connector.NamePull)
	c.net = n
	parts := Parts{Planner: firstUsable{}}
	var s *pool
	switch connectorName {
	case connector.NameKVPlane:
		s, _, parts = newPlaneOf(t, c, p, d)
	case connector.NameSGLang:
		s, _ = newSGLangOf(t, c, p, d)
	default:
		s = newPoolOf(t, c, connectorName, p, d, nil)
	}
	s.cfg.Timeouts.Health = time.Minute // else they are most of what the clock goes by
	return s, parts
}
