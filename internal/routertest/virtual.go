package routertest

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// In virtual time nothing takes any but what waits for a clock: what is measured is what timers, pauses and polls add. Everything runs
// as it does in service, clients and engines on a network in memory; only the kernel's part, which has no clock of ours, is left out.

// warmServer has the HTTP server start what it has one of per process, which may belong to no bubble.
var warmServer = sync.OnceFunc(func() {
	n := NewNetwork()
	ln := n.Listen()
	r, err := router.New(config.Config{Models: []config.Model{{Name: "tiny", Connector: connector.NameNone, Engines: []config.Engine{{Name: "a", URL: "http://10.0.0.9"}}}}}, router.Parts{})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Serve(ctx, ln) }()
	client := n.Client()
	resp, err := client.Get("http://" + ln.Addr().String() + PathModels)
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

// Virtual runs a test in virtual time, in a network of its own.
func Virtual(t *testing.T, f func(t *testing.T, n *Network)) {
	t.Helper()
	warmServer()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // for what the servers keep a little longer
		n := NewNetwork()
		nets.Store(t, n)
		defer nets.Delete(t)
		f(t, n)
	})
}

// nets are the networks of the tests that run in virtual time: NewPool and Start are in it, for these.
var nets sync.Map

// NetOf is the network of a test in virtual time, nil for others.
func NetOf(t testing.TB) *Network {
	n, _ := nets.Load(t)
	net, _ := n.(*Network)
	return net
}

// RunVirtual is t.Run in virtual time, for tests that only ask and wait: what they wait for takes none.
func RunVirtual(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		Virtual(t, func(t *testing.T, _ *Network) { f(t) })
	})
}

// Client is one whose connections are in the network.
func (n *Network) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableCompression: true}}
}

// StartIn is start in a network in memory.
func StartIn(t testing.TB, n *Network, cfg config.Config, parts router.Parts) *Gateway {
	t.Helper()
	ln := n.Listen()
	return StartOn(t, ln, cfg, parts, n.Client(), n.Reach)
}

// Reach has a router's connections to engines be in the network.
func (n *Network) Reach(r *router.Router) { r.Debug().SetDial(n.Dial) }

// NewPoolIn makes a pool of any connector in the network, with what its router is built from.
func NewPoolIn(t *testing.T, n *Network, connectorName string, p, d int) (*Pool, router.Parts) {
	t.Helper()
	c := NewCluster(connectorName != connector.NamePull)
	c.Net = n
	parts := router.Parts{Planner: FirstUsable{}}
	var s *Pool
	switch connectorName {
	case connector.NameKVPlane:
		s, _, parts = newPlaneOf(t, c, p, d)
	case connector.NameSGLang:
		s, _ = NewSGLangOf(t, c, p, d)
	default:
		s = newPoolOf(t, c, connectorName, p, d, nil)
	}
	s.Config.Timeouts.Health = time.Minute // else they are most of what the clock goes by
	return s, parts
}
